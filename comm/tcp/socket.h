// Sockets that close themselves, and what a handshake needs of them: calls with a deadline. All
// sockets are non-blocking and not inherited by children. Private to comm/tcp.
//
//   APOGEE_ASSIGN_OR_RETURN(Socket socket, Connect("node1", 29400, deadline));
//   APOGEE_RETURN_IF_ERROR(WriteAll(socket, bytes, deadline));
//
// Unavailable: nothing there, or the peer has closed; DeadlineExceeded; both with the reason only,
// the caller says what it was about.
#ifndef APOGEE_COMM_TCP_SOCKET_H_
#define APOGEE_COMM_TCP_SOCKET_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "apogee/core/status.h"

namespace apogee::comm::tcp {

using Clock = std::chrono::steady_clock;

class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    if (this != &other) Close();
    fd_ = std::exchange(other.fd_, fd_);
    return *this;
  }
  ~Socket() { Close(); }

  int fd() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }
  void Close();

 private:
  int fd_ = -1;
};

// `poll` takes milliseconds: those until then, rounded up; 0 when it is past.
int MillisecondsUntil(Clock::time_point deadline);

// Listens on `port`, 0 for one that the system chooses: on the loopback interface where `host` is
// a number of it, or localhost, else on all.
absl::StatusOr<Socket> Listen(const std::string& host, uint16_t port);
// A descriptor that this process has inherited.
absl::StatusOr<Socket> AdoptListener(int fd);
absl::StatusOr<uint16_t> PortOf(const Socket& listener);
// A connection that waits to be taken; a closed socket where there is none.
absl::StatusOr<Socket> Accept(const Socket& listener);

// One attempt.
absl::StatusOr<Socket> Connect(const std::string& host, uint16_t port, Clock::time_point deadline);
// The peer's numeric address, without its port.
absl::StatusOr<std::string> PeerAddress(const Socket& socket);
bool IsLoopback(const std::string& host);

absl::Status WriteAll(const Socket& socket, std::string_view bytes, Clock::time_point deadline);
absl::StatusOr<std::string> ReadExactly(const Socket& socket, size_t bytes,
                                        Clock::time_point deadline);

}  // namespace apogee::comm::tcp

#endif  // APOGEE_COMM_TCP_SOCKET_H_
