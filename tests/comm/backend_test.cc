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

  static Backend Choose(const char* comm, const char* device, int processes, int ranks = 0) {
    return ValueOrThrow(
        ChooseBackend({.num_ranks = ranks, .device = device, .comm = comm}, processes));
  }
  static std::string Refusal(const char* comm, const char* device, int processes, int ranks = 0) {
    const absl::Status status =
        ChooseBackend({.num_ranks = ranks, .device = device, .comm = comm}, processes).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << comm;
    return Message(status);
  }
};

TEST_F(BackendTest, AutoIsWhatTheRanksAre) {
  EXPECT_EQ(Choose("auto", "cpu", 1), Backend::kLocal);
  EXPECT_EQ(Choose("auto", "cuda", 1), Backend::kLocal);
  EXPECT_EQ(Choose("auto", "cpu", 4), Backend::kMpi);
  EXPECT_EQ(Choose("auto", "cuda", 4), Backend::kNccl);
  EXPECT_EQ(Choose("auto", "cuda:1", 4), Backend::kNccl);
}

TEST_F(BackendTest, ByName) {
  EXPECT_EQ(Choose("local", "cuda", 1, 4), Backend::kLocal);
  EXPECT_EQ(Choose("mpi", "cpu", 4), Backend::kMpi);
  EXPECT_EQ(Choose("mpi", "cuda", 4), Backend::kMpi);
  EXPECT_EQ(Choose("nccl", "cuda", 4), Backend::kNccl);
}

TEST_F(BackendTest, WhatCannotBe) {
  EXPECT_THAT(Refusal("gloo", "cpu", 1), HasSubstr("comm 'gloo': expected auto, local"));
  EXPECT_THAT(Refusal("", "cpu", 1), HasSubstr("comm '': expected"));
  EXPECT_THAT(Refusal("auto", "gpu", 1), HasSubstr("device 'gpu'"));
  EXPECT_THAT(Refusal("local", "cpu", 4), HasSubstr("mpirun or srun started 4; start the program"));
  EXPECT_THAT(Refusal("mpi", "cpu", 1, 4), HasSubstr("this process was started alone"));
  EXPECT_THAT(Refusal("nccl", "cuda", 1, 4),
              HasSubstr("start it with mpirun -np N or srun, or without MPI with apogee run"));
  EXPECT_THAT(Refusal("nccl", "cpu", 4), HasSubstr("but device is cpu; use device cuda"));
}

// What the environment says decides, and neither stands for the other.
TEST_F(BackendTest, ProcessesWithoutMpi) {
  const Environment rank("APOGEE_RANK", "0"), size("APOGEE_NUM_RANKS", "4"),
      address("APOGEE_ADDRESS", "node1:29400");
  EXPECT_EQ(Choose("auto", "cpu", 4), Backend::kTcp);
  EXPECT_EQ(Choose("tcp", "cuda", 4), Backend::kTcp);
  EXPECT_EQ(Choose("auto", "cuda", 4), Backend::kNccl);
  EXPECT_EQ(Choose("nccl", "cuda", 4), Backend::kNccl);
  EXPECT_THAT(Refusal("mpi", "cpu", 4),
              HasSubstr("comm mpi is for processes of mpirun or srun, but "
                        "`apogee run` (or another starter that sets APOGEE_NUM_RANKS) "
                        "started these; use comm tcp or auto"));
  EXPECT_THAT(Refusal("local", "cpu", 4), HasSubstr("started 4; start the program without it, or "
                                                    "use comm tcp or nccl"));
}

TEST_F(BackendTest, ProcessesOfMpirunAreNotOfTcp) {
  setenv("OMPI_COMM_WORLD_SIZE", "4", 1);
  EXPECT_THAT(Refusal("tcp", "cpu", 4), HasSubstr("comm tcp is for processes of apogee run, but "
                                                  "mpirun or srun started these; use comm mpi"));
}

// mpirun -np 1: as good as none, with any backend.
TEST_F(BackendTest, OneProcessOfMpirun) {
  setenv("OMPI_COMM_WORLD_SIZE", "1", 1);
  EXPECT_EQ(Choose("mpi", "cpu", 1), Backend::kLocal);
  EXPECT_EQ(Choose("nccl", "cuda", 1, 1), Backend::kLocal);
  EXPECT_THAT(Refusal("nccl", "cuda", 1, 2), HasSubstr("started alone"));
}

}  // namespace backend_test
}  // namespace apogee::comm
