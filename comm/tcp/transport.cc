// SPDX-License-Identifier: Apache-2.0

#include "apogee/comm/tcp/transport.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>

#include "apogee/comm/tcp/connection.h"
#include "apogee/comm/tcp/meeting.h"
#include "apogee/comm/transport/machines.h"

namespace apogee::comm::tcp {
namespace {

// How long Abort tries to reach the other processes.
constexpr std::chrono::milliseconds kAbortTimeout(150);
constexpr int kFinishPollMs = 100;

class TcpTransport : public Transport {
 public:
  TcpTransport(int rank, std::vector<int> machines, std::vector<Socket> sockets)
      : Transport(rank, Connection::kMaxTag, std::move(machines)), was_open_(sockets.size()) {
    for (size_t r = 0; r < sockets.size(); ++r) {
      was_open_[r] = sockets[r].is_open();
      peers_.emplace_back(std::move(sockets[r]));
    }
  }

  std::string_view name() const override { return "TCP"; }

  void Post(int to, std::string message) override {
    message.resize(std::min(message.size(), kMaxMessageBytes));
    Peer(to).Post(FrameKind::kMessage, 0, std::move(message));
    Peer(to).Write(completed_);
  }

  void Send(int to, int tag, const void* data, int64_t bytes, uint64_t id) override {
    CountSent(to, bytes);
    ++in_flight_;
    Peer(to).Send(tag, data, bytes, id);
    Peer(to).Write(completed_);
  }

  void Receive(int from, int tag, void* data, int64_t bytes, uint64_t id) override {
    ++in_flight_;
    if (const auto done = Peer(from).Receive(tag, data, bytes, id)) completed_.push_back(*done);
  }

  bool Poll(Events& events) override {
    bool moved = Exchange(events, 0) || !completed_.empty();
    in_flight_ -= static_cast<int64_t>(completed_.size());
    events.completed.insert(events.completed.end(), completed_.begin(), completed_.end());
    completed_.clear();
    for (size_t r = 0; r < peers_.size(); ++r) {
      if (!was_open_[r] || peers_[r].is_open()) continue;
      was_open_[r] = false;
      moved = true;
      // A peer that has said goodbye will send nothing more, and nobody will send to it.
      if (peers_[r].has_said_goodbye()) continue;
      events.gone.push_back({static_cast<int>(r), "has ended or is cut off: " + peers_[r].why()});
    }
    return moved;
  }

  int64_t num_in_flight() const override { return in_flight_; }

  void Finish() override {
    for (Connection& peer : peers_) peer.Post(FrameKind::kGoodbye, 0, "");
    const auto waits = [](const Connection& peer) {
      return peer.is_open() && (peer.has_unsent() || !peer.has_said_goodbye());
    };
    while (std::any_of(peers_.begin(), peers_.end(), waits)) {
      Events ignored;
      Exchange(ignored, kFinishPollMs);
    }
    for (Connection& peer : peers_) peer.Close("this process has ended");
  }

  [[noreturn]] void Abort(int exit_code) override {
    const auto deadline = Clock::now() + kAbortTimeout;
    for (Connection& peer : peers_) peer.Post(FrameKind::kAbort, exit_code, "");
    std::vector<std::string> messages;
    // Keep reading until the peers have closed: if received data were left unread, the system would
    // drop sent data.
    const auto is_open = [](const Connection& peer) { return peer.is_open(); };
    while (Clock::now() < deadline && std::any_of(peers_.begin(), peers_.end(), is_open)) {
      for (Connection& peer : peers_) {
        if (!peer.is_open()) continue;
        const bool had_unsent = peer.has_unsent();
        peer.Write(completed_);
        if (had_unsent && !peer.has_unsent()) shutdown(peer.fd(), SHUT_WR);
        peer.Read(messages, completed_);
      }
      poll(nullptr, 0, 1);
    }
    std::_Exit(exit_code);
  }

 private:
  Connection& Peer(int rank) { return peers_[static_cast<size_t>(rank)]; }

  // Moves data, waiting at most `wait_ms` for some. Returns whether anything has moved.
  bool Exchange(Events& events, int wait_ms) {
    entries_.clear();
    for (const Connection& peer : peers_) {
      // poll() ignores negative descriptors.
      entries_.push_back({.fd = peer.fd(), .events = POLLIN, .revents = 0});
      if (peer.has_unsent()) entries_.back().events |= POLLOUT;
    }
    if (poll(entries_.data(), entries_.size(), wait_ms) <= 0) return false;
    bool moved = false;
    for (size_t r = 0; r < peers_.size(); ++r) {
      if (entries_[r].revents == 0) continue;
      Connection& peer = peers_[r];
      if (peer.has_unsent()) moved |= peer.Write(completed_);
      messages_.clear();
      if (peer.is_open()) moved |= peer.Read(messages_, completed_);
      for (std::string& message : messages_) {
        events.arrived.push_back({static_cast<int>(r), std::move(message)});
      }
      if (const auto exit_code = peer.aborted()) EndAsToldBy(static_cast<int>(r), *exit_code);
    }
    return moved;
  }

  [[noreturn]] void EndAsToldBy(int other, int exit_code) {
    std::fprintf(stderr, "apogee: rank %d ends with exit code %d: rank %d has ended the job\n",
                 rank(), exit_code, other);
    std::_Exit(exit_code);
  }

  std::vector<Connection> peers_;  // by rank; the entry of this process is closed
  std::vector<bool> was_open_;
  std::vector<uint64_t> completed_;
  int64_t in_flight_ = 0;
  std::vector<pollfd> entries_;
  std::vector<std::string> messages_;
};

// By rank: the lowest rank on the same machine.
std::vector<int> FirstRanks(const std::vector<std::string>& machines, std::optional<int> per) {
  std::vector<int> first;
  for (int r = 0; r < static_cast<int>(machines.size()); ++r) {
    const auto same = std::find(machines.begin(), machines.end(), machines[static_cast<size_t>(r)]);
    first.push_back(per ? r - r % *per : static_cast<int>(same - machines.begin()));
  }
  return first;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> StartTransport(const Job& job) {
  APOGEE_ASSIGN_OR_RETURN(const std::optional<int> ranks_per_machine,
                          RanksPerMachineInEnvironment());
  APOGEE_ASSIGN_OR_RETURN(Mesh mesh, Meet(job));
  return std::make_unique<TcpTransport>(job.rank, FirstRanks(mesh.machines, ranks_per_machine),
                                        std::move(mesh.peers));
}

}  // namespace apogee::comm::tcp
