// SPDX-License-Identifier: Apache-2.0

// How the processes of a job find each other, and what they are told when they cannot.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <chrono>

#include "apogee/comm/tcp/hello.h"
#include "apogee/comm/tcp/meeting.h"
#include "apogee/tests/comm/tcp/tcp_jobs.h"

namespace apogee::comm::tcp {
namespace tcp_meeting_test {

using ::testing::AllOf;
using ::testing::HasSubstr;

absl::Status MeetAndTalk(const Job& job) {
  APOGEE_ASSIGN_OR_RETURN(const Mesh mesh, Meet(job));
  for (int peer = 0; peer < job.size; ++peer) {
    if (peer == job.rank) continue;
    const Socket& socket = mesh.peers[static_cast<size_t>(peer)];
    APOGEE_RETURN_IF_ERROR(WriteAll(socket, std::to_string(job.rank), Clock::now()));
    const auto deadline = Clock::now() + std::chrono::seconds(10);
    APOGEE_ASSIGN_OR_RETURN(const std::string said, ReadExactly(socket, 1, deadline));
    if (said != std::to_string(peer)) return InvalidArgument(peer, " is ", said);
    if (mesh.machines[static_cast<size_t>(peer)] != mesh.machines[0]) {
      return InvalidArgument("another machine");
    }
  }
  return absl::OkStatus();
}

TEST(TcpMeetingTest, EverybodyMeetsEverybody) {
  for (const int size : {2, 3, 7}) {
    const uint16_t port = FreePort();
    const auto oks = OnRanks(size, [&](int rank) -> absl::Status {
      // The ranks come in another order.
      std::this_thread::sleep_for(std::chrono::milliseconds(20 * (size - rank)));
      return MeetAndTalk(JobOf(rank, size, port));
    });
    for (const absl::Status& status : oks) EXPECT_TRUE(status.ok()) << size << ": " << status;
  }
}

TEST(TcpMeetingTest, AtEveryKindOfAddress) {
  for (const char* host : {"127.0.0.2", "localhost", "0.0.0.0", "::1", "::"}) {
    const auto probe = Listen(host, 0);
    if (!probe.ok()) {
      EXPECT_NE(std::string(host).find(':'), std::string::npos) << host << probe.status();
      continue;  // no IPv6 here
    }
    const uint16_t port = FreePort();
    const auto oks = OnRanks(3, [&](int rank) -> absl::Status {
      Job job = JobOf(rank, 3, port);
      job.host = host;
      job.token = "";
      return MeetAndTalk(job);
    });
    for (const absl::Status& status : oks) EXPECT_TRUE(status.ok()) << host << ": " << status;
  }
}

TEST(TcpMeetingTest, ARankThatNeverComesIsNamedOnAll) {
  const uint16_t port = FreePort();
  const auto statuses = OnRanks(5, [&](int rank) -> absl::Status {
    if (rank == 2 || rank == 4) return absl::OkStatus();
    return Meet(JobOf(rank, 5, port, 0.5)).status();
  });
  for (const size_t rank : {0u, 1u, 3u}) {
    EXPECT_TRUE(absl::IsUnavailable(statuses[rank])) << rank;
    EXPECT_THAT(Message(statuses[rank]),
                AllOf(HasSubstr("rank 2, 4 of 5 did not connect to rank 0 at 127.0.0.1:"),
                      HasSubstr("within 0.5 s; start all ranks")));
  }
}

TEST(TcpMeetingTest, TwoProcessesOfOneRank) {
  const uint16_t port = FreePort();
  const auto statuses = OnRanks(
      4, [&](int number) { return Meet(JobOf(number == 3 ? 1 : number, 4, port)).status(); });
  for (const size_t rank : {0u, 1u, 3u}) {
    EXPECT_TRUE(absl::IsInvalidArgument(statuses[rank])) << statuses[rank];
    EXPECT_THAT(Message(statuses[rank]), HasSubstr("two processes were started as rank 1"));
  }
}

TEST(TcpMeetingTest, OtherNumbersOfRanks) {
  const uint16_t port = FreePort();
  const auto statuses =
      OnRanks(2, [&](int rank) { return Meet(JobOf(rank, rank == 0 ? 2 : 3, port)).status(); });
  for (const absl::Status& status : statuses) {
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(Message(status),
                HasSubstr("rank 1 was started with APOGEE_NUM_RANKS=3, rank 0 with 2"));
  }
}

TEST(TcpMeetingTest, AnAddressInUse) {
  const Socket other = ValueOrThrow(Listen("127.0.0.1", 0));
  const uint16_t port = ValueOrThrow(PortOf(other));
  const absl::Status status = Meet(JobOf(0, 2, port)).status();
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_THAT(Message(status), AllOf(HasSubstr("rank 0 cannot listen on port"),
                                     HasSubstr("in use; choose a port that is free")));
}

TEST(TcpMeetingTest, AnAddressOfAnotherMachine) {
  Job job = JobOf(0, 2, FreePort());
  job.host = "192.0.2.1";  // for documentation: no machine has it
  const absl::Status status = Meet(job).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(Message(status), AllOf(HasSubstr("rank 0 cannot listen at APOGEE_ADDRESS=192.0.2.1:"),
                                     HasSubstr("this machine does not have the address 192.0.2.1"),
                                     HasSubstr("give the address of a network interface")));
  job.host = "no.such.host.invalid";
  EXPECT_THAT(Message(Meet(job).status()), HasSubstr("the host's address is not found"));
}

// As on machines whose own name is an address of the loopback interface in /etc/hosts.
TEST(TcpMeetingTest, ANameThatOtherMachinesCannotCall) {
  Job job = JobOf(0, 2, FreePort(), 0.2);
  job.host = "ip6-localhost";
  if (!Listen(job.host, 0).ok()) GTEST_SKIP() << "no such name here";
  EXPECT_THAT(Message(Meet(job).status()),
              AllOf(HasSubstr("rank 1 of 2 did not connect"),
                    HasSubstr("'ip6-localhost' has the address ::1 of the loopback interface, "
                              "which other machines cannot call")));
}

TEST(TcpMeetingTest, NobodyListens) {
  const absl::Status status = Meet(JobOf(1, 2, FreePort(), 0.4)).status();
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_THAT(Message(status),
              AllOf(HasSubstr("rank 1 cannot connect to rank 0 at APOGEE_ADDRESS="),
                    HasSubstr("is rank 0 started there")));
}

TEST(TcpMeetingTest, AHostThatIsNone) {
  Job job = JobOf(1, 2, 29400);
  job.host = "no.such.host.invalid";
  const absl::Status status = Meet(job).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(Message(status), HasSubstr("no.such.host.invalid:29400: the host's address is not"));
}

TEST(TcpMeetingTest, ADescriptorThatDoesNotListen) {
  Job job = JobOf(0, 2, FreePort());
  job.listener = 0;
  EXPECT_THAT(Message(Meet(job).status()),
              HasSubstr("APOGEE_LISTEN_FD: descriptor 0 is not a listening socket"));
}

// Another program listens there, and sends something else.
TEST(TcpMeetingTest, WhatListensIsNoRank) {
  const Socket other = ValueOrThrow(Listen("127.0.0.1", 0));
  const uint16_t port = ValueOrThrow(PortOf(other));
  std::thread server([&] {
    Socket guest;
    while (!guest.is_open()) guest = ValueOrThrow(Accept(other));
    const auto deadline = Clock::now() + std::chrono::seconds(10);
    ReadExactly(guest, sizeof(Call), deadline).IgnoreError();
    WriteAll(guest, std::string(4000, '!'), deadline).IgnoreError();
  });
  const absl::Status status = Meet(JobOf(1, 2, port)).status();
  server.join();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(Message(status), HasSubstr("is not rank 0 of this job"));
}

}  // namespace tcp_meeting_test
}  // namespace apogee::comm::tcp
