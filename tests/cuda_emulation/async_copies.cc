// SPDX-License-Identifier: Apache-2.0

#include "async_copies.h"

#include <array>
#include <cstring>

#include "device.h"
#include "races.h"

namespace cuda_emulation {

AsyncCopies& AsyncCopies::Get() {
  static thread_local std::array<AsyncCopies, 1024> all;
  const Position& at = Here();
  return all[(at.thread.z * at.threads.y + at.thread.y) * at.threads.x + at.thread.x];
}

[[gnu::noinline]] void AsyncCopies::Copy16(void* to, const void* from, bool there) {
  CheckAligned(to, 16);
  if (there) CheckAligned(from, 16);
  NoteAccess(Access::kWrite, to, 16, __builtin_return_address(0));
  std::memset(to, 0xff, 16);
  open_.push_back({to, there ? from : nullptr});
}

void AsyncCopies::Commit() { groups_.push_back(std::exchange(open_, {})); }

[[gnu::noinline]] void AsyncCopies::Wait(size_t but) {
  const void* const caller = __builtin_return_address(0);  // in the kernel: named in reports
  for (; groups_.size() > but; groups_.pop_front()) {
    for (const auto& [to, from] : groups_.front()) {
      // The copy may happen at any time until now.
      NoteAccess(Access::kWrite, to, 16, caller);
      if (from == nullptr) {
        std::memset(to, 0, 16);
      } else {
        NoteAccess(Access::kRead, from, 16, caller);
        std::memcpy(to, from, 16);
      }
    }
  }
}

}  // namespace cuda_emulation
