// SPDX-License-Identifier: Apache-2.0

// Group: some ranks that communicate, seen from one of them.
//
//   group.AllReduce(grad, ReduceOp::kSum);             // every member calls, in the same order
//   auto work = group.AllGatherAsync(full, shard);     // full: size() times shard, in rank order
//   work->Wait();
//
// Tensors are contiguous; counts and dtypes are equal on all members. Sums add in rank order (or,
// in reproducible mode, in a binary tree over ranks), accumulate in f32 (f64 for f64), round once,
// and give every member the same bits. Every member compares a fingerprint (operation, sequence
// number, dtype, count, root) before data moves: a mismatch, a peer that failed or left, or one
// that does not come within the timeout gives every member a CommError that names it. Collectives
// of one group must be called in one order by all members; different groups are independent.
//
// Tensors of a GPU: a collective comes after what was queued on the rank's stream before the call,
// and before what is queued after Wait(). Ranks that are threads, and processes that stage through
// the host, wait for both on the host. Over NCCL (LaunchOptions::comm) Wait() waits until all
// members have called, and NCCL has queued the collective: the stream waits for it, not the host.
// An error of the device that comes later fails the group's next call, and the launch.
//
// A group belongs to one thread of its rank; Duplicate makes one for another thread. A null group
// pointer stands for a group of one, never for "the world".
#ifndef APOGEE_COMM_GROUP_H_
#define APOGEE_COMM_GROUP_H_

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "apogee/comm/reduce_op.h"
#include "apogee/comm/traffic.h"
#include "apogee/comm/work.h"
#include "apogee/core/trace.h"
#include "apogee/tensor/tensor.h"

namespace apogee::comm {

// One member's call. What a backend executes and a fingerprint is made from.
struct CollectiveCall {
  CollectiveKind kind;
  ReduceOp op = ReduceOp::kSum;
  // Root of broadcast and reduce, peer of send and recv: a rank of the group.
  int root = 0;
  // Read / written. In place: both are the same tensor.
  Tensor input = {};
  Tensor output = {};
  // The member's lane, which gets a span per call, from when its part begins to run to when it is
  // complete (TraceCall); null: no trace.
  TraceLane* lane = nullptr;
  int64_t payload_bytes = 0;
  // The member waits for it at once: nobody need carry it on for a thread that computes.
  bool blocking = false;
};
// "[0 2]".
std::string FormatRanks(const std::vector<int>& ranks);
// What a backend encloses its execution of the call in.
TraceSpan TraceCall(const CollectiveCall& call);

class Group {
 public:
  virtual ~Group() = default;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(world_ranks_.size()); }
  // The members, by their rank in the world; index = rank in this group.
  const std::vector<int>& world_ranks() const { return world_ranks_; }
  // "[0 2]": for messages.
  std::string ToString() const { return FormatRanks(world_ranks_); }
  const Traffic& traffic() const { return traffic_; }
  // A group of the same members whose calls are matched among themselves, for another thread of
  // this rank. Collective: members' first duplicates belong together, their second ones, and so on.
  // Its collectives wait for a peer for `timeout`; one that failed or left ends the wait at once.
  virtual std::shared_ptr<Group> Duplicate(std::chrono::milliseconds timeout) = 0;

  // In place, on every member.
  std::shared_ptr<Work> AllReduceAsync(const Tensor& tensor, ReduceOp op = ReduceOp::kSum);
  // output = this member's slice of the reduced input; input has size() times output's elements.
  // output may be that slice of input.
  std::shared_ptr<Work> ReduceScatterAsync(const Tensor& output, const Tensor& input,
                                           ReduceOp op = ReduceOp::kSum);
  // output = the inputs in rank order. input may be this member's slice of output.
  std::shared_ptr<Work> AllGatherAsync(const Tensor& output, const Tensor& input);
  std::shared_ptr<Work> BroadcastAsync(const Tensor& tensor, int root);
  // The root's tensor becomes the reduced one; the others' stay.
  std::shared_ptr<Work> ReduceAsync(const Tensor& tensor, int root, ReduceOp op = ReduceOp::kSum);
  // Slice i of input goes to member i; slice j of output comes from member j. Not in place.
  std::shared_ptr<Work> AllToAllAsync(const Tensor& output, const Tensor& input);
  // Point to point, matched in order between the two ranks.
  std::shared_ptr<Work> SendAsync(const Tensor& tensor, int destination);
  std::shared_ptr<Work> RecvAsync(const Tensor& tensor, int source);
  std::shared_ptr<Work> BarrierAsync();

  // The same, waited for.
  void AllReduce(const Tensor& tensor, ReduceOp op = ReduceOp::kSum);
  void ReduceScatter(const Tensor& output, const Tensor& input, ReduceOp op = ReduceOp::kSum);
  void AllGather(const Tensor& output, const Tensor& input);
  void Broadcast(const Tensor& tensor, int root);
  void Reduce(const Tensor& tensor, int root, ReduceOp op = ReduceOp::kSum);
  void AllToAll(const Tensor& output, const Tensor& input);
  void Send(const Tensor& tensor, int destination);
  void Recv(const Tensor& tensor, int source);
  void Barrier();

 protected:
  // `lane`: of this member, for its collectives; null: no trace.
  Group(int rank, std::vector<int> world_ranks, TraceLane* lane = nullptr);
  // Whether Submit takes tensors of a GPU. For a group that does not they travel through the host.
  virtual bool TakesDeviceMemory() const { return false; }
  // Starts the call and returns before the peers arrive. Arguments have been checked. What is
  // queued on their device comes before it.
  virtual std::shared_ptr<Work> Submit(CollectiveCall call) = 0;

 private:
  std::shared_ptr<Work> Start(CollectiveCall call, int64_t payload_bytes);
  // Submit through copies on the host.
  std::shared_ptr<Work> SubmitStaged(CollectiveCall call);
  // Runs start, whose call is a blocking one, and waits for it.
  template <typename Fn>
  void StartAndWait(const Fn& start);

  int rank_;
  std::vector<int> world_ranks_;
  TraceLane* lane_;
  Traffic traffic_;
  bool blocking_ = false;  // the next call
};

using GroupPtr = std::shared_ptr<Group>;

// Members of a group, 1 for null.
inline int GroupSize(const GroupPtr& group) { return group == nullptr ? 1 : group->size(); }

}  // namespace apogee::comm

#endif  // APOGEE_COMM_GROUP_H_
