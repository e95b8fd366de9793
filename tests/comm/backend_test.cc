// SPDX-License-Identifier: Apache-2.0

// Which backend a launch gets, and what cannot be.
#include "apogee/comm/backend.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>

#include "apogee/tests/support/environment.h"

namespace apogee::comm {
namespace backend_test {

using ::apogee::testing::Environment;
using ::testing::HasSubstr;

class BackendTest : public ::testing::Test {
 protected:
  void SetUp() override { unsetenv("OMPI_COMM_WORLD_SIZE"); }
  void TearDown() override { unsetenv("OMPI_COMM_WORLD_SIZE"); }

  static Backend Choose(Backend comm, const char* device, int processes, int ranks = 0) {
    return ValueOrThrow(
        ChooseBackend({.num_ranks = ranks, .device = device, .comm = comm}, processes));
  }
  static std::string Refusal(Backend comm, const char* device, int processes, int ranks = 0) {
    const absl::Status status =
        ChooseBackend({.num_ranks = ranks, .device = device, .comm = comm}, processes).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << Name(comm);
    return Message(status);
  }
};

TEST_F(BackendTest, AutoIsWhatTheRanksAre) {
  EXPECT_EQ(Choose(Backend::kAuto, "cpu", 1), Backend::kLocal);
  EXPECT_EQ(Choose(Backend::kAuto, "cuda", 1), Backend::kLocal);
  EXPECT_EQ(Choose(Backend::kAuto, "cpu", 4), Backend::kMpi);
  EXPECT_EQ(Choose(Backend::kAuto, "cuda", 4), Backend::kNccl);
  EXPECT_EQ(Choose(Backend::kAuto, "cuda:1", 4), Backend::kNccl);
}

TEST_F(BackendTest, TextsAreReadBack) {
  for (const char* text : {"auto", "local", "mpi", "tcp", "nccl"}) {
    EXPECT_STREQ(Name(ValueOrThrow(ParseBackend(text))), text);
  }
}

TEST_F(BackendTest, ByName) {
  EXPECT_EQ(Choose(Backend::kLocal, "cuda", 1, 4), Backend::kLocal);
  EXPECT_EQ(Choose(Backend::kMpi, "cpu", 4), Backend::kMpi);
  EXPECT_EQ(Choose(Backend::kMpi, "cuda", 4), Backend::kMpi);
  EXPECT_EQ(Choose(Backend::kNccl, "cuda", 4), Backend::kNccl);
}

TEST_F(BackendTest, WhatCannotBe) {
  for (const std::string text : {"gloo", "", "LOCAL"}) {
    EXPECT_THAT(Message(ParseBackend(text).status()), HasSubstr("unknown comm \"" + text + "\""));
  }
  EXPECT_THAT(Refusal(Backend::kAuto, "gpu", 1), HasSubstr("device 'gpu'"));
  EXPECT_THAT(Refusal(Backend::kLocal, "cpu", 4),
              HasSubstr("mpirun or srun started 4; start the program"));
  EXPECT_THAT(Refusal(Backend::kMpi, "cpu", 1, 4), HasSubstr("this process was started alone"));
  EXPECT_THAT(Refusal(Backend::kNccl, "cuda", 1, 4),
              HasSubstr("start it with mpirun -np N or srun, or without MPI with apogee run"));
  EXPECT_THAT(Refusal(Backend::kNccl, "cpu", 4), HasSubstr("but device is cpu; use device cuda"));
}

// What the environment says decides, and neither stands for the other.
TEST_F(BackendTest, ProcessesWithoutMpi) {
  const Environment rank("APOGEE_RANK", "0"), size("APOGEE_NUM_RANKS", "4"),
      address("APOGEE_ADDRESS", "node1:29400");
  EXPECT_EQ(Choose(Backend::kAuto, "cpu", 4), Backend::kTcp);
  EXPECT_EQ(Choose(Backend::kTcp, "cuda", 4), Backend::kTcp);
  EXPECT_EQ(Choose(Backend::kAuto, "cuda", 4), Backend::kNccl);
  EXPECT_EQ(Choose(Backend::kNccl, "cuda", 4), Backend::kNccl);
  EXPECT_THAT(Refusal(Backend::kMpi, "cpu", 4),
              HasSubstr("comm mpi is for processes of mpirun or srun, but "
                        "`apogee run` (or another starter that sets APOGEE_NUM_RANKS) "
                        "started these; use comm tcp or auto"));
  EXPECT_THAT(Refusal(Backend::kLocal, "cpu", 4),
              HasSubstr("started 4; start the program without it, or "
                        "use comm tcp or nccl"));
}

TEST_F(BackendTest, ProcessesOfMpirunAreNotOfTcp) {
  setenv("OMPI_COMM_WORLD_SIZE", "4", 1);
  EXPECT_THAT(Refusal(Backend::kTcp, "cpu", 4),
              HasSubstr("comm tcp is for processes of apogee run, but "
                        "mpirun or srun started these; use comm mpi"));
}

// mpirun -np 1: as good as none, with any backend.
TEST_F(BackendTest, OneProcessOfMpirun) {
  setenv("OMPI_COMM_WORLD_SIZE", "1", 1);
  EXPECT_EQ(Choose(Backend::kMpi, "cpu", 1), Backend::kLocal);
  EXPECT_EQ(Choose(Backend::kNccl, "cuda", 1, 1), Backend::kLocal);
  EXPECT_THAT(Refusal(Backend::kNccl, "cuda", 1, 2), HasSubstr("started alone"));
}

}  // namespace backend_test
}  // namespace apogee::comm
