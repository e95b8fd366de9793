// SPDX-License-Identifier: Apache-2.0

// Transport: moves bytes between this process and the other processes of its job. Private to comm;
// knows nothing of tensors, groups or collectives. Implemented by comm/mpi and comm/tcp.
//
//   APOGEE_ASSIGN_OR_RETURN(auto transport, tcp::StartTransport(job));
//   transport->Post(1, "a message");                       // small, in order per pair of processes
//   transport->Receive(1, tag, buffer, bytes, /*id=*/7);   // large, straight into `buffer`
//   transport->Poll(events);                               // never blocks
//
// Calls may come from several threads, but only one at a time. Start and Finish must come from the
// same thread. Only these two and Abort, which has a time limit, wait for peers. An error of this
// process throws Error; a lost peer is an event.
#ifndef APOGEE_COMM_TRANSPORT_TRANSPORT_H_
#define APOGEE_COMM_TRANSPORT_TRANSPORT_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace apogee::comm {

class Transport {
 public:
  // The most bytes of a message. Small enough that every MPI sends it at once ("eagerly").
  static constexpr size_t kMaxMessageBytes = 4000;

  struct Message {
    int from;
    std::string bytes;
  };
  // A process that can no longer send or receive. Not every transport notices; otherwise the engine
  // recognizes a lost process by its silence.
  struct Gone {
    int rank;
    std::string why;  // "has ended or is cut off: ..."
  };
  struct Events {
    std::vector<Message> arrived;
    std::vector<uint64_t> completed;  // ids of Send and Receive
    std::vector<Gone> gone;           // each process once
  };

  virtual ~Transport() = default;

  // "MPI", "TCP"; for messages.
  virtual std::string_view name() const = 0;
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(machines_.size()); }
  // Tags of Send and Receive go from 1 to this.
  int max_tag() const { return max_tag_; }
  // The machine of a process, given by the lowest rank on that machine.
  int machine_of(int rank) const { return machines_[static_cast<size_t>(rank)]; }
  // Bytes that Send has sent to other machines. Any thread may ask.
  int64_t bytes_to_other_machines() const { return bytes_to_other_machines_; }

  // Sends a message. Messages to one process arrive in the order of the calls.
  virtual void Post(int to, std::string message) = 0;
  // Matched by (process, tag) in the order of the calls. The memory must stay unchanged until Poll
  // returns the id. At most 2^31 - 1 bytes each.
  virtual void Send(int to, int tag, const void* data, int64_t bytes, uint64_t id) = 0;
  virtual void Receive(int from, int tag, void* data, int64_t bytes, uint64_t id) = 0;
  // Appends the events since the last call. Returns whether there were any.
  virtual bool Poll(Events& events) = 0;
  // Number of sends and receives whose ids Poll has yet to return.
  virtual int64_t num_in_flight() const = 0;

  // Waits until all processes call it. Nothing may be in flight.
  virtual void Finish() = 0;
  // Ends all processes that can be reached. Does not return.
  [[noreturn]] virtual void Abort(int exit_code) = 0;

 protected:
  Transport(int rank, int max_tag, std::vector<int> machines)
      : rank_(rank), max_tag_(max_tag), machines_(std::move(machines)) {}
  void CountSent(int to, int64_t bytes) {
    if (machine_of(to) != machine_of(rank_)) bytes_to_other_machines_ += bytes;
  }

 private:
  int rank_, max_tag_;
  std::vector<int> machines_;  // by rank
  std::atomic<int64_t> bytes_to_other_machines_{0};
};

}  // namespace apogee::comm

#endif  // APOGEE_COMM_TRANSPORT_TRANSPORT_H_
