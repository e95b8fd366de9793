// SPDX-License-Identifier: Apache-2.0

// Reception: takes connections and lets in those that prove that they are of the job (hello.h).
// Others, that send something else, or nothing for a while, are dropped without an answer. Private
// to comm/tcp.
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
  // How long a connection may be there without having proved itself, and how many of those.
  static constexpr std::chrono::seconds kPatience{10};
  static constexpr size_t kMaxWaiting = 512;
  // How long the system may have no descriptor or memory for a connection, where there is none that
  // could be dropped instead.
  static constexpr std::chrono::seconds kScarcity{5};

  struct Guest {
    Socket socket;
    int rank = 0, size = 0;
    uint16_t port = 0;
    std::string machine = {};
  };

  Reception(Socket listener, Job job) : listener_(std::move(listener)), job_(std::move(job)) {}

  // DeadlineExceeded when nobody has come until then. ResourceExhausted and Unavailable, with the
  // system's reason, where no connection can be taken.
  absl::StatusOr<Guest> Next(Clock::time_point deadline);
  // Where it listens, without the port.
  std::string address() const { return OwnAddress(listener_).value_or(""); }
  // How many connections were dropped, and of what other version the last of them was.
  int num_strangers() const { return num_strangers_; }
  const std::string& other_version() const { return other_version_; }

 private:
  struct Waiting {
    Socket socket;
    Clock::time_point until;
    std::string said = {};  // of the message that is expected
    Call call = {};
    std::optional<Challenge> challenge = {};
    std::optional<Guest> guest = {};
  };
  // Reads what there is, and answers a call. Whether the connection is to be kept.
  bool Hear(Waiting& waiting);
  bool TakeCall(Waiting& waiting);
  bool TakeHello(Waiting& waiting);
  // Drops the oldest connection that has not called, or else the oldest; not the newest, whose call
  // may be on its way, where there is another. False where there is none.
  bool DropOne();
  // Takes a connection that waits for it.
  absl::Status TakeConnection();

  Socket listener_;
  Job job_;
  std::list<Waiting> waiting_;
  int num_strangers_ = 0;
  std::string other_version_;
  // Since when the system has had nothing for a connection, and when to try again.
  std::optional<Clock::time_point> scarce_since_;
  Clock::time_point try_again_at_ = {};
};

}  // namespace apogee::comm::tcp

#endif  // APOGEE_COMM_TCP_RECEPTION_H_
