// SPDX-License-Identifier: Apache-2.0

// What is kept and fetched ahead, against an oracle that knows the whole sequence.
#include "apogee/chunk/gather_schedule.h"

#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <random>
#include <set>

namespace apogee::chunk {
namespace gather_schedule_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Acquires and releases one after the other; returns how often something was gathered.
int64_t UseAll(GatherSchedule& schedule, const std::vector<size_t>& order) {
  int64_t gathers = 0;
  for (const size_t chunk : order) {
    const GatherSchedule::Actions actions = schedule.Acquire(chunk);
    gathers += (actions.gather ? 1 : 0) + static_cast<int64_t>(actions.ahead.size());
    schedule.Release(chunk);
  }
  return gathers;
}

// The fewest gathers of unit-sized chunks in `sequence` with `room` of them at a time: dynamic
// programming over the sets that can be there.
int64_t FewestGathers(const std::vector<size_t>& sequence, size_t room) {
  std::map<std::set<size_t>, int64_t> best = {{{}, 0}};
  for (const size_t chunk : sequence) {
    std::map<std::set<size_t>, int64_t> next;
    const auto offer = [&next](const std::set<size_t>& there, int64_t cost) {
      const auto [found, fresh] = next.emplace(there, cost);
      if (!fresh) found->second = std::min(found->second, cost);
    };
    for (const auto& [there, cost] : best) {
      std::set<size_t> with = there;
      const bool fresh = with.insert(chunk).second;
      if (with.size() <= room) offer(with, cost + (fresh ? 1 : 0));
      if (with.size() <= room) continue;
      for (const size_t victim : there) {
        std::set<size_t> without = with;
        without.erase(victim);
        offer(without, cost + 1);
      }
    }
    best = std::move(next);
  }
  int64_t fewest = std::numeric_limits<int64_t>::max();
  for (const auto& [there, cost] : best) fewest = std::min(fewest, cost);
  return fewest;
}

TEST(GatherScheduleTest, NothingStaysWithoutCapacity) {
  GatherSchedule schedule({.chunk_bytes = {10, 20}});
  for (int iteration = 0; iteration < 3; ++iteration) {
    EXPECT_EQ(UseAll(schedule, {0, 1, 1, 0}), 4);
    EXPECT_FALSE(schedule.EndIteration());
  }
  EXPECT_FALSE(schedule.is_gathered(0) || schedule.is_gathered(1));
  EXPECT_EQ(schedule.peak_held_bytes(), 20);
}

TEST(GatherScheduleTest, NestedHoldersGatherOnce) {
  GatherSchedule schedule({.chunk_bytes = {10, 20}});
  EXPECT_TRUE(schedule.Acquire(0).gather);
  EXPECT_TRUE(schedule.Acquire(1).gather);
  EXPECT_FALSE(schedule.Acquire(0).gather);
  EXPECT_EQ(schedule.peak_held_bytes(), 30);
  EXPECT_THAT(schedule.Release(0), IsEmpty());
  EXPECT_THAT(schedule.Release(1), ElementsAre(1));
  EXPECT_THAT(schedule.Release(0), ElementsAre(0));
}

// Without fetching ahead a learned order gathers no more than the best that is possible.
TEST(GatherScheduleTest, GathersAsFewAsPossible) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 200; ++trial) {
    const size_t chunks = 2 + random() % 5, room = 1 + random() % chunks;
    std::vector<size_t> order(4 + random() % 10);
    for (size_t& chunk : order) chunk = random() % chunks;
    GatherSchedule schedule({.chunk_bytes = std::vector<int64_t>(chunks, 1), .max_ahead = 0});
    schedule.set_capacity_bytes(static_cast<int64_t>(room));
    UseAll(schedule, order);
    schedule.EndIteration();
    schedule.DropUnheld();
    // The iteration after it counts for what is kept at its end.
    std::vector<size_t> thrice;
    for (int i = 0; i < 3; ++i) thrice.insert(thrice.end(), order.begin(), order.end());
    int64_t gathers = 0;
    for (int i = 0; i < 3; ++i) {
      gathers += UseAll(schedule, order);
      EXPECT_FALSE(schedule.EndIteration());
    }
    EXPECT_LE(gathers, FewestGathers(thrice, room)) << "trial " << trial;
  }
}

TEST(GatherScheduleTest, CapacityHoldsForWhatIsNotHeld) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 100; ++trial) {
    std::vector<int64_t> bytes(6);
    for (int64_t& size : bytes) size = 1 + static_cast<int64_t>(random() % 40);
    GatherSchedule schedule({.chunk_bytes = bytes});
    schedule.set_capacity_bytes(60);
    std::vector<size_t> order(20);
    for (size_t& chunk : order) chunk = random() % bytes.size();
    for (int iteration = 0; iteration < 3; ++iteration) {
      std::set<size_t> there;
      for (size_t c = 0; c < bytes.size(); ++c) {
        if (schedule.is_gathered(c)) there.insert(c);
      }
      for (const size_t chunk : order) {
        const auto actions = schedule.Acquire(chunk);
        for (const size_t c : actions.drop) EXPECT_EQ(there.erase(c), 1U);
        EXPECT_EQ(actions.gather, !there.contains(chunk));
        there.insert(chunk);
        for (const size_t c : actions.ahead) EXPECT_TRUE(there.insert(c).second);
        int64_t total = 0;
        for (const size_t c : there) total += bytes[c];
        EXPECT_LE(total, 60);
        for (const size_t c : schedule.Release(chunk)) EXPECT_EQ(there.erase(c), 1U);
      }
      schedule.EndIteration();
    }
  }
}

TEST(GatherScheduleTest, FetchesTheNextOnesAhead) {
  GatherSchedule schedule({.chunk_bytes = {10, 10, 10, 10}, .max_ahead = 1});
  schedule.set_capacity_bytes(20);
  UseAll(schedule, {0, 1, 2, 3});
  schedule.EndIteration();
  schedule.DropUnheld();
  EXPECT_THAT(schedule.Acquire(0).ahead, ElementsAre(1));
  EXPECT_THAT(schedule.Release(0), IsEmpty());
  const GatherSchedule::Actions actions = schedule.Acquire(1);
  EXPECT_FALSE(actions.gather);
  EXPECT_THAT(actions.drop, ElementsAre(0));
  EXPECT_THAT(actions.ahead, ElementsAre(2));
}

// The chunk that is next would push out one that is used before it.
TEST(GatherScheduleTest, FetchingAheadDropsNothingThatIsUsedSooner) {
  GatherSchedule schedule({.chunk_bytes = {10, 10, 10}, .max_ahead = 2});
  schedule.set_capacity_bytes(20);
  UseAll(schedule, {0, 1, 2});
  schedule.EndIteration();
  schedule.DropUnheld();
  const GatherSchedule::Actions actions = schedule.Acquire(0);
  EXPECT_THAT(actions.ahead, ElementsAre(1));
  EXPECT_THAT(actions.drop, IsEmpty());
}

TEST(GatherScheduleTest, AnotherOrderIsToldAndLearned) {
  GatherSchedule schedule({.chunk_bytes = {10, 10, 10}});
  schedule.set_capacity_bytes(20);
  UseAll(schedule, {0, 1, 2});
  EXPECT_FALSE(schedule.EndIteration());
  UseAll(schedule, {0, 2, 1});
  EXPECT_TRUE(schedule.EndIteration());
  UseAll(schedule, {0, 2, 1});
  EXPECT_FALSE(schedule.EndIteration());
  UseAll(schedule, {0, 2});
  EXPECT_TRUE(schedule.EndIteration());
}

TEST(GatherScheduleTest, EvaluationsHaveAnOrderOfTheirOwn) {
  GatherSchedule schedule({.chunk_bytes = {10, 10, 10}});
  schedule.set_capacity_bytes(20);
  UseAll(schedule, {0, 1, 2, 1});
  schedule.EndIteration();
  schedule.Acquire(0);
  schedule.Release(0);
  schedule.BeginEvaluation();
  UseAll(schedule, {2, 2});
  schedule.EndEvaluation();
  UseAll(schedule, {1, 2, 1});
  EXPECT_FALSE(schedule.EndIteration());
}

TEST(GatherScheduleTest, KeptChunksStayUntilTheyChange) {
  GatherSchedule schedule({.chunk_bytes = {10, 10}, .keep = {true, false}});
  EXPECT_EQ(UseAll(schedule, {0, 1, 0, 1}), 3);
  EXPECT_THAT(schedule.DropUnheld(), ElementsAre(0));
  EXPECT_EQ(UseAll(schedule, {0}), 1);
}

TEST(GatherScheduleTest, AFailedGatherLeavesNothing) {
  GatherSchedule schedule({.chunk_bytes = {10}});
  schedule.Acquire(0);
  schedule.Forget(0);
  EXPECT_FALSE(schedule.is_gathered(0) || schedule.is_held(0));
  EXPECT_TRUE(schedule.Acquire(0).gather);
}

}  // namespace gather_schedule_test
}  // namespace apogee::chunk
