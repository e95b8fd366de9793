// SPDX-License-Identifier: Apache-2.0

// What the environment says of a job without MPI, and what it must not say.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <memory>

#include "apogee/comm/launch.h"
#include "apogee/comm/tcp/job.h"
#include "apogee/tests/support/environment.h"

namespace apogee::comm::tcp {
namespace tcp_job_test {

using ::apogee::testing::Environment;
using ::testing::AllOf;
using ::testing::HasSubstr;

class TcpJobTest : public ::testing::Test {
 protected:
  void Set(const char* name, const char* value) {
    set_.push_back(std::make_unique<Environment>(name, value));
  }
  void SetAll(const char* rank, const char* size, const char* address) {
    set_.clear();
    Set("APOGEE_RANK", rank);
    Set("APOGEE_NUM_RANKS", size);
    Set("APOGEE_ADDRESS", address);
  }
  static std::string Refusal() {
    const absl::Status status = JobInEnvironment().status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return Message(status);
  }
  std::vector<std::unique_ptr<Environment>> set_;
};

TEST_F(TcpJobTest, None) {
  EXPECT_EQ(ValueOrThrow(JobInEnvironment()).has_value(), false);
  Set("APOGEE_JOB_TOKEN", "secret");  // says nothing alone
  EXPECT_EQ(ValueOrThrow(JobInEnvironment()).has_value(), false);
}

TEST_F(TcpJobTest, All) {
  SetAll("2", "4", "node1:29400");
  Set("APOGEE_JOB_TOKEN", "secret");
  Set("APOGEE_CONNECT_TIMEOUT", "7");
  const Job job = ValueOrThrow(JobInEnvironment()).value();
  EXPECT_EQ(job.rank, 2);
  EXPECT_EQ(job.size, 4);
  EXPECT_EQ(job.host, "node1");
  EXPECT_EQ(job.port, 29400);
  EXPECT_EQ(job.token, "secret");
  EXPECT_EQ(job.listener, std::nullopt);
  EXPECT_EQ(job.timeout, std::chrono::seconds(7));
  SetAll("0", "1", "[::1]:1");
  EXPECT_EQ(ValueOrThrow(JobInEnvironment())->host, "::1");
  EXPECT_EQ(ValueOrThrow(JobInEnvironment())->Address(), "[::1]:1");
}

TEST_F(TcpJobTest, SomeAreMissing) {
  Set("APOGEE_RANK", "1");
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("APOGEE_RANK is set and APOGEE_NUM_RANKS, APOGEE_ADDRESS "
                                         "is not; set all three, or none"),
                               HasSubstr("apogee run -n N")));
  Set("APOGEE_ADDRESS", "node1:1");
  EXPECT_THAT(Refusal(), HasSubstr("APOGEE_RANK, APOGEE_ADDRESS is set and APOGEE_NUM_RANKS is"));
  // A launch says the same.
  EXPECT_THAT(Message(StartedProcesses().status()), HasSubstr("APOGEE_NUM_RANKS is not; set all"));
}

TEST_F(TcpJobTest, Garbled) {
  for (const char* size : {"", "0", "-1", "four", "4 ", "4097", "99999999999"}) {
    SetAll("0", size, "node1:29400");
    EXPECT_THAT(Refusal(), HasSubstr("APOGEE_NUM_RANKS is '" + std::string(size) +
                                     "'; it must be the number of ranks, 1 to 4096"));
  }
  for (const char* rank : {"", "-1", "4", "1x"}) {
    SetAll(rank, "4", "node1:29400");
    EXPECT_THAT(Refusal(), HasSubstr("APOGEE_RANK is '" + std::string(rank) +
                                     "'; it must be this "
                                     "process' rank, below APOGEE_NUM_RANKS, 0 to 3"));
  }
  for (const char* address : {"", "node1", "29400", ":29400", "::1:29400"}) {
    SetAll("0", "4", address);
    EXPECT_THAT(Refusal(), HasSubstr("'; it must be where rank 0 listens, host:port"));
  }
  for (const char* address : {"node1:", "node1:0", "node1:65536", "node1:http", "node1:-1"}) {
    SetAll("0", "4", address);
    EXPECT_THAT(Refusal(), HasSubstr("with a port that is a number, 1 to 65535"));
  }
  SetAll("0", "4", "node1:29400");
  Set("APOGEE_JOB_TOKEN", std::string(257, 'x').c_str());
  EXPECT_THAT(Refusal(), HasSubstr("APOGEE_JOB_TOKEN has 257 bytes; it must have at most 256"));
  SetAll("0", "4", "node1:29400");
  Set("APOGEE_LISTEN_FD", "x");
  EXPECT_THAT(Refusal(), HasSubstr("APOGEE_LISTEN_FD is 'x'"));
  SetAll("0", "4", "node1:29400");
  Set("APOGEE_CONNECT_TIMEOUT", "0");
  EXPECT_THAT(Refusal(), HasSubstr("how many seconds the ranks wait for each other"));
}

TEST_F(TcpJobTest, NotUnderMpirun) {
  SetAll("0", "4", "node1:29400");
  Set("OMPI_COMM_WORLD_SIZE", "4");
  const absl::Status status = StartedProcesses().status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(Message(status),
              HasSubstr("mpirun or srun has started this process, and APOGEE_RANK"));
}

// One process is as good as none: nothing listens.
TEST_F(TcpJobTest, OneRank) {
  SetAll("0", "1", "no.such.host.invalid:29400");
  EXPECT_EQ(ValueOrThrow(StartedProcesses()).size, 1);
  EXPECT_TRUE(
      launch({.comm = Backend::kTcp}, [](World& world) { EXPECT_EQ(world.size(), 1); }).ok());
}

}  // namespace tcp_job_test
}  // namespace apogee::comm::tcp
