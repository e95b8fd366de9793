// SPDX-License-Identifier: Apache-2.0

// A traced launch: every collective once, on its rank's lane of its group, with its bytes; an
// untraced one records nothing.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "apogee/comm/launch.h"
#include "apogee/tests/support/files/trace_file.h"

namespace apogee::comm {
namespace trace_test {

using ::apogee::testing::TraceFile;
using ::testing::UnorderedElementsAre;

void RunTraced(int num_ranks, Trace* trace, const std::function<void(World&)>& fn) {
  OkOrThrow(launch({.num_ranks = num_ranks, .threads_per_rank = 1, .trace = trace}, fn));
}

// Whether the spans of the lane are the calls that the group counted.
void ExpectTraffic(const TraceFile& file, int rank, const std::string& lane,
                   const Traffic& traffic) {
  for (int k = 0; k < kNumCollectiveKinds; ++k) {
    const auto kind = static_cast<CollectiveKind>(k);
    int64_t calls = 0, bytes = 0;
    for (const std::string& row : file.Lanes(rank)) {
      if (row != lane && row != lane + " (2)") continue;
      for (const auto& span : file.Spans(rank, row)) {
        if (span.at("name") != CollectiveName(kind)) continue;
        EXPECT_EQ(span.at("cat"), "communication");
        ++calls;
        bytes += span.at("args").at("bytes").get<int64_t>();
      }
    }
    EXPECT_EQ(calls, traffic.calls(kind)) << lane << " " << CollectiveName(kind);
    EXPECT_EQ(bytes, traffic.bytes(kind)) << lane << " " << CollectiveName(kind);
  }
}

TEST(CommTraceTest, EveryCollectiveOnceWithItsBytes) {
  constexpr int kRanks = 3;
  Trace trace;
  std::vector<Traffic> all(kRanks), pair(kRanks), copy(kRanks);
  RunTraced(kRanks, &trace, [&](World& world) {
    Group& group = *world.group();
    const auto rank = static_cast<size_t>(world.rank());
    // Small ones run where the last rank calls, large ones on each rank's own thread.
    for (const int64_t n : {int64_t{5}, int64_t{50000}}) {
      const auto make = [&](int64_t count) {
        return Tensor::Zeros({count}, DType::kF32, world.context());
      };
      const auto first = group.AllReduceAsync(make(n));
      const auto second = group.AllReduceAsync(make(n), ReduceOp::kMax);
      first->Wait();
      second->Wait();
      group.ReduceScatter(make(n), make(n * kRanks));
      group.AllGather(make(n * kRanks), make(n));
      group.Broadcast(make(n), 1);
      group.Reduce(make(n), 2);
      group.AllToAll(make(n * kRanks), make(n * kRanks));
      if (world.rank() == 0) group.Send(make(n), 2);
      if (world.rank() == 2) group.Recv(make(n), 0);
      group.Barrier();
    }
    all[rank] = group.traffic();
    EXPECT_EQ(all[rank].total_calls(), world.rank() == 1 ? 16 : 18);

    const GroupPtr duplicate = group.Duplicate(std::chrono::seconds(60));
    duplicate->Barrier();
    copy[rank] = duplicate->traffic();
    if (world.rank() == 0) return;
    const GroupPtr two = world.NewGroup({2, 1});
    two->AllReduce(Tensor::Zeros({7}, DType::kF64, world.context()));
    pair[rank] = two->traffic();
  });
  const TraceFile file = TraceFile::Of(trace);
  for (int rank = 0; rank < kRanks; ++rank) {
    const auto r = static_cast<size_t>(rank);
    ExpectTraffic(file, rank, "communication: [0 1 2]", all[r]);
    ExpectTraffic(file, rank, "communication: [0 1 2] copy 1", copy[r]);
    ExpectTraffic(file, rank, "communication: [2 1]", pair[r]);
  }
}

TEST(CommTraceTest, RanksRecordOnLanesOfTheirOwn) {
  Trace trace;
  RunTraced(2, &trace, [&](World& world) {
    EXPECT_EQ(world.trace(), &trace);
    EXPECT_EQ(world.lane("compute"), trace.Lane(world.rank(), "compute"));
    for (int i = 0; i < 100; ++i) {
      const TraceSpan span(world.lane("compute"), "work");
      world.group()->Barrier();
    }
  });
  const TraceFile file = TraceFile::Of(trace);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(file.Spans(rank, "compute").size(), 100u);
    EXPECT_EQ(file.Spans(rank, "communication: [0 1]").size(), 100u);
    EXPECT_THAT(file.Lanes(rank), UnorderedElementsAre("compute", "communication: [0 1]"));
  }
}

// From when it runs, not from when the first rank calls; complete before Wait returns.
TEST(CommTraceTest, WaitingForPeersIsNoPartOfACollective) {
  Trace trace;
  RunTraced(2, &trace, [&](World& world) {
    if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    const Tensor tensor = Tensor::Zeros({50000}, DType::kF32, world.context());
    world.group()->AllReduce(tensor);
    const TraceSpan span(world.lane("compute"), "behind");
  });
  const TraceFile file = TraceFile::Of(trace);
  for (int rank = 0; rank < 2; ++rank) {
    const auto calls = file.Spans(rank, "communication: [0 1]");
    ASSERT_EQ(calls.size(), 1u);
    const auto begin = testing::Nanoseconds(calls[0].at("ts"));
    EXPECT_GE(begin, 50'000'000);
    EXPECT_LE(begin + testing::Nanoseconds(calls[0].at("dur")),
              testing::Nanoseconds(file.Spans(rank, "compute").at(0).at("ts")));
  }
}

TEST(CommTraceTest, WithoutATraceThereAreNoLanes) {
  RunTraced(2, nullptr, [&](World& world) {
    EXPECT_EQ(world.trace(), nullptr);
    EXPECT_EQ(world.lane("compute"), nullptr);
    world.group()->Barrier();
  });
}

}  // namespace trace_test
}  // namespace apogee::comm
