// What a build without MPI has for it.
#include <cstdlib>
#include <utility>

#include "apogee/comm/mpi/library.h"
#include "apogee/comm/mpi/transport.h"

namespace apogee::comm::mpi {

std::optional<LibraryVersions> Library() { return std::nullopt; }

struct Transport::Requests {};

absl::StatusOr<std::unique_ptr<Transport>> Transport::Start() {
  return absl::FailedPreconditionError(
      "started by mpirun or srun, but this build has no MPI: install libopenmpi-dev (or "
      "libmpich-dev) and build again, or start the program by itself, whose ranks are threads");
}

Transport::Transport(int rank, int max_tag, std::vector<int> machines)
    : rank_(rank),
      size_(static_cast<int>(machines.size())),
      max_tag_(max_tag),
      machines_(std::move(machines)) {}
Transport::~Transport() = default;
void Transport::Post(int, std::string) {}
void Transport::Send(int, int, const void*, int64_t, uint64_t) {}
void Transport::Receive(int, int, void*, int64_t, uint64_t) {}
bool Transport::Poll(std::vector<Message>&, std::vector<uint64_t>&) { return false; }
int64_t Transport::num_in_flight() const { return 0; }
void Transport::Finish() {}
void Transport::Abort(int exit_code) { std::_Exit(exit_code); }

}  // namespace apogee::comm::mpi
