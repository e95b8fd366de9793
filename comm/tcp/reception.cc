// SPDX-License-Identifier: Apache-2.0

#include "apogee/comm/tcp/reception.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <vector>

namespace apogee::comm::tcp {
namespace {

constexpr std::chrono::milliseconds kScarcityNap(20);

}  // namespace

bool Reception::TakeCall(Waiting& waiting) {
  waiting.call = FromBytes<Call>(waiting.said);
  if (!IsCall(waiting.call, job_)) return false;
  waiting.said.clear();
  waiting.challenge = MakeChallenge(job_, waiting.call);
  const std::string_view bytes = BytesOf(*waiting.challenge);
  // A new connection has room for so few bytes.
  return send(waiting.socket.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
         static_cast<ssize_t>(bytes.size());
}

bool Reception::TakeHello(Waiting& waiting) {
  const auto hello = FromBytes<Hello>(waiting.said);
  if (!IsHello(hello, waiting.call, *waiting.challenge, job_)) return false;
  waiting.guest = Guest{.socket = std::move(waiting.socket),
                        .rank = waiting.call.rank,
                        .size = waiting.call.size,
                        .port = static_cast<uint16_t>(hello.port),
                        .machine = TextOf(hello.machine)};
  return true;
}

bool Reception::Hear(Waiting& waiting) {
  char buffer[std::max(sizeof(Call), sizeof(Hello))];
  std::string& said = waiting.said;
  while (!waiting.guest) {
    const size_t expected = waiting.challenge ? sizeof(Hello) : sizeof(Call);
    const ssize_t count = recv(waiting.socket.fd(), buffer, expected - said.size(), 0);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
    if (count <= 0) return false;
    said.append(buffer, static_cast<size_t>(count));
    if (!waiting.challenge && !MayBeCall(said)) {
      if (std::string other = OtherVersion(said); !other.empty()) other_version_ = other;
      return false;
    }
    if (said.size() < expected) continue;
    if (!(waiting.challenge ? TakeHello(waiting) : TakeCall(waiting))) return false;
  }
  return true;
}

bool Reception::DropOne() {
  if (waiting_.empty()) return false;
  const auto newest = std::prev(waiting_.end());
  const auto silent = std::find_if(waiting_.begin(), newest,
                                   [](const Waiting& waiting) { return !waiting.challenge; });
  waiting_.erase(silent == newest ? waiting_.begin() : silent);
  ++num_strangers_;
  return true;
}

absl::Status Reception::TakeConnection() {
  auto made = Accept(listener_);
  const auto now = Clock::now();
  if (made.ok()) {
    scarce_since_.reset();
    if (made->is_open()) waiting_.push_back({*std::move(made), now + kPatience});
    if (waiting_.size() > kMaxWaiting) DropOne();
    return absl::OkStatus();
  }
  if (!absl::IsResourceExhausted(made.status())) return made.status();
  if (DropOne()) {
    ++num_dropped_for_room_;
    return absl::OkStatus();
  }
  if (!scarce_since_) scarce_since_ = now;
  if (now - *scarce_since_ >= kScarcity) return made.status();
  try_again_at_ = now + kScarcityNap;
  return absl::OkStatus();
}

absl::StatusOr<Reception::Guest> Reception::Next(Clock::time_point deadline) {
  while (true) {
    const bool takes = Clock::now() >= try_again_at_;
    // poll() ignores negative descriptors.
    std::vector<pollfd> entries = {
        {.fd = takes ? listener_.fd() : -1, .events = POLLIN, .revents = 0}};
    auto wake = takes ? deadline : std::min(deadline, try_again_at_);
    for (const Waiting& waiting : waiting_) {
      entries.push_back({.fd = waiting.socket.fd(), .events = POLLIN, .revents = 0});
      wake = std::min(wake, waiting.until);
    }
    if (poll(entries.data(), entries.size(), MillisecondsUntil(wake)) < 0 && errno != EINTR) {
      return absl::UnavailableError("poll: " + std::string(std::strerror(errno)));
    }
    const auto now = Clock::now();
    size_t i = 1;
    for (auto next = waiting_.begin(); next != waiting_.end(); ++i) {
      const auto waiting = next++;
      const bool kept = (entries[i].revents == 0 || Hear(*waiting)) && now < waiting->until;
      if (kept && !waiting->guest) continue;
      std::optional<Guest> guest = std::move(waiting->guest);
      waiting_.erase(waiting);
      if (guest) return *std::move(guest);
      ++num_strangers_;
    }
    if (entries[0].revents != 0) APOGEE_RETURN_IF_ERROR(TakeConnection());
    if (now >= deadline) return absl::DeadlineExceededError("no connection arrived in time");
  }
}

}  // namespace apogee::comm::tcp
