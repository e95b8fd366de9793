// SPDX-License-Identifier: Apache-2.0

// Both sides of a connection prove that they know the job's token: nothing that was recorded, sent
// back, cut short or made up passes, and the token is never sent.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>

#include "apogee/comm/tcp/hello.h"
#include "apogee/comm/tcp/introduction.h"
#include "apogee/comm/tcp/meeting.h"
#include "apogee/comm/tcp/proof.h"
#include "apogee/comm/tcp/reception.h"
#include "apogee/tests/comm/tcp/tcp_jobs.h"

namespace apogee::comm::tcp {
namespace tcp_proofs_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

Clock::time_point In(double seconds) {
  return Clock::now() + std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

Socket TakeOne(const Socket& listener) {
  while (true) {
    Socket made = ValueOrThrow(Accept(listener));
    if (made.is_open()) return made;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// All that comes within this time, or until the other side closes.
std::string Hear(const Socket& socket, double seconds) {
  std::string heard;
  for (const auto deadline = In(seconds);;) {
    const auto byte = ReadExactly(socket, 1, deadline);
    if (!byte.ok()) return heard;
    heard += *byte;
  }
}

// Stands between rank 0 and one that calls it, and keeps what they say.
class Recorder {
 public:
  explicit Recorder(uint16_t rank0)
      : listener_(ValueOrThrow(Listen("127.0.0.1", 0))),
        port_(ValueOrThrow(PortOf(listener_))),
        thread_([this, rank0] { Run(rank0); }) {}
  ~Recorder() { Stop(); }
  void Stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }
  uint16_t port() const { return port_; }
  // After Stop: of the caller, of rank 0.
  const std::string& called() const { return said_[0]; }
  const std::string& answered() const { return said_[1]; }

 private:
  void Run(uint16_t rank0) {
    Socket ends[2] = {TakeOne(listener_), {}};
    while (!ends[1].is_open()) {
      if (auto made = Connect("127.0.0.1", rank0, In(1)); made.ok()) ends[1] = *std::move(made);
    }
    while (!stop_) {
      for (const int from : {0, 1}) {
        char buffer[4096];
        const ssize_t count = recv(ends[from].fd(), buffer, sizeof(buffer), 0);
        if (count <= 0) continue;
        said_[from].append(buffer, static_cast<size_t>(count));
        OkOrThrow(WriteAll(ends[1 - from], {buffer, static_cast<size_t>(count)}, In(5)));
      }
      poll(nullptr, 0, 1);
    }
  }

  Socket listener_;
  uint16_t port_;
  std::string said_[2];
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

// A meeting of two ranks through a recorder.
struct Recorded {
  std::string called, answered;
};
Recorded RecordMeeting() {
  const uint16_t port = FreePort();
  Recorder recorder(port);
  const auto statuses = OnRanks(2, [&](int rank) {
    return Meet(JobOf(rank, 2, rank == 0 ? port : recorder.port())).status();
  });
  for (const absl::Status& status : statuses) EXPECT_EQ(status, absl::OkStatus());
  recorder.Stop();
  return {recorder.called(), recorder.answered()};
}

// What Python's hmac says of the label, a zero and the parts.
TEST(TcpProofsTest, IsHmacSha256) {
  const auto hex = [](const Proof& proof) {
    std::string text;
    for (const unsigned char byte : proof) {
      text += "0123456789abcdef"[byte >> 4];
      text += "0123456789abcdef"[byte & 15];
    }
    return text;
  };
  EXPECT_EQ(hex(Prove("the token", "call", {"abc", "def"})),
            "ce75a482f738a1163cf69ac14285790368c246e5b27cd5e803c1d9735c1a0d63");
  const Proof without = Prove("", "call", {"abcdef"});
  EXPECT_EQ(hex(without), "6ac5546396d9fb74c4491927665792ac46f0d86f53c03596ed4f6735b7fc729e");
  EXPECT_TRUE(Proves(without, "", "call", {"abcdef"}));
  for (size_t byte = 0; byte < without.size(); ++byte) {
    Proof wrong = without;
    wrong[byte] ^= 1;
    EXPECT_FALSE(Proves(wrong, "", "call", {"abcdef"})) << byte;
  }
  EXPECT_NE(NewNonce(), NewNonce());
}

TEST(TcpProofsTest, TheTokenIsNotSent) {
  const Recorded recorded = RecordMeeting();
  EXPECT_EQ(recorded.called.size(), sizeof(Call) + sizeof(Hello));
  for (const std::string& bytes : {recorded.called, recorded.answered}) {
    EXPECT_THAT(bytes, Not(HasSubstr("the token")));
  }
}

TEST(TcpProofsTest, WhatWasRecordedIsNotTaken) {
  const Recorded recorded = RecordMeeting();
  const uint16_t port = FreePort();
  std::string heard;
  const auto statuses = OnRanks(2, [&](int rank) {
    if (rank == 0) return Meet(JobOf(0, 2, port, 1)).status();
    auto socket = Connect("127.0.0.1", port, In(5));
    while (!socket.ok()) socket = Connect("127.0.0.1", port, In(5));
    OkOrThrow(WriteAll(*socket, recorded.called, In(5)));
    heard = Hear(*socket, 5);
    return absl::OkStatus();
  });
  EXPECT_THAT(Message(statuses[0]), AllOf(HasSubstr("rank 1 of 2 did not connect"),
                                          HasSubstr("1 connections were dropped")));
  // It hears a challenge, another than that of the recorded meeting, and nothing else.
  EXPECT_EQ(heard.size(), sizeof(Challenge));
  EXPECT_NE(heard, recorded.answered.substr(0, sizeof(Challenge)));
}

// What rank 1 says to something that listens in the place of rank 0 and answers a call with `say`.
// What it has heard after the call goes to `heard`.
template <typename Fn>
absl::Status MeetWithFake(const Fn& say, std::string& heard) {
  const Socket listener = ValueOrThrow(Listen("127.0.0.1", 0));
  const uint16_t port = ValueOrThrow(PortOf(listener));
  std::thread fake([&] {
    Socket guest = TakeOne(listener);
    const auto call = FromBytes<Call>(ValueOrThrow(ReadExactly(guest, sizeof(Call), In(10))));
    WriteAll(guest, say(call), In(10)).IgnoreError();
    shutdown(guest.fd(), SHUT_WR);
    heard = Hear(guest, 10);
  });
  const absl::Status status = Meet(JobOf(1, 2, port, 5)).status();
  fake.join();
  return status;
}

TEST(TcpProofsTest, AFakeRank0HearsNothing) {
  const Recorded recorded = RecordMeeting();
  Job thief = JobOf(0, 2, 1);
  thief.token = "a guess";
  const Job job = JobOf(0, 2, 1);
  using Say = std::function<std::string(const Call&)>;
  const auto bytes = [](const auto& message) { return std::string(BytesOf(message)); };
  const std::vector<std::pair<std::string, Say>> fakes = {
      {"another token", [&](const Call& call) { return bytes(MakeChallenge(thief, call)); }},
      {"recorded", [&](const Call&) { return recorded.answered; }},
      {"sent back", [&](const Call& call) { return bytes(call); }},
      {"its proof sent back",
       [&](const Call& call) {
         Challenge challenge = MakeChallenge(thief, call);
         challenge.nonce = call.nonce;
         challenge.proof = call.proof;
         return bytes(challenge);
       }},
      {"of another call",
       [&](const Call&) { return bytes(MakeChallenge(job, MakeCall(JobOf(1, 2, 1), 0))); }},
      {"changed",
       [&](const Call& call) {
         Challenge challenge = MakeChallenge(job, call);
         challenge.nonce[31] ^= 1;
         return bytes(challenge);
       }},
      {"a good answer at once",
       [&](const Call&) { return bytes(MakeAnswer(absl::OkStatus())) + std::string(4096, '\0'); }},
  };
  for (const auto& [name, say] : fakes) {
    std::string heard;
    const absl::Status status = MeetWithFake(say, heard);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << name << status;
    EXPECT_THAT(Message(status),
                AllOf(HasSubstr("is not rank 0 of this job: it does not prove that it knows "
                                "APOGEE_JOB_TOKEN")))
        << name;
    EXPECT_EQ(heard, "") << name;
  }
}

TEST(TcpProofsTest, AFakeRank0ThatMakesNoSense) {
  const std::vector<std::pair<std::string, std::string>> fakes = {
      {std::string(1 << 20, 'x'), "its answer does not come from a rank of this library"},
      {std::string(sizeof(Challenge), '\0'),
       "its answer does not come from a rank of this library"},
      {"APOGEE77" + std::string(sizeof(Challenge), 'x'),
       "it speaks version APOGEE77 of the protocol and this process APOGEE02; run one version"},
      {"APOGEE02", "has dropped rank 1"},
      {"", "has dropped rank 1"},
  };
  for (const auto& [answer, reason] : fakes) {
    std::string heard;
    const absl::Status status = MeetWithFake([&](const Call&) { return answer; }, heard);
    EXPECT_THAT(Message(status), HasSubstr(reason));
    EXPECT_EQ(heard, "") << reason;
  }
}

// What is made of words of the job's own does not let a stranger in.
TEST(TcpProofsTest, NoWordStandsForAnother) {
  Socket listener = ValueOrThrow(Listen("127.0.0.1", 0));
  const uint16_t port = ValueOrThrow(PortOf(listener));
  const Job rank0 = JobOf(0, 3, port), rank1 = JobOf(1, 3, port);
  Reception reception(std::move(listener), rank0);
  using Make = std::function<Hello(const Call&, const Challenge&)>;
  const auto good = [&](const Call& call, const Challenge& challenge) {
    return MakeHello(rank1, call, challenge, "machine", 7);
  };
  const std::vector<std::pair<std::string, Make>> hellos = {
      {"the challenge's proof",
       [&](const Call& call, const Challenge& challenge) {
         Hello hello = good(call, challenge);
         hello.proof = challenge.proof;
         return hello;
       }},
      {"the call's proof",
       [&](const Call& call, const Challenge& challenge) {
         Hello hello = good(call, challenge);
         hello.proof = call.proof;
         return hello;
       }},
      {"another port",
       [&](const Call& call, const Challenge& challenge) {
         Hello hello = good(call, challenge);
         hello.port = 8;
         return hello;
       }},
      {"of another rank",
       [&](const Call&, const Challenge& challenge) {
         return good(MakeCall(JobOf(2, 3, port), 0), challenge);
       }},
      {"of another size",
       [&](const Call&, const Challenge& challenge) {
         return good(MakeCall(JobOf(1, 2, port), 0), challenge);
       }},
      {"of another challenge",
       [&](const Call& call, const Challenge&) { return good(call, MakeChallenge(rank0, call)); }},
  };
  // Whether it is taken; else it is dropped.
  const auto is_taken = [&](const Make& make) {
    const Socket guest = ValueOrThrow(Connect("127.0.0.1", port, In(5)));
    const Call call = MakeCall(rank1, 0);
    OkOrThrow(WriteAll(guest, BytesOf(call), In(5)));
    absl::StatusOr<std::string> answer = absl::UnknownError("none yet");
    while (!answer.ok()) {
      reception.Next(In(0.01)).IgnoreError();
      answer = ReadExactly(guest, sizeof(Challenge), Clock::now());
    }
    const Hello hello = make(call, FromBytes<Challenge>(*answer));
    OkOrThrow(WriteAll(guest, BytesOf(hello), In(5)));
    for (const int before = reception.num_strangers(); reception.num_strangers() == before;) {
      if (reception.Next(In(0.01)).ok()) return true;
    }
    return false;
  };
  for (const auto& [name, make] : hellos) EXPECT_FALSE(is_taken(make)) << name;
  EXPECT_TRUE(is_taken(good));
}

// Rank 1's call to rank 0, sent back to rank 1 where it listens itself.
TEST(TcpProofsTest, ACallIsForOneRank) {
  Socket listener = ValueOrThrow(Listen("127.0.0.1", 0));
  const uint16_t port = ValueOrThrow(PortOf(listener));
  Reception reception(std::move(listener), JobOf(1, 3, port));
  const Socket guest = ValueOrThrow(Connect("127.0.0.1", port, In(5)));
  OkOrThrow(WriteAll(guest, BytesOf(MakeCall(JobOf(1, 3, port), /*to=*/0)), In(5)));
  while (reception.num_strangers() == 0) ASSERT_FALSE(reception.Next(In(0.01)).ok());
  EXPECT_EQ(Hear(guest, 5), "");
}

}  // namespace tcp_proofs_test
}  // namespace apogee::comm::tcp
