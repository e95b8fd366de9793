// SPDX-License-Identifier: Apache-2.0

// Where a process listens, and what it does when it can take no connection.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <functional>

#include "apogee/comm/tcp/meeting.h"
#include "apogee/tests/comm/tcp/tcp_jobs.h"

namespace apogee::comm::tcp {
namespace tcp_listen_test {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

Clock::time_point In(double seconds) {
  return Clock::now() + std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

bool Answers(const std::string& host, const Socket& listener) {
  return Connect(host, ValueOrThrow(PortOf(listener)), In(1)).ok();
}

TEST(TcpListenTest, OnTheAddressThatIsAskedFor) {
  const Socket second = ValueOrThrow(Listen("127.0.0.2", 0));
  EXPECT_TRUE(Answers("127.0.0.2", second));
  EXPECT_FALSE(Answers("127.0.0.1", second));
  EXPECT_EQ(ValueOrThrow(OwnAddress(second)), "127.0.0.2");
  // A name is no less exact than a number.
  const Socket named = ValueOrThrow(Listen("localhost", 0));
  EXPECT_TRUE(IsLoopback(ValueOrThrow(OwnAddress(named))));
  EXPECT_FALSE(Answers("127.0.0.2", named));
}

TEST(TcpListenTest, OnAllInterfacesWhereTheUserSaysSo) {
  const Socket all = ValueOrThrow(Listen("0.0.0.0", 0));
  EXPECT_TRUE(Answers("127.0.0.1", all));
  EXPECT_TRUE(Answers("127.0.0.2", all));
  // Another way to write the same is no such word.
  EXPECT_THAT(Message(Listen("0", 0).status()), HasSubstr("stands for all interfaces"));
}

TEST(TcpListenTest, OnNoAddressOfAnotherMachine) {
  const absl::Status status = Listen("192.0.2.1", 0).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_EQ(Message(status), "this machine does not have the address 192.0.2.1");
}

TEST(TcpListenTest, BesideAConnection) {
  const Socket rank0 = ValueOrThrow(Listen("127.0.0.1", 0));
  const Socket socket = ValueOrThrow(Connect("127.0.0.1", ValueOrThrow(PortOf(rank0)), In(1)));
  const Socket beside = ValueOrThrow(ListenBeside(socket));
  EXPECT_EQ(ValueOrThrow(OwnAddress(beside)), ValueOrThrow(OwnAddress(socket)));
  EXPECT_TRUE(Answers("127.0.0.1", beside));
  EXPECT_FALSE(Answers("127.0.0.2", beside));
}

// Runs rank 0 in a child with a limit of open files, and `others` here. Returns the message of rank
// 0, empty where it has met the others.
std::string Rank0Under(rlim_t files, const Job& job, const std::function<void()>& others) {
  FILE* report = std::tmpfile();
  const pid_t child = fork();
  if (child == 0) {
    const rlimit limit = {.rlim_cur = files, .rlim_max = files};
    setrlimit(RLIMIT_NOFILE, &limit);
    const std::string message = Message(Meet(job).status());
    _exit(std::fwrite(message.data(), 1, message.size(), report) == message.size() &&
                  std::fflush(report) == 0
              ? 0
              : 1);
  }
  others();
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  std::rewind(report);
  char text[4096];
  const size_t bytes = std::fread(text, 1, sizeof(text), report);
  std::fclose(report);
  return std::string(text, bytes);
}

TEST(TcpListenTest, ManySilentClientsAndFewDescriptors) {
  const uint16_t port = FreePort();
  absl::Status other;
  std::vector<Socket> silent;
  const std::string message = Rank0Under(64, JobOf(0, 2, port), [&] {
    while (silent.size() < 120) {
      auto made = Connect("127.0.0.1", port, In(1));
      if (made.ok()) silent.push_back(*std::move(made));
    }
    other = Meet(JobOf(1, 2, port)).status();
  });
  EXPECT_EQ(message, "");
  EXPECT_EQ(other, absl::OkStatus());
}

TEST(TcpListenTest, NoDescriptorAtAll) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "UndefinedBehaviorSanitizer needs descriptors of its own";
#endif
  const uint16_t port = FreePort();
  // For the report, the listener and one rank; the other six find none.
  const Socket lowest(dup(0));
  const auto limit = static_cast<rlim_t>(lowest.fd()) + 4;
  std::vector<absl::Status> statuses;
  const std::string message = Rank0Under(limit, JobOf(0, 8, port, 20), [&] {
    statuses = OnRanks(8, [&](int rank) {
      return rank == 0 ? absl::OkStatus() : Meet(JobOf(rank, 8, port, 20)).status();
    });
  });
  for (size_t rank = 1; rank < statuses.size(); ++rank) EXPECT_FALSE(statuses[rank].ok());
  // On a busy machine rank 0 drops ranks that have called but are slow to prove themselves. Then no
  // connection is left to wait for, and rank 0 says so at the end of its time.
  EXPECT_THAT(message, AnyOf(AllOf(HasSubstr("rank 0 cannot take the connection of rank "),
                                   HasSubstr("of 8 (accept: Too many open files) after 5.")),
                             HasSubstr("dropped because this process had no free descriptor")));
  EXPECT_THAT(message, HasSubstr("raise the limit of open files (ulimit -n)"));
}

}  // namespace tcp_listen_test
}  // namespace apogee::comm::tcp
