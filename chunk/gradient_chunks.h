// SPDX-License-Identifier: Apache-2.0

// GradientChunks: averages gradients over a group inside backward, chunk by chunk, while backward
// goes on. It takes a gradient after all other hooks of the parameter have run.
//
//   GradientChunks chunks(model.Parameters(), group, {.chunk_bytes = 25 << 20});
//   chunks.Backward(loss, scale, /*reduce=*/true);     // gradients are now means over the ranks
//
// A chunk is reduced as soon as all its gradients are complete, chunks in one fixed order on every
// rank; those still open when backward ends are flushed, with zeros for gradients that are absent
// here. Presence is one bit per parameter, OR-ed over ranks: a gradient absent everywhere stays
// absent, one that some rank has becomes the mean over all.
//
// Replicated: all-reduce; afterwards a parameter's gradient is a view of its chunk. Sharded:
// reduce-scatter; the parameter's own gradient is dropped as soon as it lies in its chunk, and
// on_mean gets this rank's part of the mean. Unless keep_whole, a chunk is freed once it has been
// reduced, so that few exist at a time.
//
// Without `reduce` (no_sync) gradients stay local and add up in the parameters; the next reducing
// backward averages the sums. In reproducible mode they add up as a balanced tree over
// micro-batches, which the sum over ranks continues: the result does not depend on how 2^k
// micro-batches are spread over ranks.
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

namespace apogee::chunk {

// Something beside gradients that ranks must agree on whenever they reduce: it travels with the
// presence bits.
struct Agreement {
  // The same number on every rank, of which 48 bits are compared; null: there is nothing.
  std::function<uint64_t()> digest = {};
  // Runs on every rank where they differ, before gradients are handed out. It throws.
  std::function<void()> on_difference = {};
};

struct GradientChunkOptions {
  int64_t chunk_bytes = 25 << 20;
  // false: reduce all chunks when backward has ended.
  bool overlap = true;
  // Sharded only: wait inside backward for the oldest of several chunks under way, so that few
  // exist. false: free what has been reduced, but never wait, for backward meets peers elsewhere
  // too, in an order that missing gradients would change.
  bool wait_inside = true;
  bool reproducible = false;
  // Of the sums; default: the gradients' own.
  std::optional<DType> communication_dtype = {};
  // Replicated only: parameters of different numbers never share a chunk.
  std::function<int(const autograd::Parameter&)> key_of = {};
  // Where `bytes` of a chunk's gradients are kept, also whole ones that wait for a reducing
  // backward; default: where the parameters are.
  std::function<ContextPtr(size_t chunk, int64_t bytes)> context_of = {};
  // Sharded only: a chunk lives as long as a part of its mean does.
  bool keep_whole = false;
  // Sharded only. When set, a chunk is reduced where Agree is called, once every rank has all its
  // gradients, and the others when backward has ended; one at a time, in one order on every rank.
  // on_mean gets gradients that are present only, then this runs. A chunk lives as long as a part
  // of its mean does. For who updates inside backward, where peers meet elsewhere too.
  std::function<void()> on_chunk = {};
  Agreement agreement = {};
};

// One of several backward passes of a step.
struct GradientPass {
  bool reduce = true;
  // Not null: where it returns false, the gradient stays local and adds up, whatever `reduce` says.
  // The same answers on every rank.
  std::function<bool(const autograd::Parameter&)> takes_part = {};
};

class GradientChunks {
 public:
  // This rank's part of parameter `index`'s mean gradient, [n] of its grad_dtype(), n may be 0; of
  // zeros when the gradient is absent on all ranks, which present() tells when backward has ended.
  using OnMean = std::function<void(size_t index, const Tensor& mean)>;

  // Replicated. Attaches a hook to every parameter. `group` may be null (one rank).
  GradientChunks(std::vector<autograd::ParameterPtr> parameters, comm::GroupPtr group,
                 const GradientChunkOptions& options);
  // Sharded, along `plan`.
  GradientChunks(std::vector<autograd::ParameterPtr> parameters, std::vector<ChunkSpec> plan,
                 comm::GroupPtr group, const GradientChunkOptions& options, OnMean on_mean);
  GradientChunks(const GradientChunks&) = delete;
  GradientChunks& operator=(const GradientChunks&) = delete;

  // autograd::Backward of `loss` with its gradient set to `loss_scale`. Collective when `reduce`. A
  // parameter that gets a gradient outside of this call throws Error: it would never be reduced.
  void Backward(const Tensor& loss, double loss_scale, bool reduce) {
    GradientChunks* self = this;
    Backward({&self, 1}, loss, loss_scale, reduce);
  }
  // One backward for several, which share a group; all but the first must not overlap, or the order
  // of their collectives would depend on the rank.
  static void Backward(std::span<GradientChunks* const> all, const Tensor& loss, double loss_scale,
                       bool reduce, bool retain_graph = false);
  // The same of any function that runs backward passes, or none: what has been left local is
  // reduced then.
  static void Run(std::span<GradientChunks* const> all, const std::function<void()>& backward,
                  const GradientPass& pass);
  // With on_chunk, from within Backward, where all ranks come by as often: reduces what all of them
  // have. Collective; without a backward under way it does nothing.
  void Agree();
  // false: until it is true again, gradients stay local in every backward, whatever `reduce` says,
  // and nothing is sent. The same on every rank.
  void set_reduces(bool reduces) { reduces_ = reduces; }
  // Whether any rank had a gradient in the last reducing backward.
  bool present(size_t index) const { return slots_[index].present; }
  int64_t num_chunks() const { return static_cast<int64_t>(plan_.size()); }

 private:
  // One parameter: where its gradient lies, and its tree of partial sums in reproducible mode.
  struct Slot {
    autograd::ParameterPtr parameter;
    std::shared_ptr<void> hook;
    size_t chunk = 0;
    const ChunkItem* item = nullptr;  // null: not in a chunk
    bool trainable = false;           // when the plan was made
    bool takes_part = false;          // in the backward under way: trainable, and not left out
    bool deposited = false;           // in the backward under way
    bool present = false;
    // Partial sums of 2^level micro-batches, largest first. Between backward calls the smallest one
    // is the parameter's gradient itself, of `level`.
    struct Partial {
      Tensor sum;
      int level;
    };
    std::vector<Partial> partials;
    int level = 0;
  };
  struct Chunk {
    size_t missing = 0;
    bool done = false;  // with on_chunk: reduced, or there is nothing to reduce
    Tensor flat;
    Tensor mean;  // sharded: where this rank's shard arrives
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
  // [numel] of a chunk's gradients.
  Tensor EmptyGradient(size_t chunk, int64_t numel) const;
  void LaunchReady();
  bool AnyTakesPart(const ChunkSpec& spec) const;
  void FillGaps(size_t chunk);
  void Launch(size_t chunk);
  void ReduceNow(size_t chunk);
  void Complete(size_t chunk);
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
  OnMean on_mean_;  // sharded when there is one
  std::vector<Slot> slots_;
  std::vector<ChunkSpec> plan_;
  std::vector<Chunk> chunks_;
  std::deque<size_t> in_flight_;
  size_t next_chunk_ = 0;
  bool active_ = false;
  bool reduces_ = true;
  bool reduce_ = false;
};

}  // namespace apogee::chunk

#endif  // APOGEE_CHUNK_GRADIENT_CHUNKS_H_
