// SPDX-License-Identifier: Apache-2.0

// Making and running oneDNN's primitives: one rank at a time makes them, and errors say what to do.
// Private to tensor/cpu. This header needs no header of oneDNN.
//
//   const MakingPrimitives making("a matrix product");     // in the function that makes one
#ifndef APOGEE_TENSOR_CPU_ONEDNN_ONEDNN_H_
#define APOGEE_TENSOR_CPU_ONEDNN_ONEDNN_H_

#include <mutex>

#if defined(APOGEE_HAS_ONEDNN) && defined(_OPENMP)
// Only OpenMP can limit oneDNN to a rank's number of threads, so a build without OpenMP does not
// use oneDNN.
#define APOGEE_USE_ONEDNN 1
#endif

namespace apogee::cpu {

// While it lives, no other rank takes the memory that its constructor has found. Throws Error if
// memory is short: then oneDNN crashes while it makes a primitive, or finds none.
class MakingPrimitives {
 public:
  // `what` begins the texts of errors.
  explicit MakingPrimitives(const char* what);
  // Throws that Error. To be called again if oneDNN found no primitive: the reason may be a lack of
  // memory.
  void CheckMemory() const;

 private:
  const char* what_;
  std::unique_lock<std::mutex> lock_;
};

// Throws Error for one of oneDNN.
[[noreturn]] void ThrowOneDnnFailed(const char* what, const char* error, bool out_of_memory);

}  // namespace apogee::cpu

#endif  // APOGEE_TENSOR_CPU_ONEDNN_ONEDNN_H_
