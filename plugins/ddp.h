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
// booster.no_sync(), which is faster.
#ifndef APOGEE_PLUGINS_DDP_H_
#define APOGEE_PLUGINS_DDP_H_

#include <memory>
#include <string>

#include "apogee/comm/group.h"
#include "apogee/optim/loss_scaler.h"
#include "apogee/plugins/gradient_buckets.h"
#include "apogee/plugins/plugin.h"

namespace apogee {

struct DdpOptions {
  // "f32", "bf16" or "fp16" (fp32 masters and gradients; fp16 with a dynamic loss scale), "f64".
  std::string precision = "f32";
  // Clip the global L2 norm of the averaged gradients to this; 0: off.
  double max_norm = 0;
  // Gradients are reduced in buckets of about this size.
  int64_t bucket_bytes = 25 << 20;
  // Reduce buckets while backward goes on.
  bool overlap = true;
  // Sums do not depend on the number of ranks: 2^k micro-batches of one size give the same bits
  // however they are spread over 1, 2, 4, … ranks (contiguously, with equal threads per rank).
  bool reproducible = false;
  optim::LossScalerOptions loss_scaler = {};
};

class DdpPlugin : public Plugin {
 public:
  // `group`: the ranks to average over; null for one rank. Throws Error listing every bad option.
  explicit DdpPlugin(comm::GroupPtr group, const DdpOptions& options = {});
  ~DdpPlugin() override;

  std::string name() const override { return "ddp"; }
  // Collective. Rank 0's values and random state are broadcast. Throws Error on every rank when the
  // ranks' models differ in names, shapes or what is frozen.
  optim::Optimizer& Configure(nn::Module& model, optim::Optimizer& optimizer) override;
  // Collective, but under NoSync.
  void Backward(const Tensor& loss, optim::Optimizer& optimizer) override;
  std::shared_ptr<void> NoSync() override;

  // 1 but for fp16.
  double loss_scale() const { return scaler_ != nullptr ? scaler_->scale() : 1; }

 private:
  void CheckSameModel(const nn::Module& model) const;
  void BroadcastModel(nn::Module& model) const;

  comm::GroupPtr group_;
  DdpOptions options_;
  DType dtype_;
  std::unique_ptr<GradientBuckets> buckets_;
  std::unique_ptr<optim::LossScaler> scaler_;
  std::shared_ptr<int> no_sync_depth_ = std::make_shared<int>(0);
};

}  // namespace apogee

#endif  // APOGEE_PLUGINS_DDP_H_
