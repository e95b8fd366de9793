// SPDX-License-Identifier: Apache-2.0

#include "apogee/tensor/cpu/onednn/onednn.h"

#include <sys/mman.h>

#include <cstddef>

#include "apogee/core/error.h"

namespace apogee::cpu {
namespace {

std::mutex& Making() {
  static std::mutex making;
  return making;
}

}  // namespace

MakingPrimitives::MakingPrimitives(const char* what) : what_(what), lock_(Making()) {
  CheckMemory();
}

// Another thread's first allocation takes 128 MiB of addresses for a moment (glibc's arenas).
void MakingPrimitives::CheckMemory() const {
  constexpr size_t kBytes = 16 << 20, kAddresses = 144 << 20;
  constexpr int kPrivate = MAP_PRIVATE | MAP_ANONYMOUS;
  void* const block = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, kPrivate, -1, 0);
  void* const addresses = mmap(nullptr, kAddresses, PROT_NONE, kPrivate | MAP_NORESERVE, -1, 0);
  if (block != MAP_FAILED) munmap(block, kBytes);
  if (addresses != MAP_FAILED) munmap(addresses, kAddresses);
  APOGEE_CHECK(block != MAP_FAILED && addresses != MAP_FAILED, "out of memory: ", what_,
               " by oneDNN needs 16 MiB of free memory and 160 MiB of free addresses; use a "
               "smaller batch or model, fewer ranks or threads, or raise the limit (ulimit -v)");
}

void ThrowOneDnnFailed(const char* what, const char* error, bool out_of_memory) {
  Throw(what, " by oneDNN: ", error,
        out_of_memory
            ? ": out of memory; use a smaller batch or model, fewer ranks or threads, or raise the "
              "limit (ulimit -v)"
            : "; set ONEDNN_VERBOSE=2 to see which one");
}

}  // namespace apogee::cpu
