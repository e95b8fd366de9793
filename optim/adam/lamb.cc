// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/adam/lamb.h"

#include <cmath>
#include <limits>

#include "apogee/optim/check_options.h"
#include "apogee/optim/core/layerwise.h"
#include "apogee/optim/core/make_chunks.h"
#include "apogee/optim/core/stat_values.h"

namespace apogee::optim {

LambOptions LambOptions::Apex() {
  return {.weight_decay = 0.01, .ratio_needs_decay = true, .pre_clip_norm = 1};
}
LambOptions LambOptions::Colossal() { return {.bias_correction = false, .correct_lr = true}; }
LambOptions LambOptions::DeepSpeed() {
  return {.eps = 1e-8, .correct_lr = true, .min_ratio = 0.01, .max_ratio = 10};
}

std::vector<std::string> LambOptions::Problems() const {
  OptionProblems problems;
  problems.AtLeastZero("lr", lr);
  problems.Decay("betas[0]", betas[0]);
  problems.Decay("betas[1]", betas[1]);
  problems.AtLeastZero("eps", eps);
  problems.AtLeastZero("weight_decay", weight_decay);
  problems.AtLeastZero("min_ratio", min_ratio);
  problems.AtLeastZero("max_ratio", max_ratio);
  problems.AtLeastZero("pre_clip_norm", pre_clip_norm);
  if (max_ratio > 0 && max_ratio < min_ratio) {
    problems.Add(internal::Concat("max_ratio is ", max_ratio, ", below min_ratio ", min_ratio));
  }
  return problems.list();
}

std::vector<OptionField<LambOptions>> LambOptions::Fields() {
  return {{"lr", &LambOptions::lr},
          {"betas", &LambOptions::betas},
          {"eps", &LambOptions::eps},
          {"weight_decay", &LambOptions::weight_decay},
          {"bias_correction", &LambOptions::bias_correction},
          {"correct_lr", &LambOptions::correct_lr},
          {"grad_averaging", &LambOptions::grad_averaging},
          {"min_ratio", &LambOptions::min_ratio},
          {"max_ratio", &LambOptions::max_ratio},
          {"adam", &LambOptions::adam},
          {"ratio_needs_decay", &LambOptions::ratio_needs_decay},
          {"matrices_only", &LambOptions::matrices_only},
          {"pre_clip_norm", &LambOptions::pre_clip_norm}};
}

std::span<const StateSpec> Lamb::StatesUnder(const ParamView&, const LambOptions&) const {
  static constexpr StateSpec kStates[] = {{"exp_avg", StateKind::kElementwise},
                                          {"exp_avg_sq", StateKind::kElementwise}};
  return kStates;
}

bool Lamb::clips() const {
  for (int group = 0; group < num_groups(); ++group) {
    if (options(group).pre_clip_norm > 0) return true;
  }
  return false;
}

void Lamb::DeclareStats(int phase, std::span<const ActiveParam> params, StatBuffer& buffer) {
  const bool clipping = clips() && phase == 0;
  for (const ActiveParam& param : params) buffer.AddSums(*param.view, clipping ? 1 : 2);
}

void Lamb::ComputeStats(int phase, std::span<const ActiveParam> all, const StepDecision& decision,
                        std::span<const StatBuffer> totals, StatBuffer& buffer) {
  if (clips() && phase == 0) {
    std::vector<NormChunk> chunks;
    for (const ActiveParam& param : all) {
      chunks.push_back(
          {param.grad.raw(), param.grad.dtype(), param.view->layout().local_numel(), 0});
    }
    OptimKernelsFor(*all[0].grad.context())
        .grad_norm(*all[0].grad.context(), {NormKind::kL2, chunks});
    std::vector<double> sums;
    for (size_t i = 0; i < all.size(); ++i) sums.push_back(chunks[i].result);
    WriteStats(buffer, StatSection::kSums, sums);
    return;
  }
  ForEachGroup(all, [&](int group, size_t first, std::span<const ActiveParam> params) {
    RunPass(Pass::kSums, group, params, first, GradScale(group, decision, totals), buffer);
  });
}

GradFactor Lamb::GradScale(int group, const StepDecision& decision,
                           std::span<const StatBuffer> totals) const {
  const double limit = options(group).pre_clip_norm;
  if (limit == 0) return decision.grad_scale();
  const double scale = decision.grad_scale();
  double sum = 0;
  for (const double part : totals[0].sum_values().ToVector<double>()) sum += part;
  const double excess = std::sqrt(sum) * scale / limit;
  return excess > 1 ? scale / excess : scale;
}

void Lamb::RunPass(Pass pass, int group, std::span<const ActiveParam> params, size_t first,
                   const GradFactor& grad_scale, const StatBuffer& sums) {
  const LambOptions& o = options(group);
  const bool ratios = !o.adam && !(o.ratio_needs_decay && o.weight_decay == 0);
  const auto make_chunk = [&](const ActiveParam& param) {
    LambChunk chunk = MakeUpdateChunk<LambChunk>(param);
    chunk.sums = SumsAt(sums, first + static_cast<size_t>(&param - params.data()));
    chunk.trusted = ratios && !(o.matrices_only && param.view->layout().logical_shape().rank() < 2);
    chunk.exp_avg = param.view->state("exp_avg").raw();
    chunk.exp_avg_sq = param.view->state("exp_avg_sq").raw();
    // When the sums are computed, this update's step is not counted yet.
    const auto t = static_cast<double>(param.view->step() + (pass == Pass::kSums ? 1 : 0));
    const double c1 = o.bias_correction ? 1 - std::pow(o.betas[0], t) : 1;
    const double root2 = o.bias_correction ? std::sqrt(1 - std::pow(o.betas[1], t)) : 1;
    chunk.mean_scale = o.correct_lr ? 1 : 1 / c1;
    chunk.root_scale = o.correct_lr ? 1 : 1 / root2;
    chunk.step_size = o.lr * (o.correct_lr ? root2 / c1 : 1);
    return chunk;
  };
  ForEachComputeDType<LambChunk>(
      params, make_chunk, [&](DType dtype, std::span<const LambChunk> chunks) {
        const DeviceContext& context = *params[0].grad.context();
        const LambArgs args{dtype,
                            sums.dtype(),
                            grad_scale,
                            o.betas[0],
                            o.grad_averaging ? 1 - o.betas[0] : 1,
                            o.betas[1],
                            o.eps,
                            o.weight_decay,
                            o.min_ratio,
                            o.max_ratio > 0 ? o.max_ratio : std::numeric_limits<double>::infinity(),
                            chunks};
        const OptimKernels& kernels = OptimKernelsFor(context);
        pass == Pass::kSums ? kernels.lamb_sums(context, args) : kernels.lamb(context, args);
      });
}

void Lamb::Update(int group, std::span<const ActiveParam> params, const StepDecision& decision,
                  std::span<const StatBuffer> totals) {
  const StatBuffer& sums = totals.back();
  RunPass(Pass::kUpdate, group, params, EntryOf(sums, params[0]),
          GradScale(group, decision, totals), sums);
}

template class TypedOptimizer<LambOptions>;

}  // namespace apogee::optim
