// SPDX-License-Identifier: Apache-2.0

// Group: ranks that communicate with each other, seen from one of them.
//
//   group.AllReduce(grad, ReduceOp::kSum);             // every member calls, in the same order
//   auto work = group.AllGatherAsync(full, shard);     // full: size() times shard, in rank order
//   work->Wait();
//
// Tensors must be contiguous, with the same dtype and count on all members. Sums add in a balanced
// binary tree over the ranks, ((r0 + r1) + (r2 + r3)) + ... They accumulate in f32 (f64 for f64),
// round once, and give every member the same bits on every backend. Before data moves, every
// member compares a fingerprint: operation, sequence number, dtype, count, root. All members get a
// CommError with the name of the rank at fault if fingerprints differ, if a peer failed or left, or
// if a peer does not arrive within the timeout. All members must call the collectives of one group
// in the same order; different groups are independent.
//
// Tensors of a GPU: a collective runs after the work that was queued on the rank's stream before
// the call, and before the work that is queued after Wait(). If ranks are threads, or processes
// that stage tensors through the host, the host thread blocks for both. Over NCCL
// (LaunchOptions::comm) Wait() returns once all members have called and NCCL has queued the
// collective: the stream waits for the data, the host does not. A device error that shows later
// fails the group's next call, and the launch.
//
// A group belongs to one thread of its rank; Duplicate makes one for another thread. A null group
// pointer stands for a group of one rank, never for "the world".
#ifndef APOGEE_COMM_GROUP_H_
#define APOGEE_COMM_GROUP_H_

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "apogee/comm/traffic.h"
#include "apogee/comm/work.h"
#include "apogee/core/trace/trace.h"
#include "apogee/tensor/tensor.h"

namespace apogee::comm {

// One member's call, as the backend runs it. Fingerprints are made from it.
struct CollectiveCall {
  CollectiveKind kind;
  ReduceOp op = ReduceOp::kSum;
  // Root of broadcast and reduce, peer of send and recv: a rank within the group.
  int root = 0;
  // The tensors to read and to write. In place: both are the same tensor.
  Tensor input = {};
  Tensor output = {};
  // Of an all-to-all with unequal parts: the elements for, and from, each member. Else empty.
  std::vector<int64_t> input_counts = {}, output_counts = {};
  // The member's trace lane. It gets a span per call, from the start of this member's part to its
  // end (TraceCall). Null: no trace.
  TraceLane* lane = nullptr;
  int64_t payload_bytes = 0;
  // The caller blocks at once; don't wake the progress thread.
  bool blocking = false;
};
// Elements of an all-to-all, in elements from the start of the tensor.
struct ToAllPart {
  int64_t begin = 0, count = 0;
};
// What member `peer` of a group of `size` gets of the input, and what comes from it.
ToAllPart InputPart(const CollectiveCall& call, size_t peer, size_t size);
ToAllPart OutputPart(const CollectiveCall& call, size_t peer, size_t size);

// For example "[0 2]".
std::string FormatRanks(const std::vector<int>& ranks);
// Backends hold this span while they execute the call.
TraceSpan TraceCall(const CollectiveCall& call);

class Group {
 public:
  virtual ~Group() = default;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(world_ranks_.size()); }
  // World ranks of the members; index = rank in this group.
  const std::vector<int>& world_ranks() const { return world_ranks_; }
  // For messages, for example "[0 2]".
  std::string ToString() const { return FormatRanks(world_ranks_); }
  const Traffic& traffic() const { return traffic_; }
  // Returns a group of the same members for another thread of this rank. Its calls are matched only
  // with calls of the members' same duplicate: first with first, second with second. Collective.
  // The new group's collectives wait for a peer for `timeout`; a peer that failed or left ends the
  // wait at once.
  virtual std::shared_ptr<Group> Duplicate(std::chrono::milliseconds timeout) = 0;

  // In place on every member.
  std::shared_ptr<Work> AllReduceAsync(const Tensor& tensor, ReduceOp op = ReduceOp::kSum);
  // output = this member's slice of the reduced input. input has size() times as many elements as
  // output, and output may be that slice of input.
  std::shared_ptr<Work> ReduceScatterAsync(const Tensor& output, const Tensor& input,
                                           ReduceOp op = ReduceOp::kSum);
  // output = the members' inputs in rank order. input may be this member's slice of output.
  std::shared_ptr<Work> AllGatherAsync(const Tensor& output, const Tensor& input);
  std::shared_ptr<Work> BroadcastAsync(const Tensor& tensor, int root);
  // The root's tensor becomes the reduced one; the tensors of the others stay as they are.
  std::shared_ptr<Work> ReduceAsync(const Tensor& tensor, int root, ReduceOp op = ReduceOp::kSum);
  // Slice i of input goes to member i; slice j of output comes from member j. The two must not
  // share memory.
  std::shared_ptr<Work> AllToAllAsync(const Tensor& output, const Tensor& input);
  // The same with parts of any size: member i gets input_counts[i] elements of input, and
  // output_counts[j] elements come from member j, both in rank order. Counts may be 0. What member
  // i sends to j, in its input_counts[j], must be what j expects, in its output_counts[i]. The
  // traffic counts the bytes for other members only.
  std::shared_ptr<Work> AllToAllAsync(const Tensor& output, std::vector<int64_t> output_counts,
                                      const Tensor& input, std::vector<int64_t> input_counts);
  // Point to point, matched in order between the two ranks.
  std::shared_ptr<Work> SendAsync(const Tensor& tensor, int destination);
  std::shared_ptr<Work> RecvAsync(const Tensor& tensor, int source);
  std::shared_ptr<Work> BarrierAsync();

  // The same, blocking.
  void AllReduce(const Tensor& tensor, ReduceOp op = ReduceOp::kSum);
  void ReduceScatter(const Tensor& output, const Tensor& input, ReduceOp op = ReduceOp::kSum);
  void AllGather(const Tensor& output, const Tensor& input);
  void Broadcast(const Tensor& tensor, int root);
  void Reduce(const Tensor& tensor, int root, ReduceOp op = ReduceOp::kSum);
  void AllToAll(const Tensor& output, const Tensor& input);
  void AllToAll(const Tensor& output, std::vector<int64_t> output_counts, const Tensor& input,
                std::vector<int64_t> input_counts);
  void Send(const Tensor& tensor, int destination);
  void Recv(const Tensor& tensor, int source);
  void Barrier();

 protected:
  // `lane`: this member's trace lane for collectives; null: no trace.
  Group(int rank, std::vector<int> world_ranks, TraceLane* lane = nullptr);
  // Whether Submit takes tensors of a GPU. If not, Group stages them through the host.
  virtual bool TakesDeviceMemory() const { return false; }
  // Starts the call and returns before the peers arrive. Arguments have been checked. The backend
  // must run the call after all work already queued on the tensors' device.
  virtual std::shared_ptr<Work> Submit(CollectiveCall call) = 0;

 private:
  std::shared_ptr<Work> Start(CollectiveCall call, int64_t payload_bytes);
  // Submit with copies on the host.
  std::shared_ptr<Work> SubmitStaged(CollectiveCall call);
  // Calls start, which must make one call with `blocking` set, and waits for it.
  template <typename Fn>
  void StartAndWait(const Fn& start);

  int rank_;
  std::vector<int> world_ranks_;
  TraceLane* lane_;
  Traffic traffic_;
  bool blocking_ = false;  // CollectiveCall::blocking of the next call
};

using GroupPtr = std::shared_ptr<Group>;

// Number of members of a group, 1 for null.
inline int GroupSize(const GroupPtr& group) { return group == nullptr ? 1 : group->size(); }

}  // namespace apogee::comm

#endif  // APOGEE_COMM_GROUP_H_
