// SPDX-License-Identifier: Apache-2.0

// Flight records: what a launch that fails leaves behind, and one that does not.
#include "apogee/comm/failure/flight_record.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "apogee/tests/support/files/shared_temp_dir.h"
#include "apogee/tests/support/launch_ranks.h"

namespace apogee::comm {
namespace flight_record_test {

using ::apogee::testing::LaunchRanks;
using ::apogee::testing::NumProcesses;
using ::apogee::testing::ReadFile;
using ::apogee::testing::SharedTempDir;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;

Json Record(const std::string& dir, int rank) {
  return Json::parse(ReadFile(dir + "/rank" + std::to_string(rank) + ".json"));
}

Tensor Buffer(World& world) { return Tensor::Zeros({100}, DType::kF32, world.context()); }

void MeetProcesses() {
  if (NumProcesses() > 1) apogee::testing::MeetAllProcesses();
}

TEST(FlightRecordTest, AFailedLaunchLeavesOnePerRank) {
  const SharedTempDir dir;
  const std::string records = dir.path() + "/new/records";
  const absl::Status status = LaunchRanks(
      {.num_ranks = 3, .threads_per_rank = 1, .timeout_seconds = 0.3, .flight_record_dir = records},
      [](World& world) {
        world.group()->AllReduce(Buffer(world));
        if (world.rank() != 1) {
          const GroupPtr two = world.NewGroup({2, 0});
          if (world.rank() == 2) two->Send(Buffer(world), 1);
          if (world.rank() == 0) two->Recv(Buffer(world), 0);
          world.group()->Barrier();
        } else {
          std::this_thread::sleep_for(std::chrono::milliseconds(500));
        }
      });
  EXPECT_FALSE(status.ok());
  MeetProcesses();  // all have written theirs
  for (const int rank : {0, 2}) {
    const Json record = Record(records, rank);
    EXPECT_EQ(record["rank"], rank);
    EXPECT_EQ(record["num_ranks"], 3);
    EXPECT_EQ(record["timeout_ms"], 300);
    EXPECT_THAT(record["function"], HasSubstr("failed: barrier #1 of group [0 1 2]"));
    ASSERT_EQ(record["calls"].size(), 3u);
    const Json& calls = record["calls"];
    const auto channel = [&](const Json& call) {
      return record["channels"][call["channel"].get<size_t>()];
    };
    EXPECT_EQ(calls[0]["call"], "all_reduce(sum, 100 x f32)");
    EXPECT_EQ(calls[0]["state"], "done");
    EXPECT_EQ(channel(calls[0])["group"], "[0 1 2]");
    EXPECT_THAT(channel(calls[0])["ranks"], ElementsAre(0, 1, 2));
    EXPECT_EQ(channel(calls[0])["num_calls"], 2);
    EXPECT_EQ(channel(calls[1])["group"], "[2 0]");
    EXPECT_EQ(channel(calls[1])["sender"], 2);
    EXPECT_EQ(channel(calls[1])["receiver"], 0);
    EXPECT_EQ(calls[1]["call"], rank == 2 ? "send(to 1, 100 x f32)" : "recv(from 0, 100 x f32)");
    EXPECT_EQ(calls[2]["call"], "barrier");
    EXPECT_EQ(calls[2]["sequence"], 1);
    EXPECT_EQ(calls[2]["state"], "failed");
    EXPECT_THAT(calls[2]["missing"], ElementsAre(1));
    EXPECT_GE(calls[2]["ended_ms"].get<double>() - calls[2]["called_ms"].get<double>(), 290);
  }
  const Json bad = Record(records, 1);
  EXPECT_EQ(bad["function"], "returned");
  EXPECT_EQ(bad["calls"].size(), 1u);
}

// What an earlier, larger launch has left would be taken for this one's.
TEST(FlightRecordTest, ASuccessfulLaunchLeavesNone) {
  const SharedTempDir dir;
  for (int rank = 0; rank < 4; ++rank) {
    std::ofstream(dir.path() + "/rank" + std::to_string(rank) + ".json") << "old";
  }
  std::ofstream(dir.path() + "/notes.txt") << "mine";
  MeetProcesses();
  ASSERT_TRUE(LaunchRanks({.num_ranks = 2, .threads_per_rank = 1, .flight_record_dir = dir.path()},
                          [](World& world) { world.group()->Barrier(); })
                  .ok());
  MeetProcesses();
  std::vector<std::string> left;
  for (const auto& entry : std::filesystem::directory_iterator(dir.path())) {
    left.push_back(entry.path().filename().string());
  }
  EXPECT_THAT(left, ElementsAre("notes.txt"));
}

TEST(FlightRecordTest, AFolderThatCannotBeIsRefusedBeforeAnythingRuns) {
  const SharedTempDir dir;
  std::ofstream(dir.path() + "/file") << "";
  bool ran = false;
  const absl::Status status =
      LaunchRanks({.num_ranks = 2, .flight_record_dir = dir.path() + "/file/records"},
                  [&](World&) { ran = true; });
  // A process knows of no other's folder before the launch.
  EXPECT_EQ(status.code(),
            NumProcesses() > 1 ? absl::StatusCode::kInternal : absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(status), HasSubstr("flight_record_dir"));
  EXPECT_THAT(Message(status), HasSubstr("/file/records"));
  EXPECT_FALSE(ran);
}

TEST(FlightRecordTest, KeepsTheLastCallsAndCountsAll) {
  const auto record =
      std::make_shared<FlightRecord>(0, 2, std::chrono::milliseconds(1000), std::string());
  const auto group = std::make_shared<FlightGroup>(FlightGroup{.name = "[0 1]", .ranks = {0, 1}});
  const auto other = std::make_shared<FlightGroup>(FlightGroup{.name = "\"odd\"", .ranks = {1, 0}});
  uint64_t first = 0;
  const int64_t count = 3 * static_cast<int64_t>(FlightRecord::kNumCalls);
  record->Finish(record->Call({.group = other}), "");
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t id = record->Call({.group = group, .sequence = i});
    if (i == 0) first = id;
    if (i > 0) record->Finish(id, "");
  }
  const Json under_way = Json::parse(record->ToJson());
  ASSERT_EQ(under_way["calls"].size(), FlightRecord::kNumCalls);
  EXPECT_EQ(under_way["calls"][0]["state"], "waiting");
  EXPECT_EQ(under_way["calls"][0]["sequence"], 0);
  EXPECT_EQ(under_way["calls"][1]["state"], "done");
  record->Finish(first, "");
  record->Finish(record->Call({.group = group, .sequence = count}), "");
  record->Finish(first, "its entry is gone");
  const Json json = Json::parse(record->ToJson());
  ASSERT_EQ(json["calls"].size(), FlightRecord::kNumCalls);
  for (const Json& call : json["calls"]) EXPECT_EQ(call["state"], "done");
  EXPECT_EQ(json["calls"].back()["sequence"], count);
  ASSERT_EQ(json["channels"].size(), 2u);
  for (const Json& channel : json["channels"]) {
    EXPECT_EQ(channel["num_calls"], channel["group"] == "\"odd\"" ? 1 : count + 1);
  }
}

// Nobody waits for a rank that computes, nor for one that waits.
TEST(FlightRecordTest, KnowsWhenTheFunctionWasActive) {
  FlightRecord record(0, 1, std::chrono::milliseconds(1000), "");
  const auto now = [] { return FlightRecord::Clock::now(); };
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_GE(now() - record.active_at(), std::chrono::milliseconds(50));
  {
    const FlightRecord::Waiting waiting(record);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_LT(now() - record.active_at(), std::chrono::milliseconds(40));
  }
  EXPECT_LT(now() - record.active_at(), std::chrono::milliseconds(40));
}

}  // namespace flight_record_test
}  // namespace apogee::comm
