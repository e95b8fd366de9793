// SPDX-License-Identifier: Apache-2.0

// A rank fails, and its thread finds no memory for a part of the report, because other ranks of the
// process have taken it. launch() still returns the error, and nothing ends the process.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <semaphore>

#include "apogee/comm/failure/outcomes.h"
#include "apogee/comm/launch.h"

namespace {

// The allocation of this thread that fails; 1: the next one, 0: none.
thread_local int failing = 0;

}  // namespace

// The allocator of this program. Inlined, GCC takes free() here for a mistake of the callers.
[[gnu::noinline]] void* operator new(size_t num_bytes) {
  const bool fails = failing > 0 && --failing == 0;
  void* const memory = fails ? nullptr : std::malloc(num_bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace apogee::comm {
namespace out_of_memory_test {

using ::testing::HasSubstr;

TEST(OutOfMemoryTest, AReportIsRepeated) {
  int calls = 0;
  RetryOutOfMemory([&] {
    if (++calls < 4) throw std::bad_alloc();
  });
  EXPECT_EQ(calls, 4);
}

// Each allocation of the report fails once. Rank 0 waits for rank 1 in two
// collectives of two ranks, rank 2 has already returned.
TEST(OutOfMemoryTest, ARankThatFailsWithoutMemory) {
  for (int number = 1; number <= 40; ++number) {
    SCOPED_TRACE(number);
    std::string of_rank_0;
    std::binary_semaphore waits(0);
    const absl::Status status =
        launch({.num_ranks = 3, .threads_per_rank = 1, .timeout_seconds = 5}, [&](World& world) {
          if (world.rank() == 2) return;
          const GroupPtr pair = world.NewGroup({0, 1});
          pair->Barrier();
          if (world.rank() == 1) {
            waits.acquire();
            failing = number;
            throw std::bad_alloc();
          }
          const auto first = pair->BarrierAsync(), second = pair->BarrierAsync();
          waits.release();
          EXPECT_THROW(first->Wait(), CommError);
          try {
            second->Wait();
          } catch (const CommError& error) {
            of_rank_0 = error.what();
            throw;
          }
        });
    EXPECT_THAT(Message(status), HasSubstr("rank 1: out of memory; use a smaller batch"));
    EXPECT_THAT(of_rank_0, HasSubstr("rank 1 failed: out of memory"));
  }
}

// Each allocation of a rank's all-reduce fails once, if the rank is the first to arrive, and the
// last. The others get the sum or an error; no rank waits for a part that nobody moves.
TEST(OutOfMemoryTest, ARankThatFindsNoMemoryInsideACollective) {
  for (const bool last : {false, true}) {
    for (int number = 1; number <= 40; ++number) {
      SCOPED_TRACE(std::string(last ? "last, allocation " : "first, allocation ") +
                   std::to_string(number));
      std::binary_semaphore arrived(0);
      std::atomic<int> sums = 0;
      const absl::Status status =
          launch({.num_ranks = 2, .threads_per_rank = 1, .timeout_seconds = 5}, [&](World& world) {
            // More bytes than an operation moves on the thread of the last rank to arrive.
            Tensor x = Tensor::Full({20000}, DType::kF64, world.rank() + 1, world.context());
            const bool fails = world.rank() == 1;
            if (fails == last) arrived.acquire();
            failing = fails ? number : 0;
            const auto end = [&] {
              failing = 0;
              if (fails != last) arrived.release();
            };
            std::shared_ptr<Work> work;
            try {
              work = world.group()->AllReduceAsync(x);
            } catch (...) {
              end();
              throw;
            }
            end();
            work->Wait();
            EXPECT_EQ(x.data<double>()[19999], 3);
            ++sums;
          });
      if (status.ok()) {
        EXPECT_EQ(sums, 2);
      } else {
        EXPECT_THAT(Message(status), HasSubstr("rank 1: out of memory"));
      }
    }
  }
}

}  // namespace out_of_memory_test
}  // namespace apogee::comm
