// SPDX-License-Identifier: Apache-2.0

// Connections that are none of the job's do no harm: wrong tokens, garbage, and those that say
// nothing, or only a part.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include "apogee/comm/tcp/hello.h"
#include "apogee/comm/tcp/introduction.h"
#include "apogee/comm/tcp/meeting.h"
#include "apogee/comm/tcp/reception.h"
#include "apogee/tests/comm/tcp/tcp_jobs.h"

namespace apogee::comm::tcp {
namespace tcp_strangers_test {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string CallOf(const Job& job) { return std::string(BytesOf(MakeCall(job, /*to=*/0))); }

// Reads all that comes until the other side closes.
std::string Hear(const Socket& socket) {
  std::string heard;
  for (const auto deadline = Clock::now() + std::chrono::seconds(10);;) {
    const auto byte = ReadExactly(socket, 1, deadline);
    if (!byte.ok()) return absl::IsDeadlineExceeded(byte.status()) ? "it stays open" : heard;
    heard += *byte;
  }
}

// Connects as soon as somebody listens, and says this.
Socket Say(uint16_t port, const std::string& bytes) {
  const auto deadline = Clock::now() + std::chrono::seconds(10);
  while (true) {
    auto socket = Connect("127.0.0.1", port, deadline);
    if (socket.ok()) {
      WriteAll(*socket, bytes, deadline).IgnoreError();
      return *std::move(socket);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

TEST(TcpStrangersTest, TheJobMeetsAmongThem) {
  const uint16_t port = FreePort();
  Job thief = JobOf(1, 3, port), shorter = thief, longer = thief;
  thief.token = "the tokem";
  shorter.token = "the toke";
  longer.token = "the token ";
  std::vector<Socket> strangers;
  const auto statuses = OnRanks(3, [&](int rank) {
    if (rank != 0) std::this_thread::sleep_for(std::chrono::milliseconds(100 * rank));
    if (rank == 1) {
      const std::string call = CallOf(JobOf(1, 3, port));
      std::string other_magic = call;
      other_magic[7] = '9';
      for (const std::string& bytes :
           {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(100000, '\xff'), std::string(),
            call.substr(0, 1), call.substr(0, call.size() - 1), call, CallOf(thief),
            CallOf(shorter), CallOf(longer), other_magic, std::string(sizeof(Call), '\0'),
            call + std::string(100000, '\xff')}) {
        strangers.push_back(Say(port, bytes));
        Say(port, bytes);  // and closes
      }
    }
    return Meet(JobOf(rank, 3, port)).status();
  });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
}

TEST(TcpStrangersTest, AWrongTokenIsToldByBoth) {
  const uint16_t port = FreePort();
  const auto statuses = OnRanks(2, [&](int rank) {
    Job job = JobOf(rank, 2, port, 0.5);
    if (rank == 1) job.token = "another";
    return Meet(job).status();
  });
  EXPECT_THAT(Message(statuses[0]),
              AllOf(HasSubstr("rank 1 of 2 did not connect"),
                    HasSubstr("1 connections were dropped because they did not present")));
  EXPECT_THAT(Message(statuses[1]), AllOf(HasSubstr("has dropped rank 1"),
                                          HasSubstr("APOGEE_JOB_TOKEN is not the same")));
}

// More of them than are waited for: the first make room.
TEST(TcpStrangersTest, ManyThatSayNothing) {
  Socket listener = ValueOrThrow(Listen("127.0.0.1", 0));
  const uint16_t port = ValueOrThrow(PortOf(listener));
  Reception reception(std::move(listener), JobOf(0, 3, port));
  std::vector<Socket> silent;
  for (size_t i = 0; i < Reception::kMaxWaiting + 20; ++i) {
    silent.push_back(Say(port, ""));
    // It takes one at a time.
    if (i % 20 == 0) reception.Next(Clock::now() + std::chrono::milliseconds(5)).IgnoreError();
  }
  const Socket guest = Say(port, "");
  std::thread caller([&] {
    const auto deadline = Clock::now() + std::chrono::seconds(20);
    EXPECT_EQ(Introduce(guest, JobOf(2, 3, port), 0, 1, deadline), absl::OkStatus());
  });
  const auto taken = reception.Next(Clock::now() + std::chrono::seconds(20));
  caller.join();
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_EQ(taken->rank, 2);
  EXPECT_GE(reception.num_strangers(), 20);
}

// A call that was recorded gets a challenge, and no more: not the place of one that can answer.
TEST(TcpStrangersTest, ManyThatRepeatACall) {
  Socket listener = ValueOrThrow(Listen("127.0.0.1", 0));
  const uint16_t port = ValueOrThrow(PortOf(listener));
  Reception reception(std::move(listener), JobOf(0, 3, port));
  const std::string call = CallOf(JobOf(1, 3, port));
  std::vector<Socket> repeating;
  for (size_t i = 0; i < Reception::kMaxWaiting + 20; ++i) {
    repeating.push_back(Say(port, call));
    if (i % 20 == 0) reception.Next(Clock::now() + std::chrono::milliseconds(5)).IgnoreError();
  }
  // It takes all, and hears all.
  reception.Next(Clock::now() + std::chrono::milliseconds(200)).IgnoreError();
  const Socket guest = Say(port, "");
  reception.Next(Clock::now() + std::chrono::milliseconds(50)).IgnoreError();
  std::thread caller([&] {
    const auto deadline = Clock::now() + std::chrono::seconds(20);
    EXPECT_EQ(Introduce(guest, JobOf(2, 3, port), 0, 1, deadline), absl::OkStatus());
  });
  const auto taken = reception.Next(Clock::now() + std::chrono::seconds(20));
  caller.join();
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_EQ(taken->rank, 2);
}

TEST(TcpStrangersTest, WordsThatComeInPieces) {
  Socket listener = ValueOrThrow(Listen("127.0.0.1", 0));
  const uint16_t port = ValueOrThrow(PortOf(listener));
  Reception reception(std::move(listener), JobOf(0, 3, port));
  const Job job = JobOf(1, 3, port);
  const Call call = MakeCall(job, 0);
  const std::string bytes(BytesOf(call));
  const Socket guest = Say(port, bytes.substr(0, 3));
  const auto soon = [] { return Clock::now() + std::chrono::milliseconds(50); };
  EXPECT_TRUE(absl::IsDeadlineExceeded(reception.Next(soon()).status()));
  OkOrThrow(WriteAll(guest, bytes.substr(3), soon()));
  EXPECT_TRUE(absl::IsDeadlineExceeded(reception.Next(soon()).status()));
  const auto challenge =
      FromBytes<Challenge>(ValueOrThrow(ReadExactly(guest, sizeof(Challenge), soon())));
  EXPECT_EQ(CheckChallenge(challenge, call, job), absl::OkStatus());
  const Hello hello = MakeHello(job, call, challenge, "machine", 7);
  OkOrThrow(WriteAll(guest, BytesOf(hello).substr(0, 300), soon()));
  EXPECT_TRUE(absl::IsDeadlineExceeded(reception.Next(soon()).status()));
  OkOrThrow(WriteAll(guest, BytesOf(hello).substr(300), soon()));
  const auto taken = reception.Next(Clock::now() + std::chrono::seconds(10));
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_EQ(taken->rank, 1);
  EXPECT_EQ(taken->size, 3);
  EXPECT_EQ(taken->port, 7);
  EXPECT_EQ(taken->machine, "machine");
  EXPECT_EQ(reception.num_strangers(), 0);
}

// A caller without the token gets no byte.
TEST(TcpStrangersTest, NoAnswerWithoutTheToken) {
  Socket listener = ValueOrThrow(Listen("127.0.0.1", 0));
  const uint16_t port = ValueOrThrow(PortOf(listener));
  Reception reception(std::move(listener), JobOf(0, 3, port));
  Job thief = JobOf(1, 3, port);
  thief.token = "the tokem";
  std::string older = CallOf(JobOf(1, 3, port)), changed = older;
  older.replace(6, 2, "01");
  changed[8] = 2;  // the rank
  const std::string to_other(BytesOf(MakeCall(JobOf(2, 3, port), /*to=*/1)));
  const std::vector<std::string> all = {"GET / HTTP/1.1", CallOf(thief), older, changed, to_other};
  for (const std::string& bytes : all) {
    const Socket guest = Say(port, bytes);
    for (const int before = reception.num_strangers(); reception.num_strangers() == before;) {
      const auto soon = Clock::now() + std::chrono::milliseconds(10);
      ASSERT_FALSE(reception.Next(soon).ok()) << bytes.substr(0, 14);
    }
    EXPECT_EQ(Hear(guest), "") << bytes.substr(0, 14);
  }
  EXPECT_EQ(reception.other_version(), "APOGEE01");
}

TEST(TcpStrangersTest, AnotherVersionIsTold) {
  const uint16_t port = FreePort();
  const auto statuses = OnRanks(2, [&](int rank) {
    const Job job = JobOf(rank, 2, port, 0.5);
    if (rank == 0) return Meet(job).status();
    std::string older = CallOf(job);
    older.replace(6, 2, "01");
    Hear(Say(port, older + std::string(500, 'x')));
    return absl::OkStatus();
  });
  EXPECT_THAT(Message(statuses[0]), HasSubstr("version APOGEE01 of the protocol has called, and "
                                              "this one speaks APOGEE02: run one version"));
}

}  // namespace tcp_strangers_test
}  // namespace apogee::comm::tcp
