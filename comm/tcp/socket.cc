// SPDX-License-Identifier: Apache-2.0

#include "apogee/comm/tcp/socket.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

namespace apogee::comm::tcp {
namespace {

constexpr int kOn = 1;

absl::Status Unavailable(const std::string& what, int error) {
  return absl::UnavailableError(what + ": " + std::strerror(error));
}

struct FreeAddresses {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

absl::StatusOr<Addresses> Resolve(const char* host, uint16_t port, int flags) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int error = getaddrinfo(host, std::to_string(port).c_str(), &hints, &list);
  if (error == 0) return Addresses(list);
  return absl::NotFoundError(
      "the host's address is not found: " +
      std::string(error == EAI_SYSTEM ? std::strerror(errno) : gai_strerror(error)));
}

void SetUp(int fd) { setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &kOn, sizeof(kOn)); }

// If nobody listens at the called port, the system may choose that same port as the caller's own,
// and so connect the socket to itself.
bool IsItsOwnPeer(int fd) {
  sockaddr_storage own = {}, peer = {};
  socklen_t own_size = sizeof(own), peer_size = sizeof(peer);
  return getsockname(fd, reinterpret_cast<sockaddr*>(&own), &own_size) == 0 &&
         getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &peer_size) == 0 &&
         own_size == peer_size && std::memcmp(&own, &peer, own_size) == 0;
}

absl::StatusOr<std::string> TextOf(const sockaddr& address, socklen_t size) {
  char text[NI_MAXHOST] = {};
  if (getnameinfo(&address, size, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) != 0) {
    return absl::UnavailableError("the address cannot be shown as text");
  }
  // The form in which an IPv6 socket names an IPv4 address.
  const std::string_view name = text;
  return std::string(name.starts_with("::ffff:") ? name.substr(7) : name);
}

in_port_t& PortIn(sockaddr_storage& address) {
  return address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                       : reinterpret_cast<sockaddr_in&>(address).sin_port;
}

// FailedPrecondition: this machine does not have the address.
absl::StatusOr<Socket> ListenOn(const sockaddr& address, socklen_t size) {
  Socket made(socket(address.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!made.is_open()) {
    if (errno == EAFNOSUPPORT) return absl::FailedPreconditionError(std::strerror(errno));
    return Unavailable("socket", errno);
  }
  setsockopt(made.fd(), SOL_SOCKET, SO_REUSEADDR, &kOn, sizeof(kOn));
  if (address.sa_family == AF_INET6) {  // so that :: also takes IPv4
    const int off = 0;
    setsockopt(made.fd(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  }
  if (bind(made.fd(), &address, size) == 0 && listen(made.fd(), 4096) == 0) return made;
  if (errno == EADDRNOTAVAIL) return absl::FailedPreconditionError(std::strerror(errno));
  return Unavailable("bind", errno);
}

absl::Status WaitFor(int fd, short events, Clock::time_point deadline) {
  while (true) {
    pollfd entry = {.fd = fd, .events = events, .revents = 0};
    const int count = poll(&entry, 1, MillisecondsUntil(deadline));
    if (count > 0) return absl::OkStatus();
    if (count == 0 && Clock::now() >= deadline) {
      return absl::DeadlineExceededError("no answer in time");
    }
    if (count < 0 && errno != EINTR) return Unavailable("poll", errno);
  }
}

absl::StatusOr<Socket> ConnectTo(const addrinfo& address, Clock::time_point deadline) {
  Socket made(socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!made.is_open()) return Unavailable("socket", errno);
  SetUp(made.fd());
  if (connect(made.fd(), address.ai_addr, address.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return Unavailable("connect", errno);
    APOGEE_RETURN_IF_ERROR(WaitFor(made.fd(), POLLOUT, deadline));
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(made.fd(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return Unavailable("connect", error);
  }
  if (IsItsOwnPeer(made.fd())) return Unavailable("connect", ECONNREFUSED);
  return made;
}

}  // namespace

void Socket::Close() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

int MillisecondsUntil(Clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 1'000'000));
}

bool IsLoopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

bool IsWildcard(const std::string& host) { return host == "0.0.0.0" || host == "::"; }

absl::StatusOr<Socket> Listen(const std::string& host, uint16_t port) {
  APOGEE_ASSIGN_OR_RETURN(const Addresses addresses, Resolve(host.c_str(), port, 0));
  std::string elsewhere;
  for (const addrinfo* at = addresses.get(); at != nullptr; at = at->ai_next) {
    APOGEE_ASSIGN_OR_RETURN(const std::string address, TextOf(*at->ai_addr, at->ai_addrlen));
    if (IsWildcard(address) && !IsWildcard(host)) {
      return absl::FailedPreconditionError("the host's address is " + address +
                                           ", which stands for all interfaces");
    }
    auto made = ListenOn(*at->ai_addr, at->ai_addrlen);
    if (made.ok() || !absl::IsFailedPrecondition(made.status())) return made;
    elsewhere += (elsewhere.empty() ? "" : ", ") + address;
  }
  return absl::FailedPreconditionError("this machine does not have the address " + elsewhere);
}

absl::StatusOr<Socket> ListenBeside(const Socket& connection) {
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  if (getsockname(connection.fd(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return Unavailable("getsockname", errno);
  }
  PortIn(address) = 0;
  return ListenOn(reinterpret_cast<const sockaddr&>(address), size);
}

absl::StatusOr<Socket> AdoptListener(int fd) {
  int listens = 0;
  socklen_t size = sizeof(listens);
  if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || listens == 0) {
    return InvalidArgument("descriptor ", fd, " is not a listening socket");
  }
  fcntl(fd, F_SETFD, FD_CLOEXEC);
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  return Socket(fd);
}

absl::StatusOr<uint16_t> PortOf(const Socket& listener) {
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  if (getsockname(listener.fd(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return Unavailable("getsockname", errno);
  }
  return ntohs(PortIn(address));
}

absl::StatusOr<Socket> Accept(const Socket& listener) {
  Socket made(accept4(listener.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (made.is_open()) {
    SetUp(made.fd());
    return made;
  }
  switch (errno) {
    case EMFILE:
    case ENFILE:
    case ENOBUFS:
    case ENOMEM:
      return absl::ResourceExhaustedError("accept: " + std::string(std::strerror(errno)));
    case EBADF:
    case EFAULT:
    case EINVAL:
    case ENOTSOCK:
    case EOPNOTSUPP:
      return Unavailable("accept", errno);
    default:  // there is none, or it is already gone
      return Socket();
  }
}

absl::StatusOr<Socket> Connect(const std::string& host, uint16_t port, Clock::time_point deadline) {
  APOGEE_ASSIGN_OR_RETURN(const Addresses addresses, Resolve(host.c_str(), port, 0));
  absl::Status status = absl::UnavailableError("the host has no address");
  for (const addrinfo* at = addresses.get(); at != nullptr; at = at->ai_next) {
    absl::StatusOr<Socket> made = ConnectTo(*at, deadline);
    if (made.ok()) return made;
    status = made.status();
  }
  return status;
}

absl::StatusOr<std::string> PeerAddress(const Socket& socket) {
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  if (getpeername(socket.fd(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return Unavailable("getpeername", errno);
  }
  return TextOf(reinterpret_cast<const sockaddr&>(address), size);
}

absl::StatusOr<std::string> OwnAddress(const Socket& socket) {
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  if (getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return Unavailable("getsockname", errno);
  }
  return TextOf(reinterpret_cast<const sockaddr&>(address), size);
}

absl::Status WriteAll(const Socket& socket, std::string_view bytes, Clock::time_point deadline) {
  while (!bytes.empty()) {
    const ssize_t count = send(socket.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count > 0) {
      bytes.remove_prefix(static_cast<size_t>(count));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      APOGEE_RETURN_IF_ERROR(WaitFor(socket.fd(), POLLOUT, deadline));
    } else if (errno != EINTR) {
      return Unavailable("send", errno);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadExactly(const Socket& socket, size_t bytes,
                                        Clock::time_point deadline) {
  std::string read(bytes, '\0');
  size_t have = 0;
  while (have < bytes) {
    const ssize_t count = recv(socket.fd(), read.data() + have, bytes - have, 0);
    if (count > 0) {
      have += static_cast<size_t>(count);
    } else if (count == 0) {
      return absl::UnavailableError("the peer has closed the connection");
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      APOGEE_RETURN_IF_ERROR(WaitFor(socket.fd(), POLLIN, deadline));
    } else if (errno != EINTR) {
      return Unavailable("recv", errno);
    }
  }
  return read;
}

}  // namespace apogee::comm::tcp
