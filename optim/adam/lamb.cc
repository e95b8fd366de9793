// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/adam/lamb.h"

#include <cmath>
#include <limits>

#include "apogee/optim/adam/moment_fields.h"
#include "apogee/optim/core/layerwise.h"
#include "apogee/optim/core/make_chunks.h"
#include "apogee/optim/core/stat_values.h"

namespace apogee::optim {
namespace {

// Runs `kernel` on parameters of one group, for update number step() + `ahead` of each. `first`:
// the entry of the first one in `sums`.
void Run(KernelSlot<LambArgs> OptimKernels::*kernel, const LambOptions& o,
         std::span<const ActiveParam> params, size_t first, int64_t ahead,
         const GradFactor& grad_scale, const StatBuffer& sums) {
  const bool ratios = !o.adam && !(o.ratio_needs_decay && o.weight_decay == 0);
  RunKernel(params, kernel,
            LambArgs{{},
                     sums.dtype(),
                     grad_scale,
                     o.betas[0],
                     o.grad_averaging ? 1 - o.betas[0] : 1,
                     o.betas[1],
                     o.eps,
                     o.weight_decay,
                     o.min_ratio,
                     o.max_ratio > 0 ? o.max_ratio : std::numeric_limits<double>::infinity(),
                     {}},
            [&](const ActiveParam& param) {
              const ParamView& view = *param.view;
              LambChunk chunk = MakeUpdateChunk<LambChunk>(param);
              chunk.sums = SumsAt(sums, first + static_cast<size_t>(&param - params.data()));
              chunk.trusted =
                  ratios && !(o.matrices_only && view.layout().logical_shape().rank() < 2);
              chunk.exp_avg = view.state("exp_avg").raw();
              chunk.exp_avg_sq = view.state("exp_avg_sq").raw();
              const auto t = static_cast<double>(view.step() + ahead);
              const double c1 = o.bias_correction ? 1 - std::pow(o.betas[0], t) : 1;
              const double root2 = o.bias_correction ? std::sqrt(1 - std::pow(o.betas[1], t)) : 1;
              chunk.mean_scale = o.correct_lr ? 1 : 1 / c1;
              chunk.root_scale = o.correct_lr ? 1 : 1 / root2;
              chunk.step_size = o.lr * (o.correct_lr ? root2 / c1 : 1);
              return chunk;
            });
}

}  // namespace

LambOptions LambOptions::Apex() {
  return {.weight_decay = 0.01, .ratio_needs_decay = true, .pre_clip_norm = 1};
}
LambOptions LambOptions::Colossal() { return {.bias_correction = false, .correct_lr = true}; }
LambOptions LambOptions::DeepSpeed() {
  return {.eps = 1e-8, .correct_lr = true, .min_ratio = 0.01, .max_ratio = 10};
}

std::vector<OptionField<LambOptions>> LambOptions::Fields() {
  using O = LambOptions;
  using enum OptionCheck;
  return JoinFields<O>(
      {MomentFields<O>("added to the update u"),
       {{"bias_correction", &O::bias_correction, {}, "corrects the moments' start at zero"},
        {"correct_lr", &O::correct_lr, {}, "the bias correction scales lr instead of u"},
        {"grad_averaging", &O::grad_averaging, {}, "false: m = beta1 m + g"},
        {"min_ratio", &O::min_ratio, kAtLeastZero, "lower bound of the ratio"},
        {"max_ratio", &O::max_ratio, kAtLeastZero, "upper bound of it; 0: none"},
        {"adam", &O::adam, {}, "every ratio is 1"},
        {"ratio_needs_decay", &O::ratio_needs_decay, {}, "ratio 1 without weight decay"},
        {"matrices_only", &O::matrices_only, {}, "ratio 1 for vectors and scalars"},
        {"pre_clip_norm", &O::pre_clip_norm, kAtLeastZero,
         "clips the norm of all gradients first; 0: does not"}}});
}

void LambOptions::Check(OptionProblems& problems) const {
  if (max_ratio > 0 && max_ratio < min_ratio) {
    problems.Add(internal::Concat("max_ratio is ", max_ratio, ", below min_ratio ", min_ratio));
  }
}

bool LambRule::clips() const {
  for (int group = 0; group < num_groups(); ++group) {
    if (options(group).pre_clip_norm > 0) return true;
  }
  return false;
}

void LambRule::DeclareStats(int phase, std::span<const ActiveParam> params, StatBuffer& buffer) {
  const bool clipping = clips() && phase == 0;
  for (const ActiveParam& param : params) buffer.AddSums(*param.view, clipping ? 1 : 2);
}

std::string LambRule::ComputeStats(int phase, const RuleStep& step, StatBuffer& buffer) {
  const ContextPtr& context = step.params[0].grad.context();
  if (clips() && phase == 0) {
    std::vector<SquareSumChunk> chunks;
    for (const ActiveParam& param : step.params) {
      chunks.push_back({param.grad.raw(), param.grad.dtype(), param.view->layout().local_numel(),
                        SumsAt(buffer, chunks.size())});
    }
    OptimKernelsFor(*context).square_sums(*context, {buffer.dtype(), chunks});
    return "";
  }
  if (clips()) MakeGates(step, context);
  ForEachGroup(step.params, [&](int group, size_t first, std::span<const ActiveParam> params) {
    // This update's step is not counted yet.
    Run(&OptimKernels::lamb_sums, options(group), params, first, /*ahead=*/1,
        GradScale(group, step.decision), buffer);
  });
  return "";
}

void LambRule::MakeGates(const RuleStep& step, const ContextPtr& context) {
  constexpr auto kBytes = static_cast<int64_t>(sizeof(StepGate));
  gates_ = Tensor::Empty({num_groups() * kBytes}, DType::kU8, context, MemoryCategory::kWorkspace);
  const Tensor& squares = step.totals[0].sum_values();
  for (int group = 0; group < num_groups(); ++group) {
    const double limit = options(group).pre_clip_norm;
    if (limit == 0) continue;
    OptimKernelsFor(*context).norm_clip(
        *context, {squares.dtype(), step.decision.grad_scale(), squares.raw(), squares.numel(),
                   limit, static_cast<StepGate*>(gates_.raw()) + group});
  }
}

GradFactor LambRule::GradScale(int group, const StepDecision& decision) const {
  if (options(group).pre_clip_norm == 0) return decision.grad_scale();
  return GradFactor::Of(static_cast<const StepGate*>(gates_.raw()) + group,
                        gates_.context()->is_host());
}

void LambRule::Update(const RuleStep& step) {
  const StatBuffer& sums = step.totals.back();
  Run(&OptimKernels::lamb, options(step.group), step.params, EntryOf(sums, step.params[0]),
      /*ahead=*/0, GradScale(step.group, step.decision), sums);
}

template class OptimizerOf<LambRule>;

}  // namespace apogee::optim
