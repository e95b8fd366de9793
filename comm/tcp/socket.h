// SPDX-License-Identifier: Apache-2.0

// Sockets that close themselves, and calls with deadlines for a handshake. All sockets are
// non-blocking and are not inherited by child processes. Private to comm/tcp.
//
//   APOGEE_ASSIGN_OR_RETURN(Socket socket, Connect("node1", 29400, deadline));
//   APOGEE_RETURN_IF_ERROR(WriteAll(socket, bytes, deadline));
//
// Errors: Unavailable if nothing listens there or the peer has closed; DeadlineExceeded. Both give
// only the reason; the caller adds the action that failed.
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

// For poll: milliseconds until the deadline, rounded up; 0 if it has passed.
int MillisecondsUntil(Clock::time_point deadline);

// Listens on `port` (0: the system chooses one) of the host's address only. If the host has several
// addresses, it uses the first one that this machine has. It listens on all interfaces if `host` is
// 0.0.0.0 or ::, never for a name. NotFound: the host has no address. FailedPrecondition: this
// machine has none of them. Unavailable: the port cannot be used.
absl::StatusOr<Socket> Listen(const std::string& host, uint16_t port);
// Listens on the address of this side of a connection, on a port that the system chooses.
absl::StatusOr<Socket> ListenBeside(const Socket& connection);
// Takes over a listening descriptor that this process has inherited.
absl::StatusOr<Socket> AdoptListener(int fd);
absl::StatusOr<uint16_t> PortOf(const Socket& listener);
// Accepts a waiting connection; returns a closed socket if there is none. ResourceExhausted: the
// process or the system lacks descriptors or memory for it.
absl::StatusOr<Socket> Accept(const Socket& listener);

// Makes one attempt.
absl::StatusOr<Socket> Connect(const std::string& host, uint16_t port, Clock::time_point deadline);
// The numeric address of the peer, or of this side, without the port.
absl::StatusOr<std::string> PeerAddress(const Socket& socket);
absl::StatusOr<std::string> OwnAddress(const Socket& socket);
bool IsLoopback(const std::string& host);
// Whether it stands for all interfaces of a machine, so that it is not the address of one.
bool IsWildcard(const std::string& host);

absl::Status WriteAll(const Socket& socket, std::string_view bytes, Clock::time_point deadline);
absl::StatusOr<std::string> ReadExactly(const Socket& socket, size_t bytes,
                                        Clock::time_point deadline);

}  // namespace apogee::comm::tcp

#endif  // APOGEE_COMM_TCP_SOCKET_H_
