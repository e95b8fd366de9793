// SPDX-License-Identifier: Apache-2.0

// Reception: accepts connections and admits those that prove that they belong to the job (hello.h).
// Connections that send something else, or nothing for a while, are dropped without an answer.
// Private to comm/tcp.
//
//   Reception reception(std::move(listener), job);
//   APOGEE_ASSIGN_OR_RETURN(Reception::Guest guest, reception.Next(deadline));
#ifndef APOGEE_COMM_TCP_RECEPTION_H_
#define APOGEE_COMM_TCP_RECEPTION_H_

#include <list>
#include <optional>
#include <string>

#include "apogee/comm/tcp/hello.h"
#include "apogee/comm/tcp/socket.h"

namespace apogee::comm::tcp {

class Reception {
 public:
  // How long a connection may stay without a proof, and how many such connections may wait.
  static constexpr std::chrono::seconds kPatience{10};
  static constexpr size_t kMaxWaiting = 512;
  // How long the system may lack resources for a new connection while there is none to drop.
  static constexpr std::chrono::seconds kScarcity{5};

  struct Guest {
    Socket socket;
    int rank = 0, size = 0;
    uint16_t port = 0;
    std::string machine = {};
  };

  Reception(Socket listener, Job job) : listener_(std::move(listener)), job_(std::move(job)) {}

  // The next admitted process. Returns DeadlineExceeded if none comes before the deadline, and
  // ResourceExhausted or Unavailable, with the system's reason, if no connection can be accepted.
  absl::StatusOr<Guest> Next(Clock::time_point deadline);
  // The address where it listens, without the port.
  std::string address() const { return OwnAddress(listener_).value_or(""); }
  // Number of dropped connections, and the other version that the last of them had.
  int num_strangers() const { return num_strangers_; }
  // Number of those that were dropped because the process had no free descriptor for another.
  int num_dropped_for_room() const { return num_dropped_for_room_; }
  const std::string& other_version() const { return other_version_; }

 private:
  struct Waiting {
    Socket socket;
    Clock::time_point until;
    std::string said = {};  // the bytes received of the expected message
    Call call = {};
    std::optional<Challenge> challenge = {};
    std::optional<Guest> guest = {};
  };
  // Reads the bytes that have arrived, and answers a call. Returns whether to keep the connection.
  bool Hear(Waiting& waiting);
  bool TakeCall(Waiting& waiting);
  bool TakeHello(Waiting& waiting);
  // Drops the oldest connection that has not called, or else the oldest. Spares the newest, whose
  // call may be on its way, if there is another. Returns false if there is none to drop.
  bool DropOne();
  // Accepts a connection that is waiting.
  absl::Status TakeConnection();

  Socket listener_;
  Job job_;
  std::list<Waiting> waiting_;
  int num_strangers_ = 0;
  int num_dropped_for_room_ = 0;
  std::string other_version_;
  // Since when the system has lacked resources for a connection, and when to try again.
  std::optional<Clock::time_point> scarce_since_;
  Clock::time_point try_again_at_ = {};
};

}  // namespace apogee::comm::tcp

#endif  // APOGEE_COMM_TCP_RECEPTION_H_
