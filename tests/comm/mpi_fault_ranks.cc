// What mpi_faults_test starts under mpirun: all-reduces in a loop, until rank 1 does what it is
// told. Every process prints the error that launch returns, and exits with 1 for it.
//
//   mpirun -np 3 mpi_fault_ranks kill
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>

#include "apogee/comm/launch.h"

using namespace apogee;

namespace {

void Misbehave(const std::string& fault, const comm::World& world) {
  if (fault == "throw") throw std::runtime_error("the disk is on fire");
  if (fault == "exit") std::exit(3);
  if (fault == "_exit") _exit(3);
  if (fault == "kill") raise(SIGKILL);
  if (fault == "stop") raise(SIGSTOP);
  if (fault == "forever") std::this_thread::sleep_for(std::chrono::hours(1));
  if (fault == "operation") world.group()->Barrier();
  if (fault == "count") {
    world.group()->AllReduce(Tensor::Zeros({1 << 19}, DType::kF32, world.context()));
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string fault = argc > 1 ? argv[1] : "";
  const bool after = fault == "hang_after";
  const absl::Status status =
      comm::launch({.threads_per_rank = 1, .timeout_seconds = 2}, [&](comm::World& world) {
        const Tensor x = Tensor::Full({1 << 20}, DType::kF32, 1, world.context());
        for (int i = 0; i < 20; ++i) {
          if (i == 5 && world.rank() == 1) {
            if (fault == "return") return;
            Misbehave(fault, world);
          }
          world.group()->AllReduce(x, comm::ReduceOp::kMax);
        }
      });
  // One write, so that the lines of several processes do not mix.
  if (!status.ok()) std::fputs(("ended with: " + Message(status) + "\n").c_str(), stderr);
  if (after) {
    // A process that is stopped when the others are about to end.
    const auto process = ValueOrThrow(comm::StartedProcesses());
    if (process.rank == 1) raise(SIGSTOP);
  }
  return status.ok() ? 0 : 1;
}
