// Connections that are none of the job's do no harm: wrong tokens, garbage, and those that say
// nothing, or only a part.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include "apogee/comm/tcp/hello.h"
#include "apogee/comm/tcp/meeting.h"
#include "apogee/comm/tcp/reception.h"
#include "apogee/tests/comm/tcp_jobs.h"

namespace apogee::comm::tcp {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string HelloOf(const Job& job) { return std::string(BytesOf(MakeHello(job, "machine", 1))); }

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
      const std::string hello = HelloOf(JobOf(1, 3, port));
      std::string other_magic = hello;
      other_magic[7] = '9';
      for (const std::string& bytes :
           {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(100000, '\xff'), std::string(),
            hello.substr(0, 1), hello.substr(0, hello.size() - 1), HelloOf(thief), HelloOf(shorter),
            HelloOf(longer), other_magic, std::string(sizeof(Hello), '\0')}) {
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
  Reception reception(std::move(listener), "the token");
  std::vector<Socket> silent;
  for (size_t i = 0; i < Reception::kMaxWaiting + 20; ++i) {
    silent.push_back(Say(port, ""));
    // It takes one at a time.
    if (i % 20 == 0) reception.Next(Clock::now() + std::chrono::milliseconds(5)).IgnoreError();
  }
  const Socket guest = Say(port, HelloOf(JobOf(2, 3, port)));
  const auto taken = reception.Next(Clock::now() + std::chrono::seconds(20));
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_EQ(taken->hello.rank, 2);
  EXPECT_GE(reception.num_strangers(), 20);
}

TEST(TcpStrangersTest, AHelloThatComesInPieces) {
  Socket listener = ValueOrThrow(Listen("127.0.0.1", 0));
  const uint16_t port = ValueOrThrow(PortOf(listener));
  Reception reception(std::move(listener), "the token");
  const std::string hello = HelloOf(JobOf(1, 3, port));
  const Socket guest = Say(port, hello.substr(0, 3));
  const auto soon = [] { return Clock::now() + std::chrono::milliseconds(50); };
  EXPECT_TRUE(absl::IsDeadlineExceeded(reception.Next(soon()).status()));
  OkOrThrow(WriteAll(guest, hello.substr(3, 300), soon()));
  EXPECT_TRUE(absl::IsDeadlineExceeded(reception.Next(soon()).status()));
  OkOrThrow(WriteAll(guest, hello.substr(303), soon()));
  EXPECT_TRUE(reception.Next(Clock::now() + std::chrono::seconds(10)).ok());
  EXPECT_EQ(reception.num_strangers(), 0);
}

}  // namespace
}  // namespace apogee::comm::tcp
