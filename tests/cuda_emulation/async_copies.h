// SPDX-License-Identifier: Apache-2.0

// cp.async: copies of 16 bytes to shared memory. The destination is NaN until the thread has waited
// for the copy.
#ifndef APOGEE_TESTS_CUDA_EMULATION_ASYNC_COPIES_H_
#define APOGEE_TESTS_CUDA_EMULATION_ASYNC_COPIES_H_

#include <cstddef>
#include <deque>
#include <utility>
#include <vector>

namespace cuda_emulation {

class AsyncCopies {
 public:
  // The running thread's copies. A block leaves none behind for the next block.
  static AsyncCopies& Get();
  // Copies zeros instead if not `there`.
  void Copy16(void* to, const void* from, bool there);
  void Commit();
  void Wait(size_t but);

 private:
  using Group = std::vector<std::pair<void*, const void*>>;
  Group open_;
  std::deque<Group> groups_;
};

}  // namespace cuda_emulation

#endif  // APOGEE_TESTS_CUDA_EMULATION_ASYNC_COPIES_H_
