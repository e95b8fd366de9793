// launch: runs a function once per rank; ranks are threads of this process.
//
//   absl::Status status = launch({.num_ranks = 4}, [&](World& world) {
//     Tensor x = Tensor::Full({8}, DType::kF32, world.rank(), world.context());
//     world.group()->AllReduce(x);
//   });
//
// Nothing to install or start, and no code above comm/ can tell a thread from a process. Each rank
// has a device context of its own (allocator, ledger, threads). A rank that throws or returns early
// gives everybody who waits for it a CommError; launch then returns the error that came first,
// naming its rank.
#ifndef APOGEE_COMM_LAUNCH_H_
#define APOGEE_COMM_LAUNCH_H_

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "apogee/comm/group.h"
#include "apogee/core/status.h"
#include "apogee/core/trace.h"

namespace apogee::comm {

struct LaunchOptions {
  int num_ranks = 1;
  // Threads of each rank's loops and products; 0: the machine's cores shared out, at least 1.
  int threads_per_rank = 0;
  // How long a collective waits for a peer before it fails.
  double timeout_seconds = 60;
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

// Blocks until every rank has ended. Invalid options return InvalidArgument and run nothing.
absl::Status launch(const LaunchOptions& options, const std::function<void(World&)>& fn);

}  // namespace apogee::comm

#endif  // APOGEE_COMM_LAUNCH_H_
