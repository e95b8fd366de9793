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
  const auto make_chunk = [&](const ActiveParam& param) {
    AdamChunk chunk = MakeUpdateChunk<AdamChunk>(param);
    chunk.exp_avg = param.view->state("exp_avg").raw();
    chunk.exp_avg_sq = param.view->state("exp_avg_sq").raw();
    chunk.step_size = rule.lr;
    chunk.root_scale = 1;
    return chunk;
  };
  const DecayKind decay = rule.weight_decay == 0 ? DecayKind::kNone : DecayKind::kBefore;
  ForEachComputeDType<AdamChunk>(
      params, make_chunk, [&](DType dtype, std::span<const AdamChunk> chunks) {
        const DeviceContext& context = *params[0].grad.context();
        OptimKernelsFor(context).adam(
            context, {dtype, decay, rule.grad_scale, rule.lr * rule.weight_decay, rule.betas[0],
                      rule.betas[1], rule.eps, /*amsgrad=*/false, chunks});
      });
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
  const auto make_chunk = [&](const ActiveParam& param) {
    FrozenAdamChunk chunk = MakeUpdateChunk<FrozenAdamChunk>(param);
    const Tensor& agreed = x[static_cast<size_t>(&param - params.data())];
    chunk.grad = agreed.raw();
    chunk.grad_dtype = agreed.dtype();
    chunk.exp_avg = param.view->state("exp_avg").raw();
    chunk.exp_avg_sq = param.view->state("exp_avg_sq").raw();
    chunk.step_size = rule.step_size;
    return chunk;
  };
  ForEachComputeDType<FrozenAdamChunk>(
      params, make_chunk, [&](DType dtype, std::span<const FrozenAdamChunk> chunks) {
        const DeviceContext& context = *params[0].grad.context();
        OptimKernelsFor(context).frozen_adam(
            context, {dtype, rule.beta, rule.weight, rule.eps, rule.decay, chunks});
      });
}

}  // namespace apogee::optim
