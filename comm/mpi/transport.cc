// SPDX-License-Identifier: Apache-2.0

#include "apogee/comm/mpi/transport.h"

#include <mpi.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "apogee/comm/transport/machines.h"

namespace apogee::comm::mpi {
namespace {

constexpr int kMessageTag = 0;

void Check(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  Throw(what, ": ", std::string(text, static_cast<size_t>(length)));
}

// The machine of every process, given by the lowest rank on that machine.
std::vector<int> FindMachines(int rank, int size, std::optional<int> ranks_per_machine) {
  int first = rank;
  if (ranks_per_machine) {
    first = rank - rank % *ranks_per_machine;
  } else {
    MPI_Comm machine;
    Check(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &machine),
          "MPI_Comm_split_type");
    Check(MPI_Bcast(&first, 1, MPI_INT, 0, machine), "MPI_Bcast");
    Check(MPI_Comm_free(&machine), "MPI_Comm_free");
  }
  std::vector<int> machines(static_cast<size_t>(size));
  Check(MPI_Allgather(&first, 1, MPI_INT, machines.data(), 1, MPI_INT, MPI_COMM_WORLD),
        "MPI_Allgather");
  return machines;
}

// Requests lie in one array, as MPI_Testsome needs them. First comes one receive per peer for its
// next message, which is posted again after it has arrived; then the running sends and receives.
struct Requests {
  struct Flight {
    uint64_t id = 0;
    std::unique_ptr<std::string> message;  // a message being sent, which has no id
  };
  std::vector<MPI_Request> all;
  std::vector<int> peers;             // the peers of the first requests
  std::vector<std::string> incoming;  // their buffers
  std::vector<Flight> flights;        // those of the other requests
  std::vector<int> indices;
  std::vector<MPI_Status> statuses;

  void Listen(size_t i) {
    Check(MPI_Irecv(incoming[i].data(), static_cast<int>(incoming[i].size()), MPI_BYTE, peers[i],
                    kMessageTag, MPI_COMM_WORLD, &all[i]),
          "MPI_Irecv");
  }
};

class MpiTransport : public Transport {
 public:
  MpiTransport(int rank, int max_tag, std::vector<int> machines);

  std::string_view name() const override { return "MPI"; }
  void Post(int to, std::string message) override;
  void Send(int to, int tag, const void* data, int64_t bytes, uint64_t id) override;
  void Receive(int from, int tag, void* data, int64_t bytes, uint64_t id) override;
  bool Poll(Events& events) override;
  int64_t num_in_flight() const override { return static_cast<int64_t>(requests_.flights.size()); }
  void Finish() override;
  [[noreturn]] void Abort(int exit_code) override;

 private:
  Requests requests_;
};

MpiTransport::MpiTransport(int rank, int max_tag, std::vector<int> machines)
    : Transport(rank, max_tag, std::move(machines)) {
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank) continue;
    requests_.peers.push_back(peer);
    requests_.all.push_back(MPI_REQUEST_NULL);
    requests_.incoming.emplace_back(kMaxMessageBytes, '\0');
  }
  for (size_t i = 0; i < requests_.peers.size(); ++i) requests_.Listen(i);
}

void MpiTransport::Post(int to, std::string message) {
  message.resize(std::min(message.size(), kMaxMessageBytes));
  auto kept = std::make_unique<std::string>(std::move(message));
  MPI_Request request;
  Check(MPI_Isend(kept->data(), static_cast<int>(kept->size()), MPI_BYTE, to, kMessageTag,
                  MPI_COMM_WORLD, &request),
        "MPI_Isend");
  requests_.all.push_back(request);
  requests_.flights.push_back({0, std::move(kept)});
}

void MpiTransport::Send(int to, int tag, const void* data, int64_t bytes, uint64_t id) {
  CountSent(to, bytes);
  MPI_Request request;
  Check(MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, to, tag, MPI_COMM_WORLD, &request),
        "MPI_Isend");
  requests_.all.push_back(request);
  requests_.flights.push_back({id, nullptr});
}

void MpiTransport::Receive(int from, int tag, void* data, int64_t bytes, uint64_t id) {
  MPI_Request request;
  Check(MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, from, tag, MPI_COMM_WORLD, &request),
        "MPI_Irecv");
  requests_.all.push_back(request);
  requests_.flights.push_back({id, nullptr});
}

bool MpiTransport::Poll(Events& events) {
  Requests& r = requests_;
  r.indices.resize(r.all.size());
  r.statuses.resize(r.all.size());
  int count = 0;
  const int code = MPI_Testsome(static_cast<int>(r.all.size()), r.all.data(), &count,
                                r.indices.data(), r.statuses.data());
  if (code == MPI_ERR_IN_STATUS) {
    for (int i = 0; i < count; ++i) {
      Check(r.statuses[static_cast<size_t>(i)].MPI_ERROR, "a message between processes");
    }
  }
  Check(code, "MPI_Testsome");
  if (count == MPI_UNDEFINED || count == 0) return false;
  std::vector<size_t> ended;
  for (int k = 0; k < count; ++k) {
    const auto i = static_cast<size_t>(r.indices[static_cast<size_t>(k)]);
    if (i >= r.peers.size()) {
      ended.push_back(i);
      continue;
    }
    int bytes = 0;
    MPI_Get_count(&r.statuses[static_cast<size_t>(k)], MPI_BYTE, &bytes);
    events.arrived.push_back({r.peers[i], r.incoming[i].substr(0, static_cast<size_t>(bytes))});
    r.Listen(i);
  }
  // From the back, so that moving the last into a gap moves none that is still to be processed.
  std::sort(ended.rbegin(), ended.rend());
  for (const size_t i : ended) {
    const size_t flight = i - r.peers.size();
    if (r.flights[flight].message == nullptr) events.completed.push_back(r.flights[flight].id);
    if (flight + 1 < r.flights.size()) {
      r.flights[flight] = std::move(r.flights.back());
      r.all[i] = r.all.back();
    }
    r.flights.pop_back();
    r.all.pop_back();
  }
  return true;
}

void MpiTransport::Finish() {
  for (size_t i = 0; i < requests_.peers.size(); ++i) {
    MPI_Cancel(&requests_.all[i]);
    MPI_Wait(&requests_.all[i], MPI_STATUS_IGNORE);
  }
  MPI_Finalize();
}

void MpiTransport::Abort(int exit_code) {
  MPI_Abort(MPI_COMM_WORLD, exit_code);
  std::_Exit(exit_code);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> StartTransport() {
  int initialized = 0;
  MPI_Initialized(&initialized);
  if (initialized != 0) {
    return absl::FailedPreconditionError(
        "launch: the program has called MPI_Init itself; leave it to launch");
  }
  APOGEE_ASSIGN_OR_RETURN(const std::optional<int> ranks_per_machine,
                          RanksPerMachineInEnvironment());
  int provided = 0;
  Check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread");
  if (provided < MPI_THREAD_SERIALIZED) {
    return absl::FailedPreconditionError(
        "launch: this MPI cannot be called from several threads, not even one at a time "
        "(MPI_THREAD_SERIALIZED); use a build of it that can");
  }
  // An error, such as a lost peer, must not end this process: the caller reports it.
  Check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  int rank = 0, size = 1, found = 0;
  int* max_tag = nullptr;
  Check(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank");
  Check(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
  Check(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &max_tag, &found), "MPI_Comm_get_attr");
  return std::make_unique<MpiTransport>(rank, found != 0 ? *max_tag : 32767,
                                        FindMachines(rank, size, ranks_per_machine));
}

}  // namespace apogee::comm::mpi
