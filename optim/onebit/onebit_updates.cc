// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/onebit/onebit_updates.h"

#include "apogee/optim/core/make_chunks.h"

namespace apogee::optim {
namespace {

void Blend(const Tensor& to, const Tensor& from, const Tensor& grad, double beta, double weight,
           int64_t n) {
  const BlendChunk chunk{
      to.raw(), from.defined() ? from.raw() : nullptr, grad.raw(), grad.dtype(), weight, n};
  const DeviceContext& context = *to.context();
  OptimKernelsFor(context).blend(context, {to.dtype(), beta, {&chunk, 1}});
}

// Padding stays 0.
Tensor NewLike(const ParamView& view) {
  return Tensor::Zeros(view.value().shape(), view.compute_dtype(), view.value().context(),
                       MemoryCategory::kWorkspace);
}

}  // namespace

void AdamWithoutCorrection(std::span<const ActiveParam> params, const PlainAdamRule& rule) {
  const AdamSettings settings{
      .decay_kind = rule.weight_decay == 0 ? DecayKind::kNone : DecayKind::kBefore,
      .decay = rule.lr * rule.weight_decay,
      .beta1 = rule.betas[0],
      .beta2 = rule.betas[1],
      .eps = rule.eps,
      .step_size = rule.lr,
      .root_scale = 1};
  RunElements(&OptimKernels::adam, params, rule.grad_scale, settings, {"exp_avg", "exp_avg_sq"});
}

Tensor BlendMomentum(const ActiveParam& param, double beta, double weight) {
  const Tensor to = NewLike(*param.view);
  Blend(to, param.view->state("exp_avg"), param.grad, beta, weight,
        param.view->layout().local_numel());
  return to;
}

void UpdateMomentum(const ActiveParam& param, double beta, double weight) {
  const Tensor m = param.view->state("exp_avg");
  Blend(m, m, param.grad, beta, weight, param.view->layout().local_numel());
}

Tensor ScaledGrad(const ActiveParam& param, double weight) {
  const Tensor to = NewLike(*param.view);
  Blend(to, {}, param.grad, 0, weight, param.view->layout().local_numel());
  return to;
}

void ScaleTo(const Tensor& to, const Tensor& x, double weight) {
  Blend(to, {}, x, 0, weight, x.numel());
}

void FrozenAdamUpdate(std::span<const ActiveParam> params, std::span<const Tensor> x,
                      const FrozenRule& rule) {
  std::vector<ActiveParam> agreed(params.begin(), params.end());
  for (size_t i = 0; i < agreed.size(); ++i) agreed[i].grad = x[i];
  const FrozenAdamElement element{rule.beta, rule.weight, rule.step_size, rule.eps, rule.decay};
  RunElements(&OptimKernels::frozen_adam, agreed, 1, element, {"exp_avg", "exp_avg_sq"});
}

}  // namespace apogee::optim
