// SPDX-License-Identifier: Apache-2.0

// Sabotage: ways to break a boosted run on purpose, to show that the matrix notices.
//
//   local_stats      the optimizer's statistics and clipping norm cover this rank's part only
//   drop_collective  gradients are not reduced over the ranks
//   none_as_zero     an absent gradient becomes a gradient of zeros
//   no_update        step() does nothing
//   per_micro_batch  every micro-batch makes a step of its own
//   update_clipped   max_norm limits the update instead of the gradient
//
// Of optimizers of matrices (optim/orthogonal/matrix_rule.h):
//
//   local_gram       products are of this rank's part of a matrix
//
// Of models with experts:
//
//   expert_mean           gradients of experts are sums over the ep group, not means
//   norm_without_ep       statistics and the norm are not summed over the axis ep
//   aux_loss_per_rank     auxiliary losses count the tokens of this rank only
//   router_gradient_lost  routers get gradients of zeros
//
// Of models with adapters:
//
//   lora_factor_not_summed  under tensor parallelism each rank has an addend of a factor's gradient
//   adapter_of_rank_zero    only the samples of data-parallel rank 0 train the adapter
#ifndef APOGEE_MATRIX_SABOTAGE_H_
#define APOGEE_MATRIX_SABOTAGE_H_

#include <memory>
#include <string>
#include <vector>

#include "apogee/comm/group.h"
#include "apogee/optim/optimizer.h"
#include "apogee/plugins/hybrid_parallel.h"

namespace apogee::matrix {

enum class Sabotage : int {
  kNone,
  kLocalStats,
  kDropCollective,
  kNoneAsZero,
  kNoUpdate,
  kExpertMean,
  kNormWithoutEp,
  kAuxLossPerRank,
  kRouterGradientLost,
  kLoraFactorNotSummed,
  kAdapterOfRankZero,
  kPerMicroBatch,
  kUpdateClipped,
  kLocalGram,
};

// The names above, with "none" first.
std::vector<std::string> SabotageNames();
Sabotage SabotageFromName(const std::string& name);

// `inner` without sums: all_reduce leaves the tensor as it is, reduce_scatter takes this rank's
// slice of its own input. Maxima and collectives that only move data are forwarded.
class UnsummedGroup : public comm::Group {
 public:
  explicit UnsummedGroup(comm::GroupPtr inner);
  comm::GroupPtr Duplicate(std::chrono::milliseconds timeout) override {
    return std::make_shared<UnsummedGroup>(inner_->Duplicate(timeout));
  }

 protected:
  std::shared_ptr<comm::Work> Submit(comm::CollectiveCall call) override;

 private:
  comm::GroupPtr inner_;
};

// Call it after boost: the sabotages of models with experts. Others do nothing.
void SabotageExperts(Sabotage sabotage, nn::Module& model, optim::Optimizer& optimizer,
                     const HybridParallelPlugin& plugin);

// Call it after boost: the sabotages of models with adapters. Others do nothing.
void SabotageAdapters(Sabotage sabotage, nn::Module& model, const Plugin& plugin,
                      const HybridParallelPlugin* hybrid);

// Call it after boost: kLocalGram. Others do nothing. `group`: the plugin's ranks.
void SabotageMatrices(Sabotage sabotage, optim::Optimizer& optimizer, const comm::GroupPtr& group);

// A step whose update is scaled to a small norm. Ranks may take other factors.
void StepWithClippedUpdate(optim::Optimizer& optimizer);

// Call it before a step: gives every trainable parameter without a gradient a gradient of zeros.
void FillAbsentGradients(optim::Optimizer& optimizer);

}  // namespace apogee::matrix

#endif  // APOGEE_MATRIX_SABOTAGE_H_
