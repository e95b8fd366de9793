// SPDX-License-Identifier: Apache-2.0

// Fewer ranks than processes, and what every process learns of them.
#include "apogee/comm/some_ranks.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <bit>
#include <limits>

namespace apogee::comm {
namespace some_ranks_test {

using ::testing::HasSubstr;

std::string Own(int rank) { return std::string(static_cast<size_t>(rank) * 1000, '\0') + "end"; }

TEST(SomeRanksTest, RanksRunOnceEachAndEveryProcessGetsTheirResults) {
  for (const int num_ranks : {1, 2, 3, 4}) {
    std::vector<std::string> results(static_cast<size_t>(num_ranks));
    const absl::Status status = LaunchSome({.num_ranks = num_ranks}, [&](World& world) {
      const auto rank = static_cast<size_t>(world.rank());
      EXPECT_EQ(results[rank], "") << "ran before";
      results[rank] = Own(world.rank());
      const Tensor x = Tensor::Full({1}, DType::kF32, world.rank() + 1, world.context());
      if (world.group() != nullptr) world.group()->AllReduce(x);
      EXPECT_EQ(world.size(), num_ranks);
      EXPECT_EQ(x.Item(), num_ranks * (num_ranks + 1) / 2);
    });
    EXPECT_TRUE(status.ok()) << Message(status);
    ShareByRank(results);
    for (int r = 0; r < num_ranks; ++r) EXPECT_EQ(results[static_cast<size_t>(r)], Own(r));
  }
}

TEST(SomeRanksTest, EveryProcessHearsOfAFailure) {
  const absl::Status status = LaunchSome({.num_ranks = 2}, [](World& world) {
    if (world.rank() == 1) throw std::runtime_error("the disk is on fire");
  });
  EXPECT_EQ(Message(status), "rank 1: the disk is on fire");
}

TEST(SomeRanksTest, NumbersAreSharedBitByBit) {
  const double nan = std::bit_cast<double>(0x7ff8000000000123u);
  const double tiny = std::numeric_limits<double>::denorm_min();
  const Processes processes = ValueOrThrow(StartedProcesses());
  const auto numbers_of = [&](int rank) { return std::vector{-0.0, tiny, nan, rank + 0.1}; };
  std::vector<NamedNumbers> values(static_cast<size_t>(processes.size) + 1);
  values[static_cast<size_t>(processes.rank)] = {
      {"w " + std::to_string(processes.rank), numbers_of(processes.rank)}, {"none", {}}};
  values.back() = {{"beyond", {processes.rank + 0.0}}};
  ShareByRank(values);
  for (int r = 0; r < processes.size; ++r) {
    const NamedNumbers& got = values[static_cast<size_t>(r)];
    ASSERT_EQ(got.size(), 2u);
    EXPECT_TRUE(got.at("none").empty());
    const std::vector<double>& numbers = got.at("w " + std::to_string(r));
    ASSERT_EQ(numbers.size(), 4u);
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(std::bit_cast<uint64_t>(numbers[i]), std::bit_cast<uint64_t>(numbers_of(r)[i]));
    }
  }
  EXPECT_EQ(values.back().at("beyond")[0], processes.rank) << "no rank's, so left alone";
}

TEST(SomeRanksTest, BadOptionsAreRefused) {
  for (const LaunchOptions& bad :
       {LaunchOptions{.num_ranks = -1}, LaunchOptions{.num_ranks = 2, .threads_per_rank = -1},
        LaunchOptions{.num_ranks = 2, .timeout_seconds = 0}}) {
    const absl::Status status = LaunchSome(bad, [](World&) { FAIL() << "ran"; });
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  }
  if (ValueOrThrow(StartedProcesses()).size == 1) return;
  const absl::Status status = LaunchSome({.num_ranks = 99}, [](World&) { FAIL() << "ran"; });
  EXPECT_THAT(Message(status), HasSubstr("99 ranks are asked for"));
}

}  // namespace some_ranks_test
}  // namespace apogee::comm
