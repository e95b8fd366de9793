// SPDX-License-Identifier: Apache-2.0

// Finds races in kernels: two threads of a launch access the same memory, one of them writes, not
// both accesses are atomic, and neither a barrier nor an exchange orders them (order.h). It does
// not depend on the order in which the threads happen to run. Private to the emulation.
//
// The compiler (-fsanitize=thread) calls the functions of instrumentation.cc before each access of
// a kernel; ThreadSanitizer's own library is not linked. Shared memory that a block reads before it
// has written it is an error, too.
//
// On a race the process ends. The first line names the kernel, the two threads and what they did;
// two more lines name the places in the source.
#ifndef APOGEE_TESTS_CUDA_EMULATION_RACES_H_
#define APOGEE_TESTS_CUDA_EMULATION_RACES_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "order.h"
#include "shadow.h"

namespace cuda_emulation {

enum class Access { kRead, kWrite, kAtomic };

// Addresses [begin, begin + bytes).
struct Range {
  uintptr_t begin = 0;
  size_t bytes = 0;

  bool Contains(uintptr_t address) const { return address - begin < bytes; }
};

// The detector of one stream's launches.
class Races {
 public:
  // The calling thread's detector; null unless APOGEE_EMULATED_GPU_RACES is 1.
  static Races* OfThisThread();

  void BeginLaunch(const void* kernel, const dim3& blocks, const dim3& threads);
  void BeginBlock(uint32_t block, size_t threads, const Range& dynamic_shared);
  BlockOrder& order() { return order_; }
  // The thread runs until the next call, on this stack.
  void Resume(size_t thread, const Range& stack) {
    thread_ = thread;
    stack_ = stack;
    Moved();
  }
  // The running thread has passed a barrier or an exchange.
  void Moved() { now_ = order_.Now(thread_); }
  // The running thread accesses memory. `code`: an address in the code that does.
  void Note(Access access, const void* address, size_t bytes, const void* code);

 private:
  bool Before(const Stamp& earlier, uintptr_t address) const;
  void NoteCell(Access access, Cell& cell, uintptr_t address);
  [[noreturn]] void Report(Access access, const char* other_did, const Stamp& other,
                           uintptr_t address) const;
  [[noreturn]] void ReportUnwritten() const;
  bool IsShared(uintptr_t address) const {
    return static_shared_.Contains(address) || dynamic_shared_.Contains(address);
  }

  const void* kernel_ = nullptr;
  dim3 blocks_, threads_;
  Range static_shared_, dynamic_shared_, stack_;
  BlockOrder order_;
  Shadow shadow_;
  size_t thread_ = 0;
  Stamp now_;
};

// The kernel's threads run between two of these calls; otherwise the compiler's calls do nothing.
void NoteAccessesTo(Races* races);
// For accesses that the emulation makes for the running thread. `code`: where the kernel goes on.
void NoteAccess(Access access, const void* address, size_t bytes, const void* code);

}  // namespace cuda_emulation

#endif  // APOGEE_TESTS_CUDA_EMULATION_RACES_H_
