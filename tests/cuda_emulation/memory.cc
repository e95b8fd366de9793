// SPDX-License-Identifier: Apache-2.0

#include "memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

namespace cuda_emulation {
namespace {

struct Mapping {
  void* begin;
  size_t bytes, asked;
};

// Blocks of pinned host memory.
class Pinned {
 public:
  static Pinned& Get() {
    static Pinned* pinned = new Pinned;
    return *pinned;
  }
  void* Allocate(size_t bytes) {
    void* block = std::malloc(bytes);
    std::lock_guard lock(mutex_);
    blocks_[reinterpret_cast<uintptr_t>(block)] = bytes;
    return block;
  }
  bool Free(void* block) {
    std::lock_guard lock(mutex_);
    if (blocks_.erase(reinterpret_cast<uintptr_t>(block)) == 0) return false;
    std::free(block);
    return true;
  }
  bool Contains(const void* address) {
    const auto at = reinterpret_cast<uintptr_t>(address);
    std::lock_guard lock(mutex_);
    auto found = blocks_.upper_bound(at);
    if (found == blocks_.begin()) return false;
    --found;
    return at < found->first + found->second;
  }

 private:
  std::mutex mutex_;
  std::map<uintptr_t, size_t> blocks_;
};

class Memory {
 public:
  // Never destroyed, because programs free tensors while they exit.
  static Memory& Get() {
    static Memory* memory = new Memory;
    return *memory;
  }

  void* Allocate(size_t bytes) {
    std::lock_guard lock(mutex_);
    if (bytes > total_ - used_) return nullptr;
    const size_t page = 4096;
    const size_t rounded = (bytes + 15) / 16 * 16;
    const size_t mapped = (rounded + page - 1) / page * page + page;
    void* begin = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (begin == MAP_FAILED) return nullptr;
    char* guard = static_cast<char*>(begin) + mapped - page;
    mprotect(guard, page, PROT_NONE);
    // The block ends at the guard page, because kernels overrun ends. Blocks of a multiple of 256
    // bytes are aligned to 256.
    char* block = guard - rounded;
    // Fresh memory of a GPU holds any values; here it holds NaN. It is filled before access is
    // removed.
    std::memset(begin, 0xff, mapped - page);
    if (key_ >= 0) pkey_mprotect(begin, mapped - page, PROT_READ | PROT_WRITE, key_);
    blocks_[reinterpret_cast<uintptr_t>(block)] = {begin, mapped, bytes};
    used_ += bytes;
    return block;
  }

  bool Free(void* block) {
    std::lock_guard lock(mutex_);
    const auto found = blocks_.find(reinterpret_cast<uintptr_t>(block));
    if (found == blocks_.end()) return false;
    munmap(found->second.begin, found->second.bytes);
    used_ -= found->second.asked;
    blocks_.erase(found);
    return true;
  }

  bool Contains(const void* address) {
    std::lock_guard lock(mutex_);
    const auto at = reinterpret_cast<uintptr_t>(address);
    auto found = blocks_.upper_bound(at);
    if (found == blocks_.begin()) return false;
    --found;
    return at < found->first + found->second.asked;
  }

  size_t total() const { return total_; }
  size_t free() {
    std::lock_guard lock(mutex_);
    return total_ - used_;
  }
  void Enter() const {
    if (key_ >= 0) pkey_set(key_, 0);
  }

 private:
  Memory() {
    const char* bytes = std::getenv("APOGEE_EMULATED_GPU_BYTES");
    if (bytes != nullptr) total_ = static_cast<size_t>(std::atoll(bytes));
    // Threads that exist already have no access by a new key either.
    key_ = pkey_alloc(0, PKEY_DISABLE_ACCESS);
  }

  std::mutex mutex_;
  std::map<uintptr_t, Mapping> blocks_;
  size_t total_ = size_t{8} << 30, used_ = 0;
  int key_ = -1;
};

}  // namespace

void* AllocateDevice(size_t bytes) { return Memory::Get().Allocate(bytes); }
bool FreeDevice(void* block) { return Memory::Get().Free(block); }
bool IsDevice(const void* address) { return Memory::Get().Contains(address); }
void* AllocatePinned(size_t bytes) { return Pinned::Get().Allocate(bytes); }
bool FreePinned(void* block) { return Pinned::Get().Free(block); }
bool IsPinned(const void* address) { return Pinned::Get().Contains(address); }
size_t DeviceBytes() { return Memory::Get().total(); }
size_t FreeDeviceBytes() { return Memory::Get().free(); }
void LetThisThreadTouchDevice() { Memory::Get().Enter(); }

}  // namespace cuda_emulation
