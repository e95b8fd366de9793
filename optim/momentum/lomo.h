// SPDX-License-Identifier: Apache-2.0

// LOMO (Lv et al., "Full Parameter Fine-tuning for Large Language Models with Limited Resources",
// ACL 2024): SGD that updates inside backward. It has no states, and the gradients of the whole
// model never exist at the same time (fused_backward.h).
//
//   optim::Lomo optimizer(model.Parameters(), {.lr = 0.01, .clip_grad_value = 1.0});
//   optimizer.set_step_options({.max_norm = 1.0});        // backward runs twice
//   optimizer.fused_backward(criterion(model(x), y));
//   optimizer.step();
//
//   g = clip_factor * clamp(grad / loss_scale, -clip_grad_value, clip_grad_value)
//   w = w - lr * weight_decay * w - lr * g
// max_norm applies to the norm of the gradients before they are clamped.
//
// State bytes per element: 0 (4 for the fp32 masters of bf16 and f16 weights).
#ifndef APOGEE_OPTIM_MOMENTUM_LOMO_H_
#define APOGEE_OPTIM_MOMENTUM_LOMO_H_

#include <limits>

#include "apogee/optim/step/fused_backward.h"
#include "apogee/optim/typed_optimizer.h"

namespace apogee::optim {

struct LomoOptions {
  double lr = 1e-3;
  double weight_decay = 0;
  double clip_grad_value = std::numeric_limits<double>::infinity();  // infinite: no clamping

  std::vector<std::string> Problems() const;
  static std::vector<OptionField<LomoOptions>> Fields();
};
extern template class TypedOptimizer<LomoOptions>;

class Lomo : public TypedOptimizer<LomoOptions>, public FusedBackwardOptimizer {
 public:
  explicit Lomo(std::vector<autograd::ParameterPtr> params, const LomoOptions& options = {})
      : Lomo({{std::move(params), options}}) {}
  explicit Lomo(std::vector<ParamGroup<LomoOptions>> groups)
      : TypedOptimizer("lomo", std::move(groups)) {}

  void fused_backward(const Tensor& loss) override { RunFusedBackward(loss); }

  bool SupportsShards() const override { return true; }
  bool DecidesOnDevice() const override { return true; }

 protected:
  std::span<const StateSpec> StatesUnder(const ParamView&, const LomoOptions&) const override {
    return {};
  }
  void Update(int group, std::span<const ActiveParam> params, const StepDecision& decision,
              std::span<const StatBuffer> totals) override;
};

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_MOMENTUM_LOMO_H_
