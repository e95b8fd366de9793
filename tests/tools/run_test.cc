// SPDX-License-Identifier: Apache-2.0

// `apogee run`: what the ranks get, what the command returns, and that no rank stays behind.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <thread>

#include "apogee/tests/support/environment.h"
#include "apogee/tests/support/process_table.h"
#include "apogee/tests/support/program.h"

namespace apogee {
namespace run_test {

using ::apogee::testing::NumProcessesWith;
using ::apogee::testing::ProgramResult;
using ::apogee::testing::RunProgram;
using ::apogee::testing::TempDir;
using ::testing::AllOf;
using ::testing::HasSubstr;

// A process that was killed, and is no child of the command's, takes a moment to be gone.
int NumLeft(const std::string& words) {
  for (int i = 0; i < 100 && NumProcessesWith(words) > 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return NumProcessesWith(words);
}

class RunTest : public ::testing::Test {
 protected:
  // A script for every rank, in which $R is its number.
  ProgramResult Script(int ranks, const std::string& script, const std::string& flags = "") {
    const auto start = std::chrono::steady_clock::now();
    const ProgramResult result = RunProgram(
        APOGEE_COMMAND,
        "run -n " + std::to_string(ranks) + " " + flags + " sh -c 'R=$APOGEE_RANK; " + script + "'",
        dir_);
    seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return result;
  }
  TempDir dir_;
  double seconds_ = 0;
};

TEST_F(RunTest, WhatRanksGet) {
  const ProgramResult result = Script(
      3,
      "echo $R $APOGEE_NUM_RANKS $APOGEE_ADDRESS $APOGEE_JOB_TOKEN ${APOGEE_LISTEN_FD:+first} "
      ">" +
          (dir_ / "rank") + "$R; cat");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  std::string first = testing::ReadFile(dir_ / "rank0");
  EXPECT_THAT(first, HasSubstr("0 3 127.0.0.1:"));
  EXPECT_THAT(first, HasSubstr(" first\n"));
  first.resize(first.size() - 7);
  for (const char* rank : {"1", "2"}) {
    EXPECT_EQ(testing::ReadFile(dir_ / "rank" + rank), rank + first.substr(1) + "\n");
  }
  EXPECT_EQ(first.size() - first.rfind(' '), 33u) << "a token of 128 bits: " << first;
  const std::string before = first;
  Script(1, "echo $APOGEE_JOB_TOKEN");
  EXPECT_THAT(before, ::testing::Not(HasSubstr(testing::ReadFile(dir_ / "stdout"))));
}

TEST_F(RunTest, ArgumentsAreTheProgramsOwn) {
  const ProgramResult result =
      RunProgram(APOGEE_COMMAND, "run -n 1 printf '%s|' -n 2 --help 'a b' --", dir_);
  EXPECT_EQ(result.out, "-n|2|--help|a b|--|");
}

TEST_F(RunTest, SeparatorBeforeTheProgram) {
  const ProgramResult result = Script(2, "echo $R $0 $1; exit $R", "--grace 5 --");
  EXPECT_THAT(result.out, AllOf(HasSubstr("0 sh"), HasSubstr("1 sh")));
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(RunProgram(APOGEE_COMMAND, "run -n 1 -- echo -- a", dir_).out, "-- a\n");
  EXPECT_EQ(RunProgram(APOGEE_COMMAND, "run --ranks=1 echo -- a", dir_).out, "-- a\n");
}

TEST_F(RunTest, TheFirstFailureIsReturned) {
  const ProgramResult result = Script(3, "[ $R = 1 ] && exit 3; sleep 0.3; exit 4");
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_EQ(result.err, "apogee run: rank 1 exited with 3\n");
  EXPECT_EQ(Script(2, "[ $R = 0 ] && kill -SEGV $$; exit 0").exit_code, 128 + SIGSEGV);
  EXPECT_THAT(testing::ReadFile(dir_ / "stderr"), HasSubstr("rank 0 was ended by signal 11"));
}

TEST_F(RunTest, OthersAreEndedAfterTheGrace) {
  const ProgramResult result = Script(2, "[ $R = 1 ] && exit 5; exec sleep 61.25", "--grace 0.5");
  EXPECT_EQ(result.exit_code, 5);
  EXPECT_THAT(result.err, HasSubstr("rank 0 has not ended by itself, gets SIGTERM"));
  EXPECT_GE(seconds_, 0.5);
  EXPECT_LT(seconds_, 30);
  EXPECT_EQ(NumLeft("sleep 61.25"), 0);
}

TEST_F(RunTest, OneThatIgnoresSigtermOrIsStoppedIsKilled) {
  EXPECT_EQ(Script(2, "[ $R = 1 ] && exit 5; trap \"\" TERM; sleep 61.5", "--grace 0.2").exit_code,
            5);
  EXPECT_EQ(NumLeft("sleep 61.5"), 0);
  EXPECT_EQ(Script(2, "[ $R = 1 ] && exit 6; kill -STOP $$", "--grace 0.2").exit_code, 6);
  EXPECT_LT(seconds_, 30);
}

// The job is aborted: no grace of seconds.
TEST_F(RunTest, AnAbortedJobEndsSoon) {
  EXPECT_EQ(Script(2, "[ $R = 1 ] && exit 70; exec sleep 61.75", "--grace 40").exit_code, 70);
  EXPECT_LT(seconds_, 20);
}

TEST_F(RunTest, SignalsArePassedOn) {
  for (const std::string signal : {"TERM", "INT"}) {
    const ProgramResult result = RunProgram(
        "",
        "(sleep 1; kill -" + signal + " $(cat " + (dir_ / "pid") + ")) & " + "sh -c 'echo $$ >" +
            (dir_ / "pid") + "; exec " APOGEE_COMMAND " run -n 2 sh -c \"trap \\\"exit 9\\\" " +
            signal + "; while :; do sleep 0.05; done\"'",
        dir_);
    EXPECT_EQ(result.exit_code, 9) << signal << result.err;
  }
}

// As Ctrl-Z and `fg` do. The shell says the states of the command and of both ranks, and whether
// the ranks write anything.
TEST_F(RunTest, RanksStopAndGoOnWithTheCommand) {
  const std::string script = R"sh(
    "$@" run -n 2 sh -c 'echo $$ >pid$APOGEE_RANK
                         while :; do echo >>out$APOGEE_RANK; sleep 0.02; done' &
    command=$!
    # A shell whose child is stopped before its exec cannot stop before that has gone on: D.
    state() { sed 's/.*) //; s/ .*//; s/D/T/' /proc/$1/stat; }
    states() { echo $(state $command) $(state $(cat pid0)) $(state $(cat pid1)); }
    lines() { cat out0 out1 | wc -l; }
    await() { i=0; until eval "$1" || [ $i = 500 ]; do i=$((i + 1)); sleep 0.02; done; }
    await '[ -s out0 ] && [ -s out1 ]'
    kill -TSTP $command
    await '[ "$(states)" = "T T T" ]'
    states
    before=$(lines)
    sleep 0.3
    [ $(lines) = $before ] && echo silent
    kill -CONT $command
    await '[ $(lines) -gt $((before + 4)) ]'
    [ $(lines) -gt $((before + 4)) ] && echo again
    kill -TERM $command
    wait $command
    echo $?
  )sh";
  const ProgramResult result = RunProgram(
      "cd " + dir_.path() + ";", "sh " + dir_.Write("script", script) + " " + APOGEE_COMMAND, dir_);
  EXPECT_EQ(result.out, "T T T\nsilent\nagain\n143\n") << result.err;
}

// It can say nothing any more.
TEST_F(RunTest, RanksEndWithTheCommand) {
  RunProgram("",
             "sh -c 'echo $$ >" + (dir_ / "pid") +
                 "; exec " APOGEE_COMMAND " run -n 2 sleep 62.25' & sleep 1; kill -KILL $(cat " +
                 (dir_ / "pid") + ")",
             dir_);
  EXPECT_EQ(NumLeft("sleep 62.25"), 0);
}

TEST_F(RunTest, WrongUse) {
  EXPECT_THAT(RunProgram(APOGEE_COMMAND, "run -n 2", dir_).err, HasSubstr("name the program"));
  EXPECT_EQ(RunProgram(APOGEE_COMMAND, "run -n 2", dir_).exit_code, 2);
  EXPECT_EQ(RunProgram(APOGEE_COMMAND, "run true", dir_).exit_code, 2);
  for (const char* ranks : {"0", "-1", "two", "5000"}) {
    EXPECT_EQ(RunProgram(APOGEE_COMMAND, std::string("run -n ") + ranks + " true", dir_).exit_code,
              2)
        << ranks;
  }
  const ProgramResult none = RunProgram(APOGEE_COMMAND, "run -n 2 no_such_program", dir_);
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_THAT(none.err,
              AllOf(HasSubstr("cannot start 'no_such_program'"), HasSubstr("No such file")));
}

}  // namespace run_test
}  // namespace apogee
