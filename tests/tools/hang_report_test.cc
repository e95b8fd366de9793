// SPDX-License-Identifier: Apache-2.0

// apogee hang-report: names the rank that launches failed for, from the records that they leave,
// also with one of them missing; and records of anybody.
#include "apogee/tools/hang_report/hang_report.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include "apogee/comm/launch.h"
#include "apogee/tests/support/files/temp_dir.h"
#include "apogee/tests/support/tool_command.h"

namespace apogee::tools {
namespace hang_report_test {

using ::apogee::testing::Command;
using ::apogee::testing::CommandResult;
using ::apogee::testing::TempDir;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

Tensor Buffer(comm::World& world, int64_t n = 100) {
  return Tensor::Zeros({n}, DType::kF32, world.context());
}

class HangReportTest : public ::testing::Test {
 protected:
  // Runs fn on `num_ranks` ranks, which must fail.
  void Launch(int num_ranks, const std::function<void(comm::World&)>& fn) {
    const absl::Status status = comm::launch({.num_ranks = num_ranks,
                                              .threads_per_rank = 1,
                                              .timeout_seconds = 0.4,
                                              .flight_record_dir = dir_.path()},
                                             fn);
    EXPECT_FALSE(status.ok());
  }
  HangReport Report() { return FindCulprit(ValueOrThrow(ReadFlightFiles(dir_.path()))); }
  void Lose(int rank) {
    ASSERT_TRUE(std::filesystem::remove(dir_ / ("rank" + std::to_string(rank) + ".json")));
  }

  TempDir dir_;
};

TEST_F(HangReportTest, ARankThatStaysAway) {
  Launch(3, [](comm::World& world) {
    for (int i = 0; i < 5; ++i) world.group()->AllReduce(Buffer(world));
    if (world.rank() == 1) return std::this_thread::sleep_for(std::chrono::milliseconds(600));
    world.group()->Broadcast(Buffer(world), 2);
  });
  const HangReport report = Report();
  EXPECT_THAT(report.culprits, ElementsAre(1));
  EXPECT_THAT(report.sentence,
              AllOf(StartsWith("rank 1 did not call broadcast(root 2, 100 x f32) #5 of group "
                               "[0 1 2], for which ranks 0, 2 waited 0."),
                    HasSubstr("its function had returned")));
  ASSERT_EQ(report.by_rank.size(), 3u);
  EXPECT_THAT(report.by_rank[1],
              HasSubstr("its last call was all_reduce(sum, 100 x f32) #4 of group [0 1 2], done"));
  // Its process was killed.
  Lose(1);
  const HangReport without = Report();
  EXPECT_THAT(without.culprits, ElementsAre(1));
  EXPECT_THAT(without.sentence,
              AllOf(StartsWith("rank 1 did not call broadcast(root 2, 100 x f32) #5"),
                    HasSubstr("it has left no record")));
  EXPECT_EQ(without.by_rank[1], "rank 1: no record");
}

// One that waits is gone as well: rank 1 is still the one.
TEST_F(HangReportTest, AWitnessIsLost) {
  Launch(4, [](comm::World& world) {
    if (world.rank() == 1) return std::this_thread::sleep_for(std::chrono::milliseconds(600));
    world.group()->Barrier();
  });
  Lose(2);
  EXPECT_THAT(Report().culprits, ElementsAre(1));
}

TEST_F(HangReportTest, ARankThatThrows) {
  Launch(3, [](comm::World& world) {
    if (world.rank() == 2) throw std::runtime_error("the disk is on fire");
    world.group()->Barrier();
  });
  EXPECT_THAT(Report().sentence, AllOf(StartsWith("rank 2 did not call barrier #0"),
                                       HasSubstr("failed: the disk is on fire")));
}

TEST_F(HangReportTest, ARankThatThrowsWithoutAnyoneWaiting) {
  Launch(2, [](comm::World& world) {
    world.group()->Barrier();
    if (world.rank() == 1) throw std::runtime_error("the disk is full");
  });
  EXPECT_THAT(Report().sentence, HasSubstr("rank 1's function has failed: the disk is full"));
}

TEST_F(HangReportTest, RanksThatDisagree) {
  Launch(3, [](comm::World& world) {
    world.group()->Barrier();
    if (world.rank() == 1) return world.group()->Broadcast(Buffer(world), 0);
    world.group()->AllReduce(Buffer(world));
  });
  const HangReport report = Report();
  EXPECT_THAT(report.culprits, ElementsAre(1));
  EXPECT_THAT(report.sentence,
              StartsWith("ranks disagree on call #1 of group [0 1 2]: rank 1 called "
                         "broadcast(root 0, 100 x f32), where rank"));
}

// The first of a chain: 0 waits for 1, which waits for 2.
TEST_F(HangReportTest, AChainOfWaits) {
  Launch(3, [](comm::World& world) {
    if (world.rank() == 0) world.group()->Recv(Buffer(world), 1);
    if (world.rank() == 1) world.group()->Recv(Buffer(world), 2);
    if (world.rank() == 2) std::this_thread::sleep_for(std::chrono::milliseconds(600));
  });
  const HangReport report = Report();
  EXPECT_THAT(report.culprits, ElementsAre(2));
  EXPECT_THAT(report.sentence, StartsWith("rank 2 did not call recv(from 2, 100 x f32) #0"));
}

TEST_F(HangReportTest, ACircleOfWaits) {
  Launch(3, [](comm::World& world) {
    const int r = world.rank();
    const comm::GroupPtr own = world.NewGroup({std::min(r, (r + 1) % 3), std::max(r, (r + 1) % 3)});
    own->Barrier();  // 0 with 1, 1 with 2, 2 with 0
  });
  const HangReport report = Report();
  EXPECT_EQ(report.culprits.size(), 3u);
  EXPECT_THAT(report.sentence,
              AllOf(StartsWith("a circle of waits: rank "),
                    HasSubstr("rank 0 is in barrier #0 of group [0 1] and waits for rank 1"),
                    HasSubstr("rank 2 is in barrier #0 of group [0 2] and waits for rank 0")));
}

// Calls that are too long ago to be in the record have been made all the same.
TEST_F(HangReportTest, ARankThatIsFarAhead) {
  Launch(3, [](comm::World& world) {
    if (world.rank() == 2) return std::this_thread::sleep_for(std::chrono::milliseconds(900));
    const comm::GroupPtr two = world.NewGroup({0, 1});
    const auto work = world.group()->BarrierAsync();
    for (int i = 0; i < 400; ++i) two->Barrier();
    work->Wait();
  });
  const HangReport report = Report();
  EXPECT_THAT(report.culprits, ElementsAre(2));
}

TEST_F(HangReportTest, TheCommand) {
  Launch(2, [](comm::World& world) {
    if (world.rank() == 0) return;
    world.group()->Barrier();
  });
  const CommandResult result = Command("hang-report " + dir_.path());
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.out, AllOf(StartsWith("rank 0 did not call barrier #0 of group [0 1]"),
                                HasSubstr("\nrank 1: function failed: ")));
  const TempDir empty;
  EXPECT_THAT(Command("hang-report " + empty.path()).out, HasSubstr("no flight records"));
  EXPECT_EQ(Command("hang-report " + empty.path()).code, 2);
  EXPECT_EQ(Command("hang-report " + empty.path() + "/none").code, 2);
}

TEST(FlightFilesTest, RecordsOfAnybody) {
  const std::string good =
      R"({"format":"apogee flight record","version":1,"rank":0,"num_ranks":2,"host":"h",)"
      R"("function":"running","age_ms":5.5,)"
      R"("channels":[{"group":"[0 1]","ranks":[0,1],"sender":-1,"receiver":-1,"num_calls":1}],)"
      R"("calls":[{"channel":0,"sequence":0,"call":"barrier","state":"waiting","called_ms":1}]})";
  const auto file = ParseFlightFile(good, "f");
  ASSERT_TRUE(file.ok()) << Message(file.status());
  EXPECT_EQ(file->calls[0].ended_ms, 5.5);
  const auto problem = [&](const std::string& from, const std::string& to) {
    std::string bad = good;
    bad.replace(bad.find(from), from.size(), to);
    return Message(ParseFlightFile(bad, "f").status());
  };
  EXPECT_EQ(problem("\"version\":1", "\"version\":2"), "f: \"version\" must be 1");
  EXPECT_THAT(problem("flight record", "trace"), HasSubstr("\"format\" must be"));
  EXPECT_EQ(problem("\"rank\":0", "\"rank\":2"), "f: \"rank\" must be a whole number from 0 to 1");
  EXPECT_EQ(problem("\"rank\":0", "\"rank\":-1"), "f: \"rank\" must be a whole number from 0 to 1");
  EXPECT_EQ(problem("\"channel\":0", "\"channel\":1"),
            "f: call 0: \"channel\" must be a whole number from 0 to 0");
  EXPECT_EQ(problem("\"channel\":0,", ""), "f: call 0: \"channel\" is missing");
  EXPECT_EQ(problem("\"waiting\"", "\"asleep\""),
            "f: call 0: \"state\" must be waiting, moving, done or failed");
  EXPECT_EQ(problem("\"waiting\"", "7"), "f: call 0: \"state\" must be a text");
  EXPECT_EQ(problem("[0,1]", "[0,-1]"), "f: channel 0: \"ranks\" must be a list of ranks");
  EXPECT_EQ(problem("[0,1]", "[0,1e3]"), "f: channel 0: \"ranks\" must be a list of ranks");
  EXPECT_EQ(problem("[0,1]", "{}"), "f: channel 0: \"ranks\" must be a list");
  EXPECT_EQ(problem("\"called_ms\":1", "\"called_ms\":-1"),
            "f: call 0: \"called_ms\" must be a time in ms");
  EXPECT_EQ(problem("]}", "]"), "f: this is no JSON");
  EXPECT_EQ(Message(ParseFlightFile("[]", "f").status()), "f: the record must be an object");
  EXPECT_THAT(Message(ParseFlightFile(std::string(100000, '['), "f").status()), HasSubstr("f: "));
}

TEST(FlightFilesTest, RecordsOfSeveralLaunches) {
  const TempDir dir;
  const auto write = [&](int file, int rank, int num_ranks) {
    dir.Write("rank" + std::to_string(file) + ".json",
              R"({"format":"apogee flight record","version":1,"rank":)" + std::to_string(rank) +
                  ",\"num_ranks\":" + std::to_string(num_ranks) +
                  R"(,"host":"h","function":"running","age_ms":1,"channels":[],"calls":[]})");
  };
  write(0, 0, 2);
  write(1, 1, 3);
  EXPECT_THAT(Message(ReadFlightFiles(dir.path()).status()),
              HasSubstr("a launch of 3 ranks, where other records are of 2"));
  write(1, 0, 2);
  EXPECT_THAT(Message(ReadFlightFiles(dir.path()).status()),
              HasSubstr("this is the record of rank 0; it was renamed"));
  write(1, 1, 2);
  dir.Write("rank.json", "x");
  dir.Write("rank1x.json", "x");
  dir.Write("rank-1.json", "x");
  EXPECT_TRUE(ReadFlightFiles(dir.path()).ok());
}

}  // namespace hang_report_test
}  // namespace apogee::tools
