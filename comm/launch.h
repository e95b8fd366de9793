// SPDX-License-Identifier: Apache-2.0

// launch: runs a function once per rank. Ranks are threads of this process. If mpirun, srun or
// `apogee run` started several processes, each process is one rank and runs the function once.
//
//   absl::Status status = launch({.num_ranks = 4}, [&](World& world) {
//     Tensor x = Tensor::Full({8}, DType::kF32, world.rank(), world.context());
//     world.group()->AllReduce(x);
//   });
//
// Threads need no installation and no starter, and code above comm/ is the same for threads and
// processes. Each rank has its own device context (allocator, ledger, threads).
//
// If a rank throws or returns early, all ranks that wait for it get a CommError. launch then
// returns the error that came first, with the name of its rank; every process returns that same
// error. The error also names a process that no longer answers, or whose function does not end
// after another one failed. The job then ends with exit code 70 when the other processes exit. A
// thread cannot be ended from outside: if a rank that is a thread does not end, launch prints the
// error and ends the whole process with exit code 70 (docs/launch.md).
#ifndef APOGEE_COMM_LAUNCH_H_
#define APOGEE_COMM_LAUNCH_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "apogee/comm/group.h"
#include "apogee/core/status.h"
#include "apogee/core/trace/trace.h"

namespace apogee::comm {

enum class Backend : uint8_t {
  kAuto,   // kLocal for threads, kMpi or kTcp for processes on the CPU, kNccl for those on GPUs
  kLocal,  // ranks are threads
  kMpi,    // processes of mpirun or srun; tensors of a GPU are staged through the host
  kTcp,    // processes of `apogee run`; tensors of a GPU are staged through the host
  kNccl,   // processes with a GPU each; tensors of the GPU go through NCCL, with the same bits as
           // without it; tensors of the CPU go through kMpi or kTcp
};

// "auto", "local", "mpi", "tcp", "nccl".
const char* Name(Backend backend);
// The inverse, for command lines. InvalidArgument for another text.
absl::StatusOr<Backend> ParseBackend(const std::string& text);

struct LaunchOptions {
  // 0: as many as mpirun, srun or `apogee run` started processes, else 1. Another number than the
  // started processes is an InvalidArgument.
  int num_ranks = 0;
  // CPU threads per rank for loops and matrix products. 0: an equal share of the cores
  // (core/process/thread_team.h).
  int threads_per_rank = 0;
  // Device of the ranks' contexts: "cpu", "cuda", "cuda:1". Ranks that are threads share one GPU;
  // process r takes GPU r modulo the number of GPUs of its machine. No GPU there is an error.
  std::string device = "cpu";
  // The backend that carries the collectives. A backend that cannot be used is never replaced by
  // another: it is an error on all ranks, before the function runs.
  Backend comm = Backend::kAuto;
  // How long a collective waits for a peer before it fails, at most 1e9. Over NCCL the time
  // includes the work that the peer's rank had queued before the collective.
  double timeout_seconds = 60;
  // Folder for a record of every rank's last collectives: rank0.json and so on. Written if the
  // launch fails; `apogee hang-report DIR` then says which rank is at fault. Empty: no record.
  std::string flight_record_dir = {};
  // Records a span per collective, and all that the function records (World::trace). Must outlive
  // the call. Null: nothing is recorded.
  Trace* trace = nullptr;
};

// One rank's view of all ranks. Valid within the launched function.
class World {
 public:
  using MakeGroup = std::function<GroupPtr(const std::vector<int>& members)>;
  World(int rank, int size, ContextPtr context, MakeGroup make_group, Trace* trace = nullptr);

  int rank() const { return rank_; }
  int size() const { return size_; }
  const ContextPtr& context() const { return context_; }
  // LaunchOptions::trace.
  Trace* trace() const { return trace_; }
  // This rank's lane of the trace: "compute" for work of its own thread. Null without a trace.
  TraceLane* lane(std::string_view name) const { return LaneOf(trace_, rank_, name); }
  // The group of all ranks; null in a world of one rank.
  const GroupPtr& group() const { return group_; }
  // The group of these world ranks, in this order. Every member must ask for the same list. Null
  // for one rank. Asking twice gives the same group: its calls share one numbering.
  GroupPtr NewGroup(const std::vector<int>& members) const;

 private:
  int rank_, size_;
  ContextPtr context_;
  MakeGroup make_group_;
  Trace* trace_;
  GroupPtr group_;
};

// This process's place among the processes that mpirun, srun or `apogee run` started. These are the
// ranks of every launch. {0, 1} if this process was started alone; ranks are threads then. The
// first call starts MPI or connects the processes. Errors: FailedPrecondition if the processes need
// MPI and cannot use it (this build has none, for example), InvalidArgument for wrong environment
// variables, Unavailable if the ranks cannot connect.
struct Processes {
  int rank = 0;
  int size = 1;
};
absl::StatusOr<Processes> StartedProcesses();

// Blocks until every rank has ended. Invalid options return InvalidArgument and run nothing.
absl::Status launch(const LaunchOptions& options, const std::function<void(World&)>& fn);

}  // namespace apogee::comm

#endif  // APOGEE_COMM_LAUNCH_H_
