// SPDX-License-Identifier: Apache-2.0

// What ranks must have to use NCCL together.
#include "apogee/comm/process/gpus.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

namespace apogee::comm::process {
namespace gpus_test {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::vector<GpuOfRank> Ranks() {
  return {{"", "a boot1", "0000:01:00.0", "cuda:0", 22809},
          {"", "a boot1", "0000:02:00.0", "cuda:1", 22809},
          {"", "a boot2", "0000:01:00.0", "cuda:0", 22809}};
}

std::string Refusal(const std::vector<GpuOfRank>& gpus) {
  const absl::Status status = CompareGpus(gpus);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  return apogee::Message(status);
}

// Two machines of one name are two.
TEST(GpusTest, OfTheirOwn) { EXPECT_TRUE(CompareGpus(Ranks()).ok()); }

TEST(GpusTest, TwoRanksOnOne) {
  auto gpus = Ranks();
  gpus[2].machine = gpus[0].machine;
  EXPECT_THAT(Refusal(gpus),
              AllOf(HasSubstr("comm nccl: rank 0 (cuda:0) and rank 2 (cuda:0) are on one GPU, "
                              "0000:01:00.0 of machine a, and NCCL takes one rank per GPU"),
                    HasSubstr("--comm local"), HasSubstr("--comm mpi")));
}

TEST(GpusTest, NoNccl) {
  auto gpus = Ranks();
  gpus[1].error = "nccl: cannot load libnccl.so.2: no such file";
  EXPECT_THAT(Refusal(gpus),
              AllOf(HasSubstr("rank 1: nccl: cannot load libnccl.so.2"), HasSubstr("--comm mpi")));
}

TEST(GpusTest, SeveralVersions) {
  auto gpus = Ranks();
  gpus[2].nccl_version = 22105;
  EXPECT_THAT(Refusal(gpus), HasSubstr("rank 2 has NCCL 2.21.5, rank 0 2.28.9"));
}

}  // namespace gpus_test
}  // namespace apogee::comm::process
