// SPDX-License-Identifier: Apache-2.0

// The fault trials' own eyes: what they must not let pass.
#include "apogee/tests/comm/faults/judge.h"

#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>

namespace apogee::comm::faults {
namespace judge_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Trial Parsed(const std::string& name) { return ValueOrThrow(Trial::Parse(name)); }

const std::string kCall = "broadcast(root 2, 384 x f32) #3 of group [0 1 2]: ";

// Rank 1 of three processes has thrown, and all went well.
Outcome Good() {
  Outcome outcome;
  outcome.exit_code = 1;
  outcome.events.push_back({.kind = "fault", .rank = 1, .text = "0 calls under way"});
  for (const int rank : {0, 2}) {
    outcome.events.push_back(
        {.kind = "threw", .rank = rank, .text = kCall + "rank 1 failed: the disk is on fire"});
  }
  for (const int rank : {0, 1, 2}) {
    outcome.events.push_back(
        {.kind = "launch", .rank = rank, .text = "rank 1: the disk is on fire"});
  }
  return outcome;
}

std::vector<std::string> JudgeException(const std::function<void(Outcome&)>& change) {
  Outcome outcome = Good();
  change(outcome);
  return Judge(Parsed("mpi/exception/broadcast/small/3/1"), outcome);
}

TEST(FaultJudgeTest, ExceptionAndWhatCanBeWrong) {
  EXPECT_THAT(JudgeException([](Outcome&) {}), IsEmpty());
  EXPECT_THAT(JudgeException([](Outcome& o) { o.events.erase(o.events.begin()); }),
              ElementsAre("the fault was not reached"));
  EXPECT_THAT(JudgeException([](Outcome& o) { o.events.erase(o.events.begin() + 2); }),
              ElementsAre("rank 2 got no error"));
  EXPECT_THAT(JudgeException([](Outcome& o) { o.events.pop_back(); }),
              ElementsAre("launch of process 2 did not return"));
  EXPECT_THAT(JudgeException([](Outcome& o) { o.exit_code = 0; }), ElementsAre("exit code 0"));
  EXPECT_THAT(JudgeException([](Outcome& o) { o.left.push_back("process 7"); }),
              ElementsAre("left behind: process 7"));
  EXPECT_THAT(JudgeException([](Outcome& o) { o.events.back().text = ""; }),
              ElementsAre("launch of process 2 returned: "));
  EXPECT_THAT(JudgeException([](Outcome& o) { o.events.back().text[5] = '0'; }),
              ElementsAre("launch of process 2 returned: rank 0: the disk is on fire"));
  for (const std::string& text : std::vector<std::string>{
           kCall + "rank 2 failed: the disk is on fire",
           "broadcast(root 2, 384 x f32) #4 of group [0 1 2]: rank 1 failed: the disk is on fire",
           "broadcast(root 0, 384 x f32) #3 of group [0 1 2]: rank 1 failed: the disk is on fire",
           "rank 1 failed: the disk is on fire", kCall + "rank 1 did not arrive"}) {
    EXPECT_THAT(JudgeException([&](Outcome& o) { o.events[1].text = text; }),
                ElementsAre("rank 0 was told: " + text));
  }
}

TEST(FaultJudgeTest, ALostProcess) {
  const Trial trial = Parsed("mpi/sigstop/send/flight/3/2");
  Outcome outcome;
  outcome.exit_code = 70;
  outcome.err = "ended with: rank 2: has not answered";
  outcome.events = {
      {.kind = "fault", .rank = 2, .text = "1 calls under way"},
      {.kind = "threw",
       .rank = 0,
       .text = "recv(from 2, 1572864 x f32) #5 of group [0 1 2]: no data has moved between this "
               "rank and rank 2 for 1.000 s"},
      {.kind = "launch", .rank = 0, .text = "rank 2: has not answered"}};
  EXPECT_THAT(Judge(trial, outcome), IsEmpty());
  outcome.exit_code = 1;
  outcome.err = "ended with: rank 22: has not answered";
  outcome.events[1].text.replace(outcome.events[1].text.find("#5"), 2, "#2");
  EXPECT_THAT(Judge(trial, outcome), ElementsAre(HasSubstr("rank 0 was told"),
                                                 "the output does not name rank 2", "exit code 1"));
}

TEST(FaultJudgeTest, BothCallsOfADisagreement) {
  const Trial trial = Parsed("threads/count/reduce/small/2/0");
  const std::string text =
      "ranks disagree on collective #3 of group: rank 0 called reduce(sum, root 1, 192 x f32) "
      "where rank 1 called reduce(sum, root 1, 384 x f32) #3 of group [0 1]; all members must";
  Outcome outcome;
  outcome.exit_code = 1;
  outcome.events = {{.kind = "fault", .rank = 0, .text = "0 calls under way"},
                    {.kind = "threw", .rank = 0, .text = text},
                    {.kind = "threw", .rank = 1, .text = text},
                    {.kind = "launch", .rank = 0, .text = text}};
  EXPECT_THAT(Judge(trial, outcome), IsEmpty());
  // The other order of the two, but a rank too many: nobody was told that rank 0 called the wrong.
  outcome.events[2].text.replace(text.find("rank 0 called"), 6, "rank 1");
  EXPECT_THAT(Judge(trial, outcome), ElementsAre(HasSubstr("rank 1 was told")));
}

TEST(FaultJudgeTest, TrialsAndSamples) {
  const std::vector<Trial> all = AllTrials();
  EXPECT_GE(all.size(), 200u);
  std::set<std::string> names;
  for (const Trial& trial : all) {
    names.insert(trial.Name());
    EXPECT_EQ(Parsed(trial.Name()).Name(), trial.Name());
  }
  EXPECT_EQ(names.size(), all.size());
  for (const size_t count : {1u, 40u}) {
    const std::vector<Trial> sample = Sample(all, count);
    EXPECT_GE(sample.size(), count);
    EXPECT_LE(sample.size(), 60u);
    std::set<std::string> seen;
    for (const Trial& trial : sample) {
      seen.insert(trial.backend + trial.fault);
      seen.insert(trial.backend + trial.collective);
      seen.insert(trial.backend + trial.size);
    }
    EXPECT_EQ(seen.size(), 6u + 2 * 9 + 3 * 9 + 3 * 3);
  }
  EXPECT_EQ(Sample(all, all.size() + 1).size(), all.size());
  for (const char* name : {"", "mpi/loop/all_reduce/small/2", "mpi/loop/all_reduce/small/2/2",
                           "mpi/loop/all_reduced/small/2/1", "mpi/looop/all_reduce/small/2/1",
                           "threads/sigstop/all_reduce/small/2/1", "mpi/loop/all_reduce/little/2/1",
                           "mpl/loop/all_reduce/small/2/1"}) {
    EXPECT_FALSE(Trial::Parse(name).ok()) << name;
  }
}

// A program that does not end is killed, and everything that it started.
TEST(FaultJudgeTest, AHang) {
  const Trial trial = Parsed("threads/loop/barrier/small/2/1");
  RunOptions options{.fault_ranks = "sh -c 'sleep 1000 & sleep 1000' "};
  options.limit_seconds = 0.3;
  const Outcome outcome = RunTrial(trial, options);
  EXPECT_TRUE(outcome.hang);
  EXPECT_EQ(outcome.exit_code, 128 + 9);
  EXPECT_THAT(outcome.left, IsEmpty());
  EXPECT_THAT(Judge(trial, outcome), ::testing::Contains("the fault was not reached"));
}

}  // namespace judge_test
}  // namespace apogee::comm::faults
