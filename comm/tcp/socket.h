// SPDX-License-Identifier: Apache-2.0

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

// Listens on `port`, 0 for one that the system chooses, of the host's address and no other: of
// several the first that this machine has. On all interfaces where `host` is 0.0.0.0 or ::, never
// for a name. NotFound where the host has no address, FailedPrecondition where this machine has
// none of them, Unavailable where the port cannot be had.
absl::StatusOr<Socket> Listen(const std::string& host, uint16_t port);
// On the address that this side of a connection has, on a port that the system chooses.
absl::StatusOr<Socket> ListenBeside(const Socket& connection);
// A descriptor that this process has inherited.
absl::StatusOr<Socket> AdoptListener(int fd);
absl::StatusOr<uint16_t> PortOf(const Socket& listener);
// A connection that waits to be taken; a closed socket where there is none any more.
// ResourceExhausted where the process or the system has no descriptor or memory for it.
absl::StatusOr<Socket> Accept(const Socket& listener);

// One attempt.
absl::StatusOr<Socket> Connect(const std::string& host, uint16_t port, Clock::time_point deadline);
// The numeric address of the peer, or of this side, without its port.
absl::StatusOr<std::string> PeerAddress(const Socket& socket);
absl::StatusOr<std::string> OwnAddress(const Socket& socket);
bool IsLoopback(const std::string& host);
// All interfaces of a machine: no address of one.
bool IsWildcard(const std::string& host);

absl::Status WriteAll(const Socket& socket, std::string_view bytes, Clock::time_point deadline);
absl::StatusOr<std::string> ReadExactly(const Socket& socket, size_t bytes,
                                        Clock::time_point deadline);

}  // namespace apogee::comm::tcp

#endif  // APOGEE_COMM_TCP_SOCKET_H_
