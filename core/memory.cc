#include "apogee/core/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <new>

#include "apogee/core/error.h"

namespace apogee {

const char* MemoryCategoryName(MemoryCategory category) {
  switch (category) {
    case MemoryCategory::kParameter:
      return "parameter";
    case MemoryCategory::kGradient:
      return "gradient";
    case MemoryCategory::kOptimizerState:
      return "optimizer_state";
    case MemoryCategory::kActivation:
      return "activation";
    case MemoryCategory::kCommunication:
      return "communication";
    case MemoryCategory::kWorkspace:
      return "workspace";
    case MemoryCategory::kCheckpoint:
      return "checkpoint";
  }
  return "?";
}

namespace {

constexpr int64_t kHugeBytes = 2 << 20;  // a huge page of the usual processors

size_t Index(MemoryCategory category) { return static_cast<size_t>(category); }

}  // namespace

int64_t MemoryLedger::live_bytes(MemoryCategory category) const {
  std::lock_guard lock(mutex_);
  return live_[Index(category)];
}
int64_t MemoryLedger::peak_bytes(MemoryCategory category) const {
  std::lock_guard lock(mutex_);
  return peak_[Index(category)];
}
int64_t MemoryLedger::live_total_bytes() const {
  std::lock_guard lock(mutex_);
  return live_total_;
}
int64_t MemoryLedger::peak_total_bytes() const {
  std::lock_guard lock(mutex_);
  return peak_total_;
}
int64_t MemoryLedger::slack_bytes() const {
  std::lock_guard lock(mutex_);
  return slack_;
}
int64_t MemoryLedger::peak_reserved_bytes() const {
  std::lock_guard lock(mutex_);
  return peak_reserved_;
}
int64_t MemoryLedger::num_allocations() const {
  std::lock_guard lock(mutex_);
  return num_allocations_;
}

void MemoryLedger::ResetPeaks() {
  std::lock_guard lock(mutex_);
  peak_ = live_;
  peak_total_ = live_total_;
  peak_reserved_ = live_total_ + slack_;
}

void MemoryLedger::UpdatePeaks() {
  peak_total_ = std::max(peak_total_, live_total_);
  peak_reserved_ = std::max(peak_reserved_, live_total_ + slack_);
}

void MemoryLedger::Add(MemoryCategory category, int64_t bytes) {
  std::lock_guard lock(mutex_);
  int64_t& live = live_[Index(category)];
  live += bytes;
  peak_[Index(category)] = std::max(peak_[Index(category)], live);
  live_total_ += bytes;
  ++num_allocations_;
  UpdatePeaks();
}

void MemoryLedger::Remove(MemoryCategory category, int64_t bytes) {
  std::lock_guard lock(mutex_);
  live_[Index(category)] -= bytes;
  live_total_ -= bytes;
}

void MemoryLedger::Move(MemoryCategory from, MemoryCategory to, int64_t bytes) {
  std::lock_guard lock(mutex_);
  live_[Index(from)] -= bytes;
  int64_t& live = live_[Index(to)];
  live += bytes;
  peak_[Index(to)] = std::max(peak_[Index(to)], live);
}

void MemoryLedger::AddSlack(int64_t bytes) {
  std::lock_guard lock(mutex_);
  slack_ += bytes;
  UpdatePeaks();
}

int64_t CpuAllocator::RoundUp(int64_t bytes) {
  if (bytes < kCachedBytes)
    return std::max<int64_t>((bytes + kAlignment - 1) & -kAlignment, kAlignment);
  const int64_t page = 4096;
  const int64_t eighth = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(bytes))) / 8;
  const int64_t step = std::max(page, std::min<int64_t>(eighth, 1 << 20));
  return (bytes + step - 1) / step * step;
}

void* CpuAllocator::Allocate(int64_t bytes, MemoryCategory category) {
  APOGEE_CHECK(bytes >= 0, "allocate: negative size ", bytes);
  const int64_t rounded = RoundUp(bytes);
  void* block = nullptr;
  if (rounded < kCachedBytes) {
    block = std::aligned_alloc(kAlignment, static_cast<size_t>(rounded));
  } else {
    std::lock_guard lock(mutex_);
    if (auto found = cache_.find(rounded); found != cache_.end()) {
      block = found->second;
      cache_.erase(found);
      ledger_.AddSlack(-rounded);
    } else {
      void* mapped = mmap(nullptr, static_cast<size_t>(rounded), PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      block = mapped == MAP_FAILED ? nullptr : mapped;
      if (block != nullptr && rounded >= kHugeBytes) {
        // Where the system grants it, loops that stream through memory miss the page table less.
        // A refusal costs nothing else.
        madvise(block, static_cast<size_t>(rounded), MADV_HUGEPAGE);
      }
    }
  }
  APOGEE_CHECK(block != nullptr, "out of memory: ", bytes, " bytes for ",
               MemoryCategoryName(category), " with ", ledger_.live_total_bytes(),
               " bytes live; use a smaller batch or model");
  ledger_.AddSlack(rounded - bytes);
  ledger_.Add(category, bytes);
  return block;
}

void CpuAllocator::Free(void* block, int64_t bytes, MemoryCategory category) {
  const int64_t rounded = RoundUp(bytes);
#ifndef NDEBUG
  // A use after release reads NaN instead of what was there.
  std::memset(block, kPoison, static_cast<size_t>(bytes));
#endif
  ledger_.Remove(category, bytes);
  if (rounded < kCachedBytes) {
    ledger_.AddSlack(bytes - rounded);
    std::free(block);
    return;
  }
  ledger_.AddSlack(bytes);
  std::lock_guard lock(mutex_);
  cache_.emplace(rounded, block);
}

void CpuAllocator::ReleaseCache() {
  std::lock_guard lock(mutex_);
  for (auto [bytes, block] : cache_) {
    munmap(block, static_cast<size_t>(bytes));
    ledger_.AddSlack(-bytes);
  }
  cache_.clear();
}

CpuAllocator::~CpuAllocator() { ReleaseCache(); }

}  // namespace apogee
