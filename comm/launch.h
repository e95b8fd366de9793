// SPDX-License-Identifier: Apache-2.0

// launch: runs a function once per rank. Ranks are threads of this process; where mpirun, srun
// or `apogee run` started several processes, each of these is one rank, and the function runs once
// in it.
//
//   absl::Status status = launch({.num_ranks = 4}, [&](World& world) {
//     Tensor x = Tensor::Full({8}, DType::kF32, world.rank(), world.context());
//     world.group()->AllReduce(x);
//   });
//
// For threads there is nothing to install or start, and code above comm/ need not tell them from
// processes. Each rank has a device context of its own (allocator, ledger, threads). A rank that
// throws or returns early gives everybody who waits for it a CommError; launch then returns the
// error that came first, naming its rank. Among processes every one gets that error. A process that
// does not answer any more, or whose function does not come to its end after another failed, is
// named like one that throws; the job then ends with exit code 70 when the others exit. A thread
// cannot be ended: where a rank that is one does not come to its end, launch itself prints what
// happened and ends the process with exit code 70 (docs/launch.md).
#ifndef APOGEE_COMM_LAUNCH_H_
#define APOGEE_COMM_LAUNCH_H_

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "apogee/comm/group.h"
#include "apogee/core/status.h"
#include "apogee/core/trace.h"

namespace apogee::comm {

struct LaunchOptions {
  // 0: as many as mpirun, srun or `apogee run` started processes, else 1. Another number than they
  // started is an InvalidArgument.
  int num_ranks = 0;
  // Threads of each rank's loops and products; 0: the cores shared out (core/thread_team.h).
  int threads_per_rank = 0;
  // Where the ranks' contexts are: "cpu", "cuda", "cuda:1". Ranks that are threads share one GPU;
  // process r takes GPU r modulo those of its machine. An error where there is none.
  std::string device = "cpu";
  // What carries the collectives: "local" (ranks are threads), "mpi" (processes of mpirun or
  // srun; tensors of a GPU are staged through the host), "tcp" (the same for processes of `apogee
  // run`), "nccl" (processes with a GPU each; collectives on tensors of the
  // GPU go through NCCL, with the same bits, and the others as under "mpi" or "tcp"). "auto": local
  // for threads, mpi or tcp for processes on the CPU, nccl for processes on GPUs. Never another
  // than it says: what cannot be is an error, before the function runs, and the same on all ranks.
  std::string comm = "auto";
  // How long a collective waits for a peer before it fails, at most 1e9; over NCCL, with what its
  // rank had queued before it.
  double timeout_seconds = 60;
  // Folder for a record of every rank's last collectives, rank0.json and so on, which is written
  // when the launch fails: `apogee hang-report DIR` says whose fault it was. Empty: none.
  std::string flight_record_dir = {};
  // Gets a span per collective, and whatever the function records (World::trace). It must outlive
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
  // This rank's lane there, "compute" for what its own thread does; null without a trace.
  TraceLane* lane(std::string_view name) const { return LaneOf(trace_, rank_, name); }
  // All ranks; null in a world of one.
  const GroupPtr& group() const { return group_; }
  // The group of these world ranks, in this order; every member must ask for the same list. Null
  // for one rank. Asking twice gives one group: its calls are numbered together.
  GroupPtr NewGroup(const std::vector<int>& members) const;

 private:
  int rank_, size_;
  ContextPtr context_;
  MakeGroup make_group_;
  Trace* trace_;
  GroupPtr group_;
};

// This process among those that mpirun, srun or `apogee run` started, which are the ranks of every
// launch. One of one where it was started alone, or as the only one: then ranks are threads. Starts
// MPI or connects where there are several; FailedPrecondition when this build has no MPI,
// InvalidArgument and Unavailable where the variables of the environment are not right or the ranks
// do not come together.
struct Processes {
  int rank = 0;
  int size = 1;
};
absl::StatusOr<Processes> StartedProcesses();

// Blocks until every rank has ended. Invalid options return InvalidArgument and run nothing.
absl::Status launch(const LaunchOptions& options, const std::function<void(World&)>& fn);

}  // namespace apogee::comm

#endif  // APOGEE_COMM_LAUNCH_H_
