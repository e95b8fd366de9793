#include "apogee/optim/onebit_updates.h"

namespace apogee::optim {
namespace {

Tensor Blend(const ActiveParam& param, const Tensor& from, double beta, double weight) {
  ParamView& view = *param.view;
  const Tensor to = Tensor::Zeros(view.value().shape(), view.compute_dtype(),
                                  view.value().context(), MemoryCategory::kWorkspace);
  const BlendChunk chunk{to.raw(),         from.defined() ? from.raw() : nullptr,
                         param.grad.raw(), param.grad.dtype(),
                         weight,           view.layout().local_numel()};
  const DeviceContext& context = *param.grad.context();
  OptimKernelsFor(context).blend(context, {view.compute_dtype(), beta, {&chunk, 1}});
  return to;
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

Tensor BlendMomentum(const ActiveParam& param, double beta, double grad_scale) {
  return Blend(param, param.view->state("exp_avg"), beta, (1 - beta) * grad_scale);
}

Tensor ScaledGrad(const ActiveParam& param, double grad_scale) {
  return Blend(param, {}, 0, grad_scale);
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
