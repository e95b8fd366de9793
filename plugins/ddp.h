// SPDX-License-Identifier: Apache-2.0

// DdpPlugin: data parallelism. Every rank holds the whole model and a part of each batch; gradients
// are averaged over the ranks inside backward.
//
//   comm::launch({.num_ranks = 4}, [&](comm::World& world) {
//     ... model, optimizer, loader of this rank's part of the batch ...
//     DdpPlugin plugin(world.group(), {.precision = "bf16", .max_norm = 1.0});
//     Booster booster(plugin);
//     auto boosted = booster.boost(model, optimizer);
//     ... the ordinary loop ...
//   });
//
// The update is that of one rank with the whole batch, when the batch is split evenly and the loss
// is a mean over samples. Missing gradients: absent on every rank stays absent; absent on some
// counts as zero. Accumulation: every backward may reduce, or all but the last run under
// booster.no_sync(), which is faster. An optimizer that updates inside backward (LOMO, AdaLomo)
// does so on one rank; on several its update runs in step(), on the averaged gradients.
//
// Optimizers with 1-bit messages (optim/local_gradients.h) get each rank's own gradients in the
// steps that they ask for, which then are not averaged here; Parameter::grad() is this rank's.
// Where their ranks' weights differ for some steps (0/1 Adam), the first forward of a model in
// evaluation mode makes them the same: all ranks must call it. docs/compressed_communication.md.
//
// Without norm clipping (max_norm 0, here and in the optimizer's step options, and so it must stay)
// a matrix that GaLore projects is left out of that: its Parameter::grad() stays this rank's own,
// and step() averages its projection, and the whole only when the basis is refreshed. Reproducible
// mode averages everything, and so do matrices with 8-bit moments.
#ifndef APOGEE_PLUGINS_DDP_H_
#define APOGEE_PLUGINS_DDP_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apogee/chunk/gradient_chunks.h"
#include "apogee/comm/group.h"
#include "apogee/optim/fused_backward.h"
#include "apogee/optim/local_gradients.h"
#include "apogee/plugins/backward_passes.h"
#include "apogee/plugins/plugin.h"
#include "apogee/plugins/step_guard.h"

namespace apogee {

struct DdpOptions {
  // "f32", "bf16" or "fp16" (fp32 masters and gradients; fp16 with a dynamic loss scale), "f64".
  std::string precision = "f32";
  // Clip the global L2 norm of the averaged gradients to this; 0: as the optimizer's step options
  // say.
  double max_norm = 0;
  // Gradients are reduced in buckets of about this size.
  int64_t bucket_bytes = 25 << 20;
  // Reduce buckets while backward goes on.
  bool overlap = true;
  // Sums do not depend on the number of ranks: 2^k micro-batches of one size give the same bits
  // however they are spread over 1, 2, 4, … ranks (contiguously, with equal threads per rank).
  bool reproducible = false;
  optim::LossScalerOptions loss_scaler = {};
  // All ranks that hold parts of one parameter, when parameters have been cut and views bound to
  // their parts (ParamView::BindParameter): statistics are summed over it. Null: nothing is cut.
  comm::GroupPtr statistics_group = nullptr;
  // Parameters of different numbers never share a bucket: those of passes (BackwardPasses) that
  // reduce at different times. Null: all are alike. Asked in boost.
  std::function<int(const autograd::Parameter&)> bucket_key = {};
};

class DdpPlugin : public Plugin, public BackwardPasses {
 public:
  // `group`: the ranks to average over; null for one rank. Throws Error listing every bad option.
  explicit DdpPlugin(comm::GroupPtr group, const DdpOptions& options = {});
  ~DdpPlugin() override;

  std::string name() const override { return "ddp"; }
  // What keeps Configure from running, thrown as Error; local, changes nothing.
  void Check(const nn::Module& model, optim::Optimizer& optimizer) const;
  // Collective. Rank 0's values and random state are broadcast. Throws Error on a second call, and
  // on every rank when the ranks' models differ in names, shapes or what is frozen, or their
  // optimizers in groups or options.
  optim::Optimizer& Configure(nn::Module& model, optim::Optimizer& optimizer) override;
  // Collective, but under NoSync.
  void Backward(const Tensor& loss, optim::Optimizer& optimizer) override;
  bool BeginBackward() override;
  void RunPass(const std::function<void()>& backward, const chunk::GradientPass& pass) override;
  std::shared_ptr<void> NoSync() override { return guard_->NoSync(); }
  comm::GroupPtr group() const override { return group_; }
  comm::GroupPtr data_group() const override { return group_; }
  optim::LossScaler* loss_scaler() override { return guard_->loss_scaler(); }

  // 1 but for fp16.
  double loss_scale() const { return guard_->loss_scale(); }

 private:
  // For an optimizer that wants local gradients at times: tells it its ranks, keeps replicas the
  // same in evaluations, and takes those parameters out of `reduced` into chunks of their own.
  void HandOverGradients(nn::Module& model, optim::Optimizer& optimizer,
                         std::vector<autograd::ParameterPtr>& reduced);
  // Before each backward: whether it leaves those gradients local.
  void AskWhichStay();
  // Throws Error, on every rank, when the optimizer would answer otherwise now.
  void CheckSameAnswer() const;
  chunk::GradientChunkOptions ChunkOptions(bool overlap) const;
  // Ranks compare the options of the step to come, and of the last one.
  chunk::Agreement AgreeOnOptions(optim::Optimizer& optimizer);
  // The parameters whose gradients are averaged inside backward; views of the others are marked.
  std::vector<autograd::ParameterPtr> SplitOff(const nn::Module& model,
                                               optim::Optimizer& optimizer) const;

  comm::GroupPtr group_;
  DdpOptions options_;
  DType dtype_;
  std::unique_ptr<StepGuard> guard_;
  std::unique_ptr<chunk::GradientChunks> gradients_;
  // Null for most optimizers; else the chunks of gradients that may stay local.
  optim::LocalGradientOptimizer* local_ = nullptr;
  std::unique_ptr<chunk::GradientChunks> local_gradients_;
  std::vector<autograd::ParameterPtr> may_stay_local_;  // theirs
  int local_group_ = 0;                                 // a parameter group of theirs
  std::optional<bool> stays_local_;                     // the answer, from backward to step
  std::shared_ptr<void> alive_ = std::make_shared<int>();
  optim::FusedBackwardOptimizer* fused_ = nullptr;
  uint64_t last_options_ = 0;  // digest of those of the last step
};

}  // namespace apogee

#endif  // APOGEE_PLUGINS_DDP_H_
