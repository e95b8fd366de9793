// SPDX-License-Identifier: Apache-2.0

// Memory ledger and allocator. Every byte the library holds has a category and is counted per rank.
//
//   MemoryLedger& ledger = context->ledger();
//   ledger.live_bytes(MemoryCategory::kGradient);   // now
//   ledger.peak_total_bytes();                      // highest sum over the categories
//   ledger.slack_bytes();                           // reserved by the allocator beyond that
//
// An Allocator hands out 64-byte aligned blocks and reports them to its ledger. Blocks of at least
// kCachedBytes come from the operating system and are cached when freed: a training loop whose
// shapes repeat asks the system for no more memory after its first step. Memory that is held but
// not handed out is counted as slack. Thread-safe: communication threads may free a rank's blocks.
#ifndef APOGEE_CORE_MEMORY_H_
#define APOGEE_CORE_MEMORY_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

namespace apogee {

enum class MemoryCategory : uint8_t {
  kParameter,
  kGradient,
  kOptimizerState,
  kActivation,
  kCommunication,
  kWorkspace,
  kCheckpoint,  // copies that a save in the background writes out
};
inline constexpr int kNumMemoryCategories = 7;
// "parameter", "gradient", "optimizer_state", "activation", "communication", "workspace",
// "checkpoint".
const char* MemoryCategoryName(MemoryCategory category);
// Parameters, gradients and optimizer states.
bool IsModelData(MemoryCategory category);

// A ledger at one moment, for reports and comparisons.
struct MemoryFigures {
  std::array<int64_t, kNumMemoryCategories> live_bytes{};
  std::array<int64_t, kNumMemoryCategories> peak_bytes{};
  int64_t peak_total_bytes = 0;
  int64_t slack_bytes = 0;
  int64_t peak_reserved_bytes = 0;
};

// Counts of one rank on one device. All figures are bytes.
class MemoryLedger {
 public:
  int64_t live_bytes(MemoryCategory category) const;
  int64_t peak_bytes(MemoryCategory category) const;
  // Sums over the categories. The peak is the highest sum at one moment, not the sum of the peaks.
  int64_t live_total_bytes() const;
  int64_t peak_total_bytes() const;
  // Memory that the allocator holds beyond the bytes handed out: rounding and cached blocks.
  int64_t slack_bytes() const;
  // Highest live_total + slack: the most memory taken from the operating system.
  int64_t peak_reserved_bytes() const;
  int64_t num_allocations() const;
  MemoryFigures figures() const;
  // Model data: parameters, gradients and optimizer states.
  int64_t model_data_bytes() const;
  int64_t peak_model_data_bytes() const;
  // Peaks restart from the current values.
  void ResetPeaks();
  // Limits the model data. From now on Add and Move throw Error and change nothing if they would
  // exceed the limit. A limit below the current model data forbids any growth. 0 (default): none.
  void set_model_data_limit(int64_t bytes);
  int64_t model_data_limit() const;

  // Throws Error if the limit of model data would be exceeded.
  void Add(MemoryCategory category, int64_t bytes);
  void Remove(MemoryCategory category, int64_t bytes);
  // Throws Error as Add does.
  void Move(MemoryCategory from, MemoryCategory to, int64_t bytes);
  void AddSlack(int64_t bytes);

 private:
  int64_t ModelData() const;
  void CheckLimit(MemoryCategory category, int64_t bytes) const;
  void UpdatePeaks();

  mutable std::mutex mutex_;
  std::array<int64_t, kNumMemoryCategories> live_{};
  std::array<int64_t, kNumMemoryCategories> peak_{};
  int64_t live_total_ = 0;
  int64_t peak_total_ = 0;
  int64_t peak_model_data_ = 0;
  int64_t model_data_limit_ = 0;
  int64_t slack_ = 0;
  int64_t peak_reserved_ = 0;
  int64_t num_allocations_ = 0;
};

// One rank's allocator on one device.
class Allocator {
 public:
  virtual ~Allocator() = default;
  // A block of at least `bytes` (never nullptr, also for 0). Throws Error when memory runs out.
  virtual void* Allocate(int64_t bytes, MemoryCategory category) = 0;
  // Takes Allocate's result, with the same size and category.
  virtual void Free(void* block, int64_t bytes, MemoryCategory category) = 0;
  // Returns cached blocks to the operating system or driver.
  virtual void ReleaseCache() = 0;
  MemoryLedger& ledger() { return ledger_; }

 protected:
  MemoryLedger ledger_;
};

class CpuAllocator : public Allocator {
 public:
  static constexpr int64_t kAlignment = 64;
  // Smaller blocks come from the C++ heap, which reuses them well.
  static constexpr int64_t kCachedBytes = 64 << 10;
  // In debug builds, freed blocks are filled with this byte. All ones are NaN in every floating
  // dtype, so a use after free shows.
  static constexpr int kPoison = 0xff;

  // `dry`: the blocks are for a dry context (core/device_context.h). They are counted, rounded and
  // cached as ever, but begin as zeros, and pages that nobody writes take no memory.
  explicit CpuAllocator(bool dry = false) : dry_(dry) {}
  ~CpuAllocator() override;
  void* Allocate(int64_t bytes, MemoryCategory category) override;
  void Free(void* block, int64_t bytes, MemoryCategory category) override;
  void ReleaseCache() override;

 private:
  // Free blocks by their rounded size.
  using Cache = std::multimap<int64_t, void*>;

  // At most 1/8 above the request for large blocks, so that nearby shapes share blocks.
  static int64_t RoundUp(int64_t bytes);
  void* Map(int64_t bytes) const;
  void* TakeCached(int64_t rounded, bool model_data);
  void Unmap(Cache& cache);
  // Returns the cached blocks of model data to the system if, with `bytes` more, they would exceed
  // the limit of model data.
  void TrimModelData(int64_t bytes);

  const bool dry_;
  std::mutex mutex_;
  Cache cache_, model_data_cache_;
  int64_t model_data_cached_ = 0;
};

}  // namespace apogee

#endif  // APOGEE_CORE_MEMORY_H_
