// Reception: takes connections and lets in those that present the job's token. Others, that send
// something else, or nothing for a while, are dropped without an answer. Private to comm/tcp.
//
//   Reception reception(std::move(listener), job.token);
//   APOGEE_ASSIGN_OR_RETURN(Reception::Guest guest, reception.Next(deadline));
#ifndef APOGEE_COMM_TCP_RECEPTION_H_
#define APOGEE_COMM_TCP_RECEPTION_H_

#include <list>
#include <string>

#include "apogee/comm/tcp/hello.h"
#include "apogee/comm/tcp/socket.h"

namespace apogee::comm::tcp {

class Reception {
 public:
  // How long a connection may be there without having said its hello, and how many of those.
  static constexpr std::chrono::seconds kPatience{10};
  static constexpr size_t kMaxWaiting = 512;

  struct Guest {
    Socket socket;
    Hello hello;
  };

  Reception(Socket listener, std::string token)
      : listener_(std::move(listener)), token_(std::move(token)) {}

  // DeadlineExceeded when nobody has come until then.
  absl::StatusOr<Guest> Next(Clock::time_point deadline);
  // How many connections were dropped.
  int num_strangers() const { return num_strangers_; }

 private:
  struct Waiting {
    Socket socket;
    Clock::time_point until;
    std::string said = {};
  };
  // Reads what there is. Whether the connection is to be kept.
  static bool Hear(Waiting& waiting);

  Socket listener_;
  std::string token_;
  std::list<Waiting> waiting_;
  int num_strangers_ = 0;
};

}  // namespace apogee::comm::tcp

#endif  // APOGEE_COMM_TCP_RECEPTION_H_
