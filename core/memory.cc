// SPDX-License-Identifier: Apache-2.0

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

bool IsModelData(MemoryCategory category) {
  return category == MemoryCategory::kParameter || category == MemoryCategory::kGradient ||
         category == MemoryCategory::kOptimizerState;
}

namespace {

// Blocks of at least this many bytes are shared among more different sizes.
constexpr int64_t kLargeBytes = 32 << 20;
constexpr int64_t kHugeBytes = 2 << 20;  // size of a huge page on common processors

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

MemoryFigures MemoryLedger::figures() const {
  std::lock_guard lock(mutex_);
  return {live_, peak_, peak_total_, slack_, peak_reserved_};
}

int64_t MemoryLedger::model_data_bytes() const {
  std::lock_guard lock(mutex_);
  return ModelData();
}
int64_t MemoryLedger::peak_model_data_bytes() const {
  std::lock_guard lock(mutex_);
  return peak_model_data_;
}
int64_t MemoryLedger::model_data_limit() const {
  std::lock_guard lock(mutex_);
  return model_data_limit_;
}

void MemoryLedger::set_model_data_limit(int64_t bytes) {
  APOGEE_CHECK(bytes >= 0, "memory ledger: the limit of model data is ", bytes, " bytes");
  std::lock_guard lock(mutex_);
  model_data_limit_ = bytes;
}

int64_t MemoryLedger::ModelData() const {
  return live_[Index(MemoryCategory::kParameter)] + live_[Index(MemoryCategory::kGradient)] +
         live_[Index(MemoryCategory::kOptimizerState)];
}

void MemoryLedger::CheckLimit(MemoryCategory category, int64_t bytes) const {
  if (model_data_limit_ == 0 || !IsModelData(category)) return;
  APOGEE_CHECK(ModelData() + bytes <= model_data_limit_, bytes, " more bytes for ",
               MemoryCategoryName(category), " would exceed the budget of ", model_data_limit_,
               " bytes of model data: there are ", live_[Index(MemoryCategory::kParameter)],
               " of parameters, ", live_[Index(MemoryCategory::kGradient)], " of gradients and ",
               live_[Index(MemoryCategory::kOptimizerState)],
               " of optimizer states; the budget must be at least ", ModelData() + bytes);
}

void MemoryLedger::ResetPeaks() {
  std::lock_guard lock(mutex_);
  peak_model_data_ = ModelData();
  peak_ = live_;
  peak_total_ = live_total_;
  peak_reserved_ = live_total_ + slack_;
}

void MemoryLedger::UpdatePeaks() {
  peak_total_ = std::max(peak_total_, live_total_);
  peak_model_data_ = std::max(peak_model_data_, ModelData());
  peak_reserved_ = std::max(peak_reserved_, live_total_ + slack_);
}

void MemoryLedger::Add(MemoryCategory category, int64_t bytes) {
  std::lock_guard lock(mutex_);
  CheckLimit(category, bytes);
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
  if (!IsModelData(from)) CheckLimit(to, bytes);
  live_[Index(from)] -= bytes;
  int64_t& live = live_[Index(to)];
  live += bytes;
  peak_[Index(to)] = std::max(peak_[Index(to)], live);
  UpdatePeaks();
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
  const auto floor = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(bytes)));
  const int64_t step = std::clamp<int64_t>(floor / 8, page, std::max<int64_t>(1 << 20, floor / 32));
  // Gemini pads chunks so that no two are of one size. Large blocks of nearly one size, often a
  // multiple of the step, are still shared: a cached embedding table serves as the output's.
  const int64_t margin = bytes >= kLargeBytes ? bytes / 256 : 0;
  return (bytes + margin + step - 1) / step * step;
}

// Null if the system has no more memory.
void* CpuAllocator::Map(int64_t bytes) const {
  const int uncounted = dry_ ? MAP_NORESERVE : 0;
  void* mapped = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | uncounted, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  // A write of a few bytes must not take a whole huge page.
  if (dry_) madvise(mapped, static_cast<size_t>(bytes), MADV_NOHUGEPAGE);
  return mapped;
}

void* CpuAllocator::Allocate(int64_t bytes, MemoryCategory category) {
  APOGEE_CHECK(bytes >= 0, "allocate: negative size ", bytes);
  const int64_t rounded = RoundUp(bytes);
  void* block = nullptr;
  if (rounded < kCachedBytes) {
    block = std::aligned_alloc(kAlignment, static_cast<size_t>(rounded));
    if (dry_ && block != nullptr) std::memset(block, 0, static_cast<size_t>(rounded));
  } else {
    const bool model_data = IsModelData(category);
    block = TakeCached(rounded, model_data);
    if (block == nullptr) {
      if (model_data) TrimModelData(rounded);
      block = Map(rounded);
      if (block == nullptr) {
        ReleaseCache();  // cached blocks of other sizes may make room
        block = Map(rounded);
      }
      if (block != nullptr && rounded >= kHugeBytes && !dry_) {
        // With huge pages, loops that stream through memory have fewer TLB misses. The system may
        // refuse; nothing else depends on it.
        madvise(block, static_cast<size_t>(rounded), MADV_HUGEPAGE);
      }
    }
  }
  APOGEE_CHECK(
      block != nullptr, "out of memory: ", bytes, " bytes for ", MemoryCategoryName(category),
      " with ", ledger_.live_total_bytes(),
      " bytes live; use a smaller batch or model, more ranks on more machines, or raise the "
      "limit (ulimit -v, memory.max of the cgroup)");
  try {
    ledger_.Add(category, bytes);
  } catch (...) {
    if (rounded < kCachedBytes) {
      std::free(block);
    } else {
      munmap(block, static_cast<size_t>(rounded));
    }
    throw;
  }
  ledger_.AddSlack(rounded - bytes);
  return block;
}

// Prefers a cached block of the same kind. Blocks of the other kind serve too: gradients, for
// example, reuse the memory of activations.
void* CpuAllocator::TakeCached(int64_t rounded, bool model_data) {
  std::lock_guard lock(mutex_);
  for (const bool of_model_data : {model_data, !model_data}) {
    Cache& cache = of_model_data ? model_data_cache_ : cache_;
    const auto found = cache.find(rounded);
    if (found == cache.end()) continue;
    void* block = found->second;
    cache.erase(found);
    if (of_model_data) model_data_cached_ -= rounded;
    ledger_.AddSlack(-rounded);
    return block;
  }
  return nullptr;
}

void CpuAllocator::TrimModelData(int64_t bytes) {
  const int64_t limit = ledger_.model_data_limit();
  if (limit == 0) return;
  std::lock_guard lock(mutex_);
  if (ledger_.model_data_bytes() + model_data_cached_ + bytes <= limit) return;
  Unmap(model_data_cache_);
  model_data_cached_ = 0;
}

void CpuAllocator::Free(void* block, int64_t bytes, MemoryCategory category) {
  const int64_t rounded = RoundUp(bytes);
#ifndef NDEBUG
  // A use after free then reads NaN instead of the old values.
  if (!dry_) std::memset(block, kPoison, static_cast<size_t>(bytes));
#endif
  ledger_.Remove(category, bytes);
  if (rounded < kCachedBytes) {
    ledger_.AddSlack(bytes - rounded);
    std::free(block);
    return;
  }
  ledger_.AddSlack(bytes);
  std::lock_guard lock(mutex_);
  const bool model_data = IsModelData(category);
  try {
    (model_data ? model_data_cache_ : cache_).emplace(rounded, block);
    if (model_data) model_data_cached_ += rounded;
  } catch (const std::bad_alloc&) {  // destructors call this: they must not throw
    munmap(block, static_cast<size_t>(rounded));
    ledger_.AddSlack(-rounded);
  }
}

void CpuAllocator::Unmap(Cache& cache) {
  for (const auto& [bytes, block] : cache) {
    munmap(block, static_cast<size_t>(bytes));
    ledger_.AddSlack(-bytes);
  }
  cache.clear();
}

void CpuAllocator::ReleaseCache() {
  std::lock_guard lock(mutex_);
  Unmap(cache_);
  Unmap(model_data_cache_);
  model_data_cached_ = 0;
}

CpuAllocator::~CpuAllocator() { ReleaseCache(); }

}  // namespace apogee
