// SPDX-License-Identifier: Apache-2.0

// The transport over TCP by itself, its processes being threads; one that ends the program does so
// in a child.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <numeric>

#include "apogee/comm/tcp/connection.h"
#include "apogee/comm/tcp/meeting.h"
#include "apogee/comm/tcp/transport.h"
#include "apogee/tests/comm/tcp/tcp_jobs.h"

namespace apogee::comm::tcp {
namespace tcp_transport_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Bytes = std::vector<char>;

// Polls until the condition holds; false where it does not within ten seconds.
template <typename Fn>
bool PollUntil(Transport& transport, Transport::Events& events, const Fn& holds) {
  const auto deadline = Clock::now() + std::chrono::seconds(10);
  while (!holds() && Clock::now() < deadline) transport.Poll(events);
  return holds();
}

Bytes Pattern(size_t bytes, int seed) {
  Bytes pattern(bytes);
  uint32_t x = static_cast<uint32_t>(seed) * 2654435761u + 1;
  for (char& byte : pattern) byte = static_cast<char>((x = x * 1664525u + 1013904223u) >> 24);
  return pattern;
}

TEST(TcpTransportTest, MessagesArriveInOrder) {
  constexpr int kSize = 3, kCount = 2000;
  const uint16_t port = FreePort();
  const auto results = OnRanks(kSize, [&](int rank) -> std::string {
    const auto transport = ValueOrThrow(StartTransport(JobOf(rank, kSize, port)));
    for (int i = 0; i < kCount; ++i) {
      for (int to = 0; to < kSize; ++to) {
        // Of all lengths, the longest a byte too long.
        const std::string text = std::to_string(i) + " ";
        if (to != rank) transport->Post(to, text + std::string(static_cast<size_t>(2 * i), 'x'));
      }
    }
    std::map<int, int> next;
    Transport::Events events;
    if (!PollUntil(*transport, events, [&] { return events.arrived.size() == 2 * kCount; })) {
      return "not all have arrived";
    }
    for (const auto& [from, bytes] : events.arrived) {
      if (from == rank || std::stoi(bytes) != next[from]) return "out of order";
      const std::string number = std::to_string(next[from]) + " ";
      const size_t sent = number.size() + static_cast<size_t>(2 * next[from]++);
      if (bytes.size() != std::min(sent, Transport::kMaxMessageBytes)) return "another length";
    }
    transport->Finish();
    return "";
  });
  for (const std::string& result : results) EXPECT_EQ(result, "");
}

// Both ways at once, more than any buffer of the system holds; receives before and after the data.
TEST(TcpTransportTest, DataOfEverySize) {
  const std::vector<size_t> sizes = {0, 1, 15, 4096, 65520, 65536, 1 << 20, 40 << 20};
  const uint16_t port = FreePort();
  const auto results = OnRanks(2, [&](int rank) -> std::string {
    const auto transport = ValueOrThrow(StartTransport(JobOf(rank, 2, port)));
    const int peer = 1 - rank;
    std::vector<Bytes> out, in;
    Transport::Events events;
    const auto receive = [&](size_t i) {
      transport->Receive(peer, static_cast<int>(i + 1), in[i].data(),
                         static_cast<int64_t>(sizes[i]), 100 + i);
    };
    for (size_t i = 0; i < sizes.size(); ++i) {
      out.push_back(Pattern(sizes[i], rank));
      in.emplace_back(sizes[i]);
    }
    for (size_t i = 0; i < sizes.size(); i += 2) receive(i);
    for (size_t i = 0; i < sizes.size(); ++i) {
      transport->Send(peer, static_cast<int>(i + 1), out[i].data(), static_cast<int64_t>(sizes[i]),
                      200 + i);
    }
    if (transport->num_in_flight() != 12) return "other numbers are in flight";
    transport->Post(peer, "behind the data");
    if (!PollUntil(*transport, events, [&] { return !events.arrived.empty(); }))
      return "no message";
    for (size_t i = 1; i < sizes.size(); i += 2) receive(i);
    const auto all = [&] { return events.completed.size() == 2 * sizes.size(); };
    if (!PollUntil(*transport, events, all)) return "not all have completed";
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (in[i] != Pattern(sizes[i], peer)) return "other bytes";
    }
    if (transport->num_in_flight() != 0) return "something is in flight";
    if (transport->bytes_to_other_machines() != 0) return "another machine";
    transport->Finish();
    return "";
  });
  for (const std::string& result : results) EXPECT_EQ(result, "");
}

// Of one tag: in the order of the calls.
TEST(TcpTransportTest, OneTagManyTimes) {
  const uint16_t port = FreePort();
  const auto results = OnRanks(2, [&](int rank) -> std::string {
    const auto transport = ValueOrThrow(StartTransport(JobOf(rank, 2, port)));
    std::vector<int> values(200), got(200);
    std::iota(values.begin(), values.end(), 0);
    Transport::Events events;
    for (size_t i = 0; i < values.size(); ++i) {
      if (rank == 0) transport->Send(1, 5, &values[i], sizeof(int), i);
      if (rank == 1) transport->Receive(0, 5, &got[i], sizeof(int), i);
      transport->Poll(events);
    }
    if (!PollUntil(*transport, events, [&] { return events.completed.size() == 200; })) {
      return "not all have completed";
    }
    if (rank == 1 && got != values) return "another order";
    transport->Finish();
    return "";
  });
  for (const std::string& result : results) EXPECT_EQ(result, "");
}

TEST(TcpTransportTest, APeerThatGoesIsNoticedOnce) {
  const uint16_t port = FreePort();
  const auto results = OnRanks(3, [&](int rank) -> std::string {
    auto transport = ValueOrThrow(StartTransport(JobOf(rank, 3, port)));
    if (rank == 1) transport->Post(0, "last words");
    if (rank == 1) return "";  // without Finish
    Transport::Events events;
    if (!PollUntil(*transport, events, [&] { return !events.gone.empty(); })) return "not noticed";
    if (rank == 0 && events.arrived.size() != 1) return "without the last words";
    for (int i = 0; i < 10; ++i) transport->Poll(events);
    if (events.gone.size() != 1 || events.gone[0].rank != 1) return "others have gone, too";
    transport->Post(1, "into nothing");
    transport->Finish();
    return events.gone[0].why;
  });
  EXPECT_THAT(results[0], HasSubstr("has ended or is cut off: "));
  EXPECT_THAT(results[2], HasSubstr("has ended or is cut off: "));
}

// A peer that is one, but does not keep to the frames.
TEST(TcpTransportTest, FramesThatCannotBe) {
  const auto frame = [](uint32_t kind, int32_t tag, uint64_t bytes) {
    const FrameHeader header{.kind = static_cast<FrameKind>(kind), .tag = tag, .bytes = bytes};
    return std::string(reinterpret_cast<const char*>(&header), sizeof(header));
  };
  for (const std::string& sent :
       {frame(0, 0, 0), frame(5, 0, 0), frame(1, 0, 4001), frame(2, 1, 1ull << 31), frame(2, 0, 8),
        frame(2, -1, 8), frame(3, 0, 1), frame(4, 256, 0), frame(4, 70, 1), frame(1, 0, ~0ull),
        std::string(64, '\xff')}) {
    const uint16_t port = FreePort();
    const auto results = OnRanks(2, [&](int rank) -> std::string {
      if (rank == 1) {
        const Mesh mesh = ValueOrThrow(Meet(JobOf(1, 2, port)));
        const auto deadline = Clock::now() + std::chrono::seconds(10);
        OkOrThrow(WriteAll(mesh.peers[0], sent, deadline));
        return ReadExactly(mesh.peers[0], 1, deadline).ok() ? "it answers" : "";
      }
      const auto transport = ValueOrThrow(StartTransport(JobOf(0, 2, port)));
      Transport::Events events;
      PollUntil(*transport, events, [&] { return !events.gone.empty(); });
      return events.gone.empty() ? "not noticed" : events.gone[0].why;
    });
    EXPECT_THAT(results[0], HasSubstr("it sent something that is not a frame: kind "));
    EXPECT_EQ(results[1], "");
  }
}

// The exit code of a child that runs this.
template <typename Fn>
int ExitCodeOf(const Fn& fn) {
  const pid_t child = fork();
  if (child == 0) {
    fn();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(TcpTransportTest, AbortEndsAll) {
  const uint16_t port = FreePort();
  const auto codes = OnRanks(3, [&](int rank) {
    return ExitCodeOf([&] {
      const auto transport = ValueOrThrow(StartTransport(JobOf(rank, 3, port)));
      Transport::Events events;
      // Behind what is on its way.
      const Bytes data = Pattern(8 << 20, rank);
      if (rank == 1) {
        transport->Send(0, 1, data.data(), 8 << 20, 1);
        transport->Abort(77);
      }
      PollUntil(*transport, events, [] { return false; });
    });
  });
  EXPECT_THAT(codes, ::testing::Each(77));
}

}  // namespace tcp_transport_test
}  // namespace apogee::comm::tcp
