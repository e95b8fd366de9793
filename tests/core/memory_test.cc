// SPDX-License-Identifier: Apache-2.0

// The ledger counts what the allocator hands out and holds.
#include "apogee/core/memory.h"

#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "apogee/core/error.h"
#include "gtest/gtest.h"

namespace apogee {
namespace memory_test {

constexpr MemoryCategory kParameter = MemoryCategory::kParameter;
constexpr MemoryCategory kGradient = MemoryCategory::kGradient;

TEST(MemoryLedger, PeakOfTheTotalIsNotTheSumOfPeaks) {
  MemoryLedger ledger;
  ledger.Add(kParameter, 100);
  ledger.Remove(kParameter, 100);
  ledger.Add(kGradient, 80);
  EXPECT_EQ(ledger.live_bytes(kParameter), 0);
  EXPECT_EQ(ledger.peak_bytes(kParameter), 100);
  EXPECT_EQ(ledger.live_bytes(kGradient), 80);
  EXPECT_EQ(ledger.live_total_bytes(), 80);
  EXPECT_EQ(ledger.peak_total_bytes(), 100);
  EXPECT_EQ(ledger.num_allocations(), 2);
  ledger.ResetPeaks();
  EXPECT_EQ(ledger.peak_bytes(kParameter), 0);
  EXPECT_EQ(ledger.peak_total_bytes(), 80);
}

TEST(MemoryLedger, MoveKeepsTheTotal) {
  MemoryLedger ledger;
  ledger.Add(kParameter, 64);
  ledger.Move(kParameter, kGradient, 24);
  EXPECT_EQ(ledger.live_bytes(kParameter), 40);
  EXPECT_EQ(ledger.peak_bytes(kGradient), 24);
  EXPECT_EQ(ledger.peak_total_bytes(), 64);
  EXPECT_EQ(ledger.num_allocations(), 1);
}

TEST(MemoryLedger, ModelDataIsParametersGradientsAndStates) {
  MemoryLedger ledger;
  ledger.Add(kParameter, 10);
  ledger.Add(MemoryCategory::kActivation, 100);
  ledger.Add(MemoryCategory::kOptimizerState, 5);
  EXPECT_EQ(ledger.model_data_bytes(), 15);
  ledger.Move(MemoryCategory::kActivation, kGradient, 100);
  EXPECT_EQ(ledger.model_data_bytes(), 115);
  ledger.Remove(kGradient, 100);
  EXPECT_EQ(ledger.model_data_bytes(), 15);
  EXPECT_EQ(ledger.peak_model_data_bytes(), 115);
  ledger.ResetPeaks();
  EXPECT_EQ(ledger.peak_model_data_bytes(), 15);
}

TEST(MemoryLedger, LimitOfModelData) {
  MemoryLedger ledger;
  ledger.set_model_data_limit(100);
  ledger.Add(kParameter, 60);
  ledger.Add(MemoryCategory::kActivation, 1000);
  EXPECT_THROW(ledger.Add(kGradient, 41), Error);
  EXPECT_THROW(ledger.Move(MemoryCategory::kActivation, kGradient, 41), Error);
  EXPECT_EQ(ledger.model_data_bytes(), 60);
  EXPECT_EQ(ledger.live_bytes(MemoryCategory::kActivation), 1000);
  ledger.Move(MemoryCategory::kActivation, kGradient, 40);
  ledger.Move(kGradient, kParameter, 40);  // it counted before
  try {
    ledger.Add(kParameter, 7);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("the budget must be at least 107"), std::string::npos)
        << error.what();
  }
  ledger.set_model_data_limit(0);
  ledger.Add(kParameter, 7);
}

TEST(CpuAllocator, BlocksOverTheLimitAreNotHandedOut) {
  CpuAllocator allocator;
  allocator.ledger().set_model_data_limit(300 << 10);
  void* block = allocator.Allocate(200 << 10, kParameter);
  const int64_t slack = allocator.ledger().slack_bytes();
  for (const int64_t bytes : {101 << 10, 150 << 10, (100 << 10) + 1}) {
    EXPECT_THROW(allocator.Allocate(bytes, kGradient), Error);
  }
  EXPECT_EQ(allocator.ledger().live_total_bytes(), 200 << 10);
  EXPECT_EQ(allocator.ledger().slack_bytes(), slack);
  allocator.Free(block, 200 << 10, kParameter);
}

// What is cached of model data and what is live of it keep to the limit together.
TEST(CpuAllocator, CacheOfModelDataKeepsToTheLimit) {
  CpuAllocator allocator;
  allocator.ledger().set_model_data_limit(1 << 20);
  for (const int64_t kib : {100, 200, 300, 400, 500, 600, 700}) {
    allocator.Free(allocator.Allocate(kib << 10, kParameter), kib << 10, kParameter);
  }
  EXPECT_LE(allocator.ledger().peak_reserved_bytes(), 1 << 20);
}

TEST(CpuAllocator, AlignsAndCountsSlack) {
  CpuAllocator allocator;
  for (int64_t bytes : {0, 1, 63, 64, 65, 65535, 65536, 100000, 9 << 20}) {
    void* block = allocator.Allocate(bytes, kParameter);
    ASSERT_NE(block, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block) % CpuAllocator::kAlignment, 0u);
    std::memset(block, 1, static_cast<size_t>(bytes));
    EXPECT_EQ(allocator.ledger().live_total_bytes(), bytes);
    EXPECT_GE(allocator.ledger().slack_bytes(), 0);
    // At most an eighth, or a cache line for the small ones.
    EXPECT_LE(allocator.ledger().slack_bytes(), std::max<int64_t>(64, bytes / 8)) << bytes;
    allocator.Free(block, bytes, kParameter);
    allocator.ReleaseCache();
    EXPECT_EQ(allocator.ledger().live_total_bytes(), 0);
    EXPECT_EQ(allocator.ledger().slack_bytes(), 0) << bytes;
  }
}

TEST(CpuAllocator, ReusesFreedBlocksOfTheSameSizeClass) {
  CpuAllocator allocator;
  MemoryLedger& ledger = allocator.ledger();
  const int64_t bytes = 1 << 20;
  void* first = allocator.Allocate(bytes, kParameter);
  allocator.Free(first, bytes, kParameter);
  EXPECT_EQ(ledger.slack_bytes(), bytes);  // held for the next request
  void* second = allocator.Allocate(bytes - 100, kGradient);
  EXPECT_EQ(second, first);
  EXPECT_EQ(ledger.slack_bytes(), 100);
  EXPECT_EQ(ledger.live_bytes(kGradient), bytes - 100);
  void* third = allocator.Allocate(bytes, kParameter);
  EXPECT_NE(third, second);
  EXPECT_EQ(ledger.peak_reserved_bytes(), 2 * bytes);
  allocator.Free(second, bytes - 100, kGradient);
  allocator.Free(third, bytes, kParameter);
  EXPECT_EQ(ledger.slack_bytes(), 2 * bytes);
  allocator.ReleaseCache();
  EXPECT_EQ(ledger.slack_bytes(), 0);
  EXPECT_EQ(ledger.peak_reserved_bytes(), 2 * bytes);
}

// Large blocks are cached, so the same one comes back.
TEST(CpuAllocator, PoisonsFreedBlocksInDebugBuilds) {
  CpuAllocator allocator;
  constexpr int64_t kBytes = CpuAllocator::kCachedBytes;
  auto* block = static_cast<unsigned char*>(allocator.Allocate(kBytes, MemoryCategory::kGradient));
  block[0] = block[kBytes - 1] = 7;
  allocator.Free(block, kBytes, MemoryCategory::kGradient);
  ASSERT_EQ(allocator.Allocate(kBytes, MemoryCategory::kGradient), block);
#ifdef NDEBUG
  constexpr int kExpected = 7;
#else
  constexpr int kExpected = CpuAllocator::kPoison;
#endif
  EXPECT_EQ(block[0], kExpected);
  EXPECT_EQ(block[kBytes - 1], kExpected);
  allocator.Free(block, kBytes, MemoryCategory::kGradient);
}

TEST(CpuAllocator, PeakReservedDoesNotCountReusedBlocksTwice) {
  CpuAllocator allocator;
  const int64_t bytes = 1 << 20;
  for (int step = 0; step < 3; ++step) {
    void* block = allocator.Allocate(bytes, kParameter);
    allocator.Free(block, bytes, kParameter);
  }
  EXPECT_EQ(allocator.ledger().peak_reserved_bytes(), bytes);
  EXPECT_EQ(allocator.ledger().peak_total_bytes(), bytes);
  EXPECT_EQ(allocator.ledger().num_allocations(), 3);
}

TEST(CpuAllocator, NamesWhatItCouldNotAllocate) {
  CpuAllocator allocator;
  EXPECT_THROW(allocator.Allocate(-1, kParameter), Error);
  try {
    allocator.Allocate(int64_t{1} << 60, kGradient);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("gradient"), std::string::npos) << error.what();
  }
  EXPECT_EQ(allocator.ledger().live_total_bytes(), 0);
  EXPECT_EQ(allocator.ledger().slack_bytes(), 0);
}

TEST(CpuAllocator, ThreadsMayShareIt) {
  CpuAllocator allocator;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&allocator, t] {
      for (int i = 0; i < 200; ++i) {
        const int64_t bytes = 1000 * (1 + (i * 7 + t) % 200);
        void* block = allocator.Allocate(bytes, kParameter);
        std::memset(block, t, 1);
        allocator.Free(block, bytes, kParameter);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  allocator.ReleaseCache();
  EXPECT_EQ(allocator.ledger().live_total_bytes(), 0);
  EXPECT_EQ(allocator.ledger().slack_bytes(), 0);
  EXPECT_EQ(allocator.ledger().num_allocations(), 800);
}

}  // namespace memory_test
}  // namespace apogee
