#include "apogee/comm/tcp/reception.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <vector>

namespace apogee::comm::tcp {

bool Reception::Hear(Waiting& waiting) {
  std::string& said = waiting.said;
  char buffer[sizeof(Hello)];
  while (said.size() < sizeof(Hello)) {
    const ssize_t count = recv(waiting.socket.fd(), buffer, sizeof(Hello) - said.size(), 0);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return MayBeHello(said);
    if (count <= 0) return false;
    said.append(buffer, static_cast<size_t>(count));
  }
  return MayBeHello(said);
}

absl::StatusOr<Reception::Guest> Reception::Next(Clock::time_point deadline) {
  while (true) {
    std::vector<pollfd> entries = {{.fd = listener_.fd(), .events = POLLIN, .revents = 0}};
    auto wake = deadline;
    for (const Waiting& waiting : waiting_) {
      entries.push_back({.fd = waiting.socket.fd(), .events = POLLIN, .revents = 0});
      wake = std::min(wake, waiting.until);
    }
    if (poll(entries.data(), entries.size(), MillisecondsUntil(wake)) < 0 && errno != EINTR) {
      return absl::UnavailableError("poll failed");
    }
    const auto now = Clock::now();
    size_t i = 1;
    for (auto next = waiting_.begin(); next != waiting_.end(); ++i) {
      const auto waiting = next++;
      const bool kept = entries[i].revents == 0 || Hear(*waiting);
      if (kept && waiting->said.size() < sizeof(Hello) && now < waiting->until) continue;
      const auto hello = kept ? HelloFrom(waiting->said, token_) : std::nullopt;
      Socket socket = std::move(waiting->socket);
      waiting_.erase(waiting);
      if (hello) return Guest{std::move(socket), *hello};
      ++num_strangers_;
    }
    if (entries[0].revents != 0) {
      APOGEE_ASSIGN_OR_RETURN(Socket made, Accept(listener_));
      if (made.is_open()) waiting_.push_back({std::move(made), now + kPatience});
      if (waiting_.size() > kMaxWaiting) {
        waiting_.pop_front();
        ++num_strangers_;
      }
    }
    if (now >= deadline) return absl::DeadlineExceededError("nobody has come");
  }
}

}  // namespace apogee::comm::tcp
