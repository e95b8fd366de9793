// Transport: bytes between the processes that mpirun or srun started. Private to comm; knows
// nothing of tensors, groups or collectives.
//
//   APOGEE_ASSIGN_OR_RETURN(auto transport, Transport::Start());
//   transport->Post(1, "a message");                       // small, in order per pair of processes
//   transport->Receive(1, tag, buffer, bytes, /*id=*/7);   // large, straight into its place
//   transport->Poll(arrived, completed);                   // never blocks
//
// Calls may come from several threads, but one at a time (MPI_THREAD_SERIALIZED): MPI libraries
// differ in, and are slower at, more than that. Start and Finish come from the same thread. No call
// waits for a peer except these two. MPI errors throw Error.
#ifndef APOGEE_COMM_MPI_TRANSPORT_H_
#define APOGEE_COMM_MPI_TRANSPORT_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apogee/core/status.h"

namespace apogee::comm::mpi {

// How many processes mpirun or srun started, this one among them, according to the environment; 0
// where they do not say. Absent: this process was started alone.
std::optional<int> ProcessesInEnvironment();

// The value of APOGEE_RANKS_PER_MACHINE, which makes so many processes, in the order of their
// ranks, count as a machine of their own. Absent: machines are what they are. InvalidArgument for
// anything but a positive number.
absl::StatusOr<std::optional<int>> RanksPerMachineInEnvironment();

class Transport {
 public:
  // The most bytes of a message. Small enough to leave at once ("eagerly") under every MPI.
  static constexpr size_t kMaxMessageBytes = 4000;

  struct Message {
    int from;
    std::string bytes;
  };

  // MPI_Init: waits for all processes. FailedPrecondition without MPI in this build;
  // InvalidArgument as from RanksPerMachineInEnvironment.
  static absl::StatusOr<std::unique_ptr<Transport>> Start();
  ~Transport();

  int rank() const { return rank_; }
  int size() const { return size_; }
  // Tags of Send and Receive: 1 to this.
  int max_tag() const { return max_tag_; }
  // The machine of a process: the rank of the first process there.
  int machine_of(int rank) const { return machines_[static_cast<size_t>(rank)]; }
  // What Send has sent to other machines. Any thread may ask.
  int64_t bytes_to_other_machines() const { return bytes_to_other_machines_; }

  void Post(int to, std::string message);
  // Matched by (process, tag) in the order of the calls. The memory must stay as it is until Poll
  // returns the id. At most 2^31 - 1 bytes each.
  void Send(int to, int tag, const void* data, int64_t bytes, uint64_t id);
  void Receive(int from, int tag, void* data, int64_t bytes, uint64_t id);
  // Appends what has happened since the last call. Returns whether anything has.
  bool Poll(std::vector<Message>& arrived, std::vector<uint64_t>& completed);
  // Sends and receives whose ids Poll has yet to return.
  int64_t num_in_flight() const;

  // MPI_Finalize: waits until all processes call it. Nothing may be in flight.
  void Finish();
  // Ends all processes; does not return.
  [[noreturn]] void Abort(int exit_code);

 private:
  struct Requests;
  Transport(int rank, int max_tag, std::vector<int> machines);

  int rank_, size_, max_tag_;
  std::vector<int> machines_;  // by rank
  std::atomic<int64_t> bytes_to_other_machines_{0};
  std::unique_ptr<Requests> requests_;
};

}  // namespace apogee::comm::mpi

#endif  // APOGEE_COMM_MPI_TRANSPORT_H_
