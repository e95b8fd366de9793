// SPDX-License-Identifier: Apache-2.0

// ReplicatedEngine: every rank keeps the whole model, its gradients and its states; gradients are
// averaged inside backward (plugins/ddp.h). Internal.
#ifndef APOGEE_PLUGINS_SHARDING_REPLICATED_ENGINE_H_
#define APOGEE_PLUGINS_SHARDING_REPLICATED_ENGINE_H_

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "apogee/chunk/gradient_chunks.h"
#include "apogee/optim/core/local_gradients.h"
#include "apogee/plugins/ddp.h"
#include "apogee/plugins/sharding/engine.h"

namespace apogee {

class ReplicatedEngine : public DataParallelEngine {
 public:
  ReplicatedEngine(comm::GroupPtr group, const TrainingOptions& training, const DdpOptions& options,
                   const CutParameters& cut);
  void Check(nn::Module& model, optim::Optimizer& optimizer) const override;
  optim::Optimizer& Configure(nn::Module& model, optim::Optimizer& optimizer) override;
  void Backward(const Tensor& loss) override;
  bool BeginBackward() override;
  void RunPass(const std::function<void()>& backward, const chunk::GradientPass& pass) override;

 private:
  void BeforeStep() override;
  void AfterStep() override;
  // For an optimizer that asks for local gradients in some steps: passes it its ranks, makes
  // replicas equal before evaluations, and moves those parameters from `reduced` into chunks of
  // their own.
  void HandOverGradients(nn::Module& model, optim::Optimizer& optimizer,
                         std::vector<autograd::ParameterPtr>& reduced);
  // Before each backward: asks whether those gradients stay local.
  void AskWhichStay();
  // Throws Error, on every rank, when the optimizer's answer has changed since backward.
  void CheckSameAnswer() const;
  chunk::GradientChunkOptions ChunkOptions(bool overlap) const;
  // Makes ranks compare the options of the next step and of the last one.
  chunk::Agreement AgreeOnOptions();
  // Returns the parameters whose gradients are averaged inside backward; marks the views of the
  // others.
  std::vector<autograd::ParameterPtr> SplitOff(const nn::Module& model,
                                               optim::Optimizer& optimizer) const;

  const DdpOptions options_;
  std::unique_ptr<chunk::GradientChunks> gradients_;
  std::unique_ptr<chunk::GradientChunks> expert_gradients_;  // null: there are no experts
  // Null for most optimizers; else the chunks of gradients that may stay local.
  optim::LocalGradients* local_ = nullptr;
  std::unique_ptr<chunk::GradientChunks> local_gradients_;
  std::vector<autograd::ParameterPtr> may_stay_local_;  // parameters of local_gradients_
  int local_group_ = 0;                                 // one of their parameter groups
  std::optional<bool> stays_local_;                     // the answer, from backward to step
  // Of the gradients that the optimizer's step reduces, and of those that stay local in a step.
  const std::shared_ptr<const autograd::GradPlace> addends_ =
      std::make_shared<autograd::GradPlace>(autograd::GradPlace{
          .where = "its gradient is this rank's part of a mean that the optimizer's step makes; "
                   "set the ddp plugin's max_norm"});
  std::shared_ptr<const autograd::GradPlace> local_place_;
  bool fused_ = false;
  uint64_t last_options_ = 0;  // digest of the last step's options
  Subscription before_forward_;
};

}  // namespace apogee

#endif  // APOGEE_PLUGINS_SHARDING_REPLICATED_ENGINE_H_
