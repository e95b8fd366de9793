// SPDX-License-Identifier: Apache-2.0

// Never a hang: a peer that throws, leaves, stalls or calls something else gives everyone else an
// error that names the rank, the operation and its number.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <new>
#include <thread>

#include "apogee/tests/support/launch_ranks.h"

namespace apogee::comm {
namespace failures_test {

using ::apogee::testing::LaunchRanks;
using ::apogee::testing::NumProcesses;
using ::apogee::testing::ShareByRank;
using ::testing::AllOf;
using ::testing::HasSubstr;

struct Failed {
  absl::Status status;
  std::vector<std::string> messages;  // by rank; "" where nothing was thrown
  double seconds = 0;
};

// Runs fn on n ranks and records what each of them threw, then passes it on.
Failed RunAll(int n, const std::function<void(World&)>& fn, double timeout = 20) {
  Failed result;
  result.messages.resize(static_cast<size_t>(n));
  const auto start = std::chrono::steady_clock::now();
  result.status = LaunchRanks({.num_ranks = n, .threads_per_rank = 1, .timeout_seconds = timeout},
                              [&](World& world) {
                                try {
                                  fn(world);
                                } catch (const std::exception& error) {
                                  result.messages[static_cast<size_t>(world.rank())] = error.what();
                                  throw;
                                }
                              });
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  ShareByRank(result.messages);
  return result;
}

Tensor Buffer(World& world, int64_t n = 40000, DType dtype = DType::kF32) {
  return Tensor::Zeros({n}, dtype, world.context());
}

TEST(FailuresTest, APeerThatThrows) {
  const Failed failed = RunAll(4, [](World& world) {
    const Tensor x = Buffer(world);
    world.group()->AllReduce(x);
    if (world.rank() == 2) throw std::runtime_error("the disk is on fire");
    world.group()->AllReduce(x);
  });
  EXPECT_EQ(Message(failed.status), "rank 2: the disk is on fire");
  for (size_t rank : {0u, 1u, 3u}) {
    EXPECT_THAT(failed.messages[rank],
                AllOf(HasSubstr("all_reduce(sum, 40000 x f32) #1"), HasSubstr("group [0 1 2 3]"),
                      HasSubstr("rank 2 failed: the disk is on fire")));
  }
  EXPECT_LT(failed.seconds, 10);
}

TEST(FailuresTest, APeerThatReturnsEarly) {
  const Failed failed = RunAll(3, [](World& world) {
    if (world.rank() == 1) return;
    world.group()->Barrier();
  });
  EXPECT_THAT(failed.messages[0], AllOf(HasSubstr("barrier #0"), HasSubstr("rank 1 returned")));
  EXPECT_THAT(failed.messages[2], HasSubstr("rank 1 returned"));
  EXPECT_FALSE(failed.status.ok());
}

TEST(FailuresTest, APeerThatStalls) {
  const Failed failed = RunAll(
      3,
      [](World& world) {
        if (world.rank() == 1) {
          std::this_thread::sleep_for(std::chrono::milliseconds(400));
          return;
        }
        world.group()->Broadcast(Buffer(world), 0);
      },
      /*timeout=*/0.2);
  EXPECT_THAT(failed.messages[0], AllOf(HasSubstr("broadcast(root 0, 40000 x f32) #0"),
                                        HasSubstr("rank 1 did not arrive within 0.2"),
                                        HasSubstr("waiting: rank 0, 2")));
  EXPECT_THAT(failed.messages[2], HasSubstr("rank 1 did not arrive"));
}

// Rank 1 waits for rank 2 itself, so it is not to blame.
TEST(FailuresTest, OfSeveralThatAreMissingTheCulpritIsNamed) {
  const Failed failed = RunAll(
      3,
      [](World& world) {
        const GroupPtr two = world.rank() > 0 ? world.NewGroup({1, 2}) : nullptr;
        if (world.rank() == 2) {
          std::this_thread::sleep_for(std::chrono::milliseconds(1200));
          return;
        }
        if (world.rank() == 1) two->Duplicate(std::chrono::seconds(20))->Barrier();
        world.group()->Barrier();
      },
      /*timeout=*/1);
  EXPECT_THAT(failed.messages[0],
              AllOf(HasSubstr("barrier #0 of group [0 1 2]: rank 2 did not arrive within 1.000"),
                    HasSubstr("waiting: rank 0")));
}

TEST(FailuresTest, RanksThatDisagree) {
  const std::vector<std::function<void(World&)>> wrong = {
      [](World& w) { w.group()->Broadcast(Buffer(w), 0); },                   // operation
      [](World& w) { w.group()->AllReduce(Buffer(w, 40001)); },               // count
      [](World& w) { w.group()->AllReduce(Buffer(w, 40000, DType::kF64)); },  // dtype
      [](World& w) { w.group()->AllReduce(Buffer(w), ReduceOp::kMax); },      // reduction
  };
  for (const auto& other : wrong) {
    const Failed failed = RunAll(3, [&](World& world) {
      world.group()->Barrier();
      if (world.rank() == 1) {
        other(world);
      } else {
        world.group()->AllReduce(Buffer(world));
      }
    });
    for (const std::string& message : failed.messages) {
      EXPECT_THAT(message, AllOf(HasSubstr("ranks disagree"), HasSubstr("#1"), HasSubstr("rank 1"),
                                 HasSubstr("all_reduce(sum, 40000 x f32)")));
    }
  }
  const Failed roots =
      RunAll(2, [](World& world) { world.group()->Broadcast(Buffer(world), world.rank()); });
  for (const std::string& message : roots.messages) EXPECT_THAT(message, HasSubstr("root"));
}

TEST(FailuresTest, AGroupThatFailedStaysFailed) {
  const Failed failed = RunAll(2, [](World& world) {
    const Tensor x = Buffer(world);
    try {
      world.rank() == 0 ? world.group()->AllReduce(x) : world.group()->Barrier();
    } catch (const CommError&) {
    }
    world.group()->AllReduce(x);
  });
  for (const std::string& message : failed.messages)
    EXPECT_THAT(message, HasSubstr("failed before"));
}

TEST(FailuresTest, RecvWithoutSend) {
  const Failed failed = RunAll(
      2,
      [](World& world) {
        if (world.rank() == 0) world.group()->Recv(Buffer(world), 1);
      },
      5);
  EXPECT_THAT(failed.messages[0], AllOf(HasSubstr("recv(from 1"), HasSubstr("rank 1 returned")));
  EXPECT_LT(failed.seconds, 4);
}

// Each waits as long as it was told to.
TEST(FailuresTest, DuplicatesHaveTheirOwnTimeout) {
  const Failed failed = RunAll(
      2,
      [](World& world) {
        const GroupPtr patient = world.group()->Duplicate(std::chrono::seconds(60));
        if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(1500));
        patient->AllReduce(Buffer(world));
        const GroupPtr hasty = world.group()->Duplicate(std::chrono::milliseconds(100));
        if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(800));
        hasty->AllReduce(Buffer(world));
      },
      1);
  EXPECT_THAT(failed.messages[0], HasSubstr("rank 1 did not arrive within 0.100 s"));
}

// Also where the duplicate is made only then.
TEST(FailuresTest, DuplicatesHearThatARankLeft) {
  const Failed failed = RunAll(
      2,
      [](World& world) {
        const GroupPtr first = world.group()->Duplicate(std::chrono::seconds(60));
        if (world.rank() == 1) return;
        EXPECT_THROW(first->AllReduce(Buffer(world)), CommError);
        const GroupPtr second = world.group()->Duplicate(std::chrono::seconds(60));
        second->AllReduce(Buffer(world));
      },
      5);
  EXPECT_THAT(failed.messages[0], HasSubstr("rank 1 returned"));
  EXPECT_LT(failed.seconds, 4);
}

// A thread cannot be ended: the process is.
TEST(FailuresTest, AThreadThatNeverEnds) {
  if (NumProcesses() > 1) GTEST_SKIP() << "ranks are processes";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto hang = [](double timeout, bool in_time) {
    (void)launch({.num_ranks = 3, .threads_per_rank = 1, .timeout_seconds = timeout},
                 [&](World& world) {
                   world.group()->Barrier();
                   if (world.rank() == 0 && !in_time) throw std::runtime_error("no more disk");
                   if (world.rank() == 1) {
                     while (true) std::atomic_thread_fence(std::memory_order_seq_cst);
                   }
                   world.group()->AllReduce(Buffer(world));
                 });
  };
  // The others have waited for it.
  EXPECT_EXIT(hang(0.3, true), ::testing::ExitedWithCode(70),
              "rank [02]: all_reduce.*rank 1 did not arrive within 0.300 s.*"
              "\n.*\n.*rank 1 is still in its function and has called no collective for 0");
  // Nobody has: it gets the timeout to hear of it.
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EXIT(hang(1, false), ::testing::ExitedWithCode(70),
              "rank 0: no more disk\n(.*\n)*.*rank 1 is still in its function");
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(1500));
}

// The same mistake on every rank is told once.
TEST(FailuresTest, OneMessageForTheSameMistake) {
  const Failed failed =
      RunAll(4, [](World&) { throw std::runtime_error("batch 7 cannot be split over 4 ranks"); });
  EXPECT_EQ(Message(failed.status), "batch 7 cannot be split over 4 ranks");
}

TEST(FailuresTest, MoreRanksThanTheMachineHasThreadsFor) {
  if (NumProcesses() > 1) GTEST_SKIP() << "ranks are processes";
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer needs the address space";
#endif
  // In a process of its own, which has room for the stacks of some threads only.
  auto launch_too_many = [] {
    const rlimit limit{600 << 20, 600 << 20};
    setrlimit(RLIMIT_AS, &limit);
    const absl::Status status = launch({.num_ranks = 300, .threads_per_rank = 1}, [](World& world) {
      world.group()->AllReduce(Buffer(world, 8));
    });
    std::fprintf(stderr, "%s", Message(status).c_str());
    std::exit(status.code() == absl::StatusCode::kResourceExhausted ? 0 : 1);
  };
  EXPECT_EXIT(launch_too_many(), ::testing::ExitedWithCode(0),
              "launch: cannot start two threads for each of 300 ranks: .*; use fewer ranks");
}

TEST(FailuresTest, MemoryThatRunsOutHasARemedy) {
  const Failed failed = RunAll(2, [](World& world) {
    if (world.rank() == 1) throw std::bad_alloc();
    world.group()->Barrier();
  });
  EXPECT_THAT(Message(failed.status), AllOf(HasSubstr("rank 1: out of memory; use a smaller batch"),
                                            HasSubstr("ulimit -v")));
}

// Each team is made while the others' count: OpenMP would end the process.
TEST(FailuresTest, MoreThreadsThanTheMachineHasRoomFor) {
  if (NumProcesses() > 1) GTEST_SKIP() << "ranks are processes";
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(_OPENMP)
  GTEST_SKIP() << "a sanitizer needs the address space";
#endif
  auto launch_too_many = [] {
    const rlimit limit{1200 << 20, 1200 << 20};
    setrlimit(RLIMIT_AS, &limit);
    const absl::Status status = launch({.num_ranks = 4, .threads_per_rank = 100}, [](World& world) {
      world.group()->AllReduce(Buffer(world, 8));
    });
    std::fprintf(stderr, "%s", Message(status).c_str());
    std::exit(status.ok() ? 1 : 0);
  };
  EXPECT_EXIT(launch_too_many(), ::testing::ExitedWithCode(0),
              "cannot start thread [0-9]+ of 100 of this rank: .*; ask for fewer threads .*ulimit");
}

TEST(FailuresTest, MoreThreadsThanAnyMachineHasCoresFor) {
  bool ran = false;
  const absl::Status status =
      LaunchRanks({.num_ranks = 2, .threads_per_rank = 100000}, [&](const World&) { ran = true; });
  EXPECT_THAT(Message(status),
              HasSubstr("a rank may have at most 1024 threads, got 100000; this machine has "));
  EXPECT_FALSE(ran);
}

TEST(FailuresTest, MisuseIsRefusedAtOnce) {
  const Failed failed = RunAll(2, [](World& world) {
    const Tensor x = Buffer(world);
    EXPECT_THROW(world.group()->ReduceScatter(x, x), Error);
    EXPECT_THROW(world.group()->AllToAll(x, x), Error);
    EXPECT_THROW(world.group()->Broadcast(x, 2), Error);
    EXPECT_THROW(world.group()->Send(x, world.rank()), Error);
    EXPECT_THROW(world.group()->AllReduce(x.View({200, 200}).Transpose(0, 1)), Error);
    EXPECT_THROW(world.NewGroup({0, 5}), Error);
    EXPECT_THROW(world.NewGroup({1 - world.rank()}), Error);
  });
  EXPECT_TRUE(failed.status.ok()) << Message(failed.status);
  for (const LaunchOptions& bad :
       {LaunchOptions{.num_ranks = -1}, LaunchOptions{.threads_per_rank = -1},
        LaunchOptions{.timeout_seconds = 0},
        LaunchOptions{.timeout_seconds = std::numeric_limits<double>::infinity()}}) {
    EXPECT_EQ(launch(bad, [](World&) {}).code(), absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace failures_test
}  // namespace apogee::comm
