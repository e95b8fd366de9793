// SPDX-License-Identifier: Apache-2.0

// GradientChunks: averages gradients over a group, chunk by chunk, while backward goes on. It takes
// a parameter's gradient after all other hooks of the parameter have run.
//
//   GradientChunks chunks(model.Parameters(), group, {.chunk_bytes = 25 << 20});
//   chunks.Run([&] { autograd::Backward(loss); }, {});  // gradients become means over the ranks
//
// A chunk is reduced as soon as all its gradients are complete, in the same order of chunks on
// every rank. Chunks that are still incomplete when backward ends are reduced then, with zeros for
// the gradients that this rank lacks. Ranks exchange one presence bit per parameter (a logical or).
// A gradient that is absent on all ranks stays absent. A gradient that some rank has becomes the
// mean over all ranks.
//
// There are two modes:
//   Replicated  Chunks are all-reduced. Afterwards a parameter's gradient is a view of its chunk.
//   Sharded     Chunks are reduce-scattered. A parameter's own gradient is dropped as soon as its
//               chunk holds it, and on_mean gets this rank's part of the mean. Each chunk is freed
//               once it has been reduced, unless keep_whole, so few exist at a time.
//
// Without `reduce` (no_sync) gradients stay local and add up in the parameters. The next backward
// that reduces averages the sums. In reproducible mode, gradients of micro-batches are added as a
// balanced tree, which the sum over ranks continues. The result then does not depend on how 2^k
// micro-batches are distributed over ranks.
#ifndef APOGEE_CHUNK_GRADIENT_CHUNKS_H_
#define APOGEE_CHUNK_GRADIENT_CHUNKS_H_

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "apogee/autograd/parameter.h"
#include "apogee/chunk/chunk_plan.h"
#include "apogee/comm/group.h"
#include "apogee/core/step_listener.h"

namespace apogee::chunk {

// A number that must be equal on all ranks. The ranks compare it each time they exchange the
// presence bits of gradients.
struct Agreement {
  // Returns a number that must be equal on all ranks; 48 bits of it are compared. Null: no check.
  std::function<uint64_t()> digest = {};
  // Called on every rank if the numbers differ, before gradients are handed out. Must throw.
  std::function<void()> on_difference = {};
};

struct GradientChunkOptions {
  int64_t chunk_bytes = 25 << 20;
  // false: reduce all chunks after backward has ended.
  bool overlap = true;
  // Sharded only: how long to wait inside backward for the oldest of several running reductions, so
  // that few chunks exist. true: until it ends. false: a tenth of a second, since backward also
  // meets other ranks in gathers: if a rank lacks a gradient, the ranks could wait for each other.
  // After a wait in vain, the next 64 passes do not wait.
  bool wait_inside = true;
  bool reproducible = false;
  // Dtype of the sums; default: the gradients' own dtype.
  std::optional<DType> communication_dtype = {};
  // Replicated only: parameters with different numbers never share a chunk.
  std::function<int(const autograd::Parameter&)> key_of = {};
  // The context for `bytes` of a chunk's gradients, and for local gradients that wait for a
  // reducing backward. Default: the parameters' context.
  std::function<ContextPtr(size_t chunk, int64_t bytes)> context_of = {};
  // Sharded only: a chunk's memory lives as long as any part of its mean.
  bool keep_whole = false;
  // Sharded only. For optimizers that update inside backward, where ranks also meet in gathers. If
  // set, Agree reduces the chunks whose gradients are complete on every rank, and the end of
  // backward reduces the rest. One chunk is reduced at a time, in the same order on every rank. For
  // each chunk, on_mean gets the gradients that are present, and then on_chunk runs. A chunk's
  // memory lives as long as any part of its mean.
  std::function<void()> on_chunk = {};
  Agreement agreement = {};
  // Hear GradientReady and GradientsReduced. Null: nobody.
  std::shared_ptr<StepListeners> listeners = nullptr;
};

// Options for one of several backward passes of a step.
struct GradientPass {
  bool reduce = true;
  // If set and false for a parameter, its gradient stays local and adds up, even with `reduce`.
  // Must return the same on every rank.
  std::function<bool(const autograd::Parameter&)> takes_part = {};
};

class GradientChunks {
 public:
  // Gets this rank's part of the mean gradient of parameter `index`: [n] in its grad_dtype(), n may
  // be 0. If the gradient is absent on all ranks, the part is zeros; present() tells so once
  // backward has ended.
  using OnMean = std::function<void(size_t index, const Tensor& mean)>;

  // Replicated mode. Takes the gradients of every parameter. `group` may be null (one rank).
  GradientChunks(std::vector<autograd::ParameterPtr> parameters, comm::GroupPtr group,
                 const GradientChunkOptions& options);
  // Sharded mode, along `plan`.
  GradientChunks(std::vector<autograd::ParameterPtr> parameters, std::vector<ChunkSpec> plan,
                 comm::GroupPtr group, const GradientChunkOptions& options, OnMean on_mean);
  GradientChunks(const GradientChunks&) = delete;
  GradientChunks& operator=(const GradientChunks&) = delete;

  // Runs `backward`, which runs backward passes, or none. If the pass reduces, all ranks must call;
  // without a backward, the gradients that were left local are reduced. A parameter that gets a
  // gradient outside of this call throws Error, because that gradient would never be reduced.
  void Run(const std::function<void()>& backward, const GradientPass& pass) {
    GradientChunks* self = this;
    Run({&self, 1}, backward, pass);
  }
  // One backward for several objects. Of those that share a group, or that wait_inside, only the
  // first may have `overlap`: the order in which chunks are complete depends on the rank.
  static void Run(std::span<GradientChunks* const> all, const std::function<void()>& backward,
                  const GradientPass& pass);
  // With on_chunk only, called within Run: reduces the chunks that are complete on all ranks.
  // All ranks must call it equally often. Does nothing if no backward is running.
  void Agree();
  // While false, gradients stay local in every backward, even if `reduce` is true, and nothing is
  // sent. Must be the same on every rank.
  void set_reduces(bool reduces) { reduces_ = reduces; }
  // Whether any rank had this gradient in the last backward that reduced.
  bool present(size_t index) const { return slots_[index].present; }
  int64_t num_chunks() const { return static_cast<int64_t>(plan_.size()); }

 private:
  // One parameter: its gradient's place in a chunk, and its tree of partial sums in reproducible
  // mode.
  struct Slot {
    autograd::ParameterPtr parameter;
    std::shared_ptr<autograd::GradSink> sink;
    size_t chunk = 0;
    const ChunkItem* item = nullptr;  // null: not in a chunk
    bool trainable = false;           // when the plan was made
    bool takes_part = false;          // in this backward: trainable, and not left out
    bool deposited = false;           // in this backward: copied to its chunk
    bool present = false;
    // Sums of 2^level micro-batches each, largest first. Between backward calls the smallest sum is
    // the parameter's gradient itself, with level `level`.
    struct Partial {
      Tensor sum;
      int level;
    };
    std::vector<Partial> partials;
    int level = 0;
  };
  class Sink;
  struct Chunk {
    size_t missing = 0;
    bool done = false;  // with on_chunk: reduced, or without a gradient to reduce
    Tensor flat;
    Tensor mean;  // sharded: receives this rank's shard
    std::shared_ptr<comm::Work> work;
  };

  void Attach(std::vector<autograd::ParameterPtr> parameters);
  void PlanReplicated();
  void PlaceSlots();
  void CheckTrainable();
  void Begin(const GradientPass& pass);
  void OnGradient(size_t index);
  void Deposit(Slot& slot);
  void PutAway(Slot& slot);
  void MakeFlat(size_t chunk);
  // An uninitialized buffer [numel] for gradients of the chunk.
  Tensor EmptyGradient(size_t chunk, int64_t numel) const;
  void LaunchReady();
  bool AnyTakesPart(const ChunkSpec& spec) const;
  void FillGaps(size_t chunk);
  void Launch(size_t chunk);
  void ReduceNow(size_t chunk);
  // Whether the chunk may be completed now, inside backward; waits for a while.
  bool MayComplete(size_t chunk);
  void Complete(size_t chunk);
  // Sharded: passes on this rank's parts of the means.
  void HandOut(size_t chunk);
  void ExchangePresence();
  void Finish();
  void FinishAgreed();
  DType FlatDType(const ChunkSpec& spec) const;
  void StashPartial(Slot& slot);
  void MergePartials(Slot& slot);
  void RestorePartial(Slot& slot);
  void FoldPartials(Slot& slot);

  comm::GroupPtr group_;
  GradientChunkOptions options_;
  OnMean on_mean_;  // set: sharded mode
  std::vector<Slot> slots_;
  std::vector<ChunkSpec> plan_;
  std::vector<Chunk> chunks_;
  std::deque<size_t> in_flight_;
  int passes_without_waiting_ = 0;  // still to come, if positive
  size_t next_chunk_ = 0;
  bool active_ = false;
  bool reduces_ = true;
  bool reduce_ = false;
};

}  // namespace apogee::chunk

#endif  // APOGEE_CHUNK_GRADIENT_CHUNKS_H_
