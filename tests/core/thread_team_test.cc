// SPDX-License-Identifier: Apache-2.0

// What OpenMP grants a thread, what a ThreadTeam makes of it, and numbers that cannot be.
#include "apogee/core/process/thread_team.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <thread>

#include "apogee/core/parallel.h"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace apogee {
namespace thread_team_test {

using ::testing::HasSubstr;

TEST(ThreadTeamTest, NumbersThatCannotBe) {
  EXPECT_EQ(CheckNumThreads(0).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CheckNumThreads(-3).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(CheckNumThreads(1).ok());
  EXPECT_TRUE(CheckNumThreads(kMaxThreads).ok());
  const absl::Status status = CheckNumThreads(100000);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(status), HasSubstr("at most 1024 threads, got 100000; this machine has "));
}

TEST(ThreadTeamTest, CoresAreSharedOut) {
  EXPECT_GE(ShareOfCores(1), ShareOfCores(2));
  EXPECT_EQ(ShareOfCores(1 << 20), 1);
}

#ifdef _OPENMP
// Settings are a thread's own, so each test has one.
void OnAThread(const std::function<void()>& test) { std::thread(test).join(); }

int ThreadsOfARegion(int asked) {
  int granted = 0;
#pragma omp parallel num_threads(asked)
  {
#pragma omp single
    granted = omp_get_num_threads();
  }
  return granted;
}

TEST(ThreadTeamTest, SettingsDoNotCountAndAreThereAgain) {
  OnAThread([] {
    omp_set_dynamic(1);
    omp_set_max_active_levels(0);
    omp_set_num_threads(7);
    ASSERT_EQ(ThreadsOfARegion(3), 1);
    {
      const ThreadTeam team(3);
      EXPECT_EQ(team.size(), 3);
      EXPECT_EQ(omp_get_max_threads(), 3);
      EXPECT_EQ(ThreadsOfARegion(team.size()), 3);
    }
    EXPECT_EQ(omp_get_dynamic(), 1);
    EXPECT_EQ(omp_get_max_active_levels(), 0);
    EXPECT_EQ(omp_get_max_threads(), 7);
  });
}

TEST(ThreadTeamTest, WithinARegionItIsTheCallerAlone) {
  OnAThread([] {
    omp_set_max_active_levels(2);
#pragma omp parallel num_threads(2)
    {
      const ThreadTeam team(4);
      EXPECT_EQ(team.size(), 1);
      EXPECT_EQ(omp_get_max_threads(), 1);
    }
    EXPECT_EQ(ThreadTeam(4).size(), 4);
  });
}

TEST(ThreadTeamTest, LoopsCoverTheirRangeWithWhateverTheyAreGranted) {
  OnAThread([] {
    omp_set_max_active_levels(0);
    std::vector<int> times(1000);
    std::vector<std::pair<int64_t, int64_t>> parts;
    ParallelFor(4, 1000, 1, [&](int64_t begin, int64_t end) {
      parts.emplace_back(begin, end);  // serial: no level is active
      for (int64_t i = begin; i < end; ++i) ++times[static_cast<size_t>(i)];
    });
    EXPECT_EQ(times, std::vector<int>(1000, 1));
    EXPECT_EQ(parts.size(), 4u) << "the split is that of the number asked for";
  });
}

TEST(ThreadTeamTest, StartsOnesTeam) {
  OnAThread([] {
    EXPECT_TRUE(StartTeam(4).ok());
    EXPECT_EQ(StartTeam(100000).code(), absl::StatusCode::kInvalidArgument);
  });
}
#endif

}  // namespace thread_team_test
}  // namespace apogee
