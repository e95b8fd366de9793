// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/factored/adafactor_step.h"

#include <cmath>

#include "apogee/optim/core/make_chunks.h"

namespace apogee::optim {
namespace {

double Beta2(const AdafactorOptions& o, int64_t step) {
  return 1 - std::pow(static_cast<double>(step), o.decay_rate);
}

// The uses of eps[0], which differ between the two styles.
struct Floors {
  double added = 0;
  double mean_floor = 0;
  double limit = std::numeric_limits<double>::infinity();  // upper bound of one over the root
};
Floors FloorsOf(const AdafactorOptions& o, DType dtype) {
  if (!o.torch_style) return {.added = o.eps[0]};
  const double machine = dtype == DType::kF64
                             ? std::numeric_limits<double>::epsilon()
                             : static_cast<double>(std::numeric_limits<float>::epsilon());
  const double eps = o.eps[0] > 0 ? o.eps[0] : machine;
  return {.mean_floor = eps, .limit = 1 / eps};
}

}  // namespace

void AdafactorStep::AppendStates(const ParamView& view, const AdafactorOptions& options,
                                 std::vector<StateSpec>& specs) {
  if (IsFactored(view)) {
    specs.push_back({"exp_avg_sq_row", StateKind::kRow});
    specs.push_back({"exp_avg_sq_col", StateKind::kColumn});
  } else {
    specs.push_back({"exp_avg_sq"});
  }
  if (options.beta1 != 0) specs.push_back({"exp_avg"});
}

// Statistics:
//   phase 0  row and column sums of g^2, sum of w^2
//   phase 1  sum of u^2
void AdafactorStep::Declare(int phase, std::span<const ActiveParam> params, StatBuffer& buffer) {
  if (phase == 0) work_.Prepare(params);
  for (const ActiveParam& param : params) {
    const int64_t scale = options_(param.group).scale_parameter ? 1 : 0;
    buffer.AddSums(*param.view, phase == 0 ? NumFactors(*param.view) + scale : 1);
  }
}

void AdafactorStep::ComputeFactors(int group, std::span<const ActiveParam> params, size_t first,
                                   int64_t ahead, bool store, const StatBuffer& totals,
                                   const StepGate* gate) {
  const AdafactorOptions o = options_(group);
  const Factored of(params, first);
  const auto make_chunk = [&](const ActiveParam& param) {
    const size_t entry = of.EntryOf(param);
    FactorChunk chunk =
        work_.Moments(param, entry, "exp_avg_sq_row", "exp_avg_sq_col", SumsAt(totals, entry));
    chunk.beta2 = Beta2(o, param.view->step() + ahead);
    return chunk;
  };
  ForEachComputeDType<FactorChunk>(
      of.params, make_chunk, [&](DType dtype, std::span<const FactorChunk> chunks) {
        const DeviceContext& context = *params[0].grad.context();
        const Floors floors = FloorsOf(o, dtype);
        OptimKernelsFor(context).factor_moments(
            context, {dtype, totals.dtype(), floors.added, floors.mean_floor, store, chunks, gate});
      });
}

void AdafactorStep::Compute(int phase, const RuleStep& step, StatBuffer& buffer) {
  const GradFactor scale = step.decision.grad_scale();
  ForEachGroup(step.params, [&](int group, size_t first, std::span<const ActiveParam> params) {
    const AdafactorOptions o = options_(group);
    if (phase == 1)
      ComputeFactors(group, params, first, /*ahead=*/1, /*store=*/false, step.totals[0]);
    const auto make_chunk = [&](const ActiveParam& param) {
      const size_t entry = first + static_cast<size_t>(&param - params.data());
      FactoredChunk chunk = work_.Chunk(param, entry);
      chunk.beta2 = Beta2(o, param.view->step() + 1);
      chunk.sums = SumsAt(buffer, entry);
      return chunk;
    };
    if (phase == 0) {
      return RunKernel(params, &OptimKernels::adafactor_square_sums,
                       AdafactorSumArgs{{}, buffer.dtype(), scale, o.scale_parameter, {}},
                       make_chunk);
    }
    ForEachComputeDType<FactoredChunk>(
        params, make_chunk, [&](DType dtype, std::span<const FactoredChunk> chunks) {
          const DeviceContext& context = *params[0].grad.context();
          const Floors floors = FloorsOf(o, dtype);
          OptimKernelsFor(context).adafactor_update_sum(
              context, {dtype, buffer.dtype(), scale, floors.added, floors.limit, chunks});
        });
  });
}

void AdafactorStep::Update(const RuleStep& step) {
  const std::span<const ActiveParam> params = step.params;
  const std::span<const StatBuffer> totals = step.totals;
  const StepDecision& decision = step.decision;
  const AdafactorOptions o = options_(step.group);
  const size_t first = EntryOf(totals[0], params[0]);
  ComputeFactors(step.group, params, first, /*ahead=*/0, /*store=*/true, totals[0], decision.gate);
  const auto make_chunk = [&](const ActiveParam& param) {
    const size_t entry = first + static_cast<size_t>(&param - params.data());
    FactoredChunk chunk = work_.Chunk(param, entry);
    const int64_t t = param.view->step();
    chunk.beta2 = Beta2(o, t);
    chunk.update_sum = SumsAt(totals[1], entry);
    if (rate_ != nullptr) {
      chunk.rate = *rate_;
    } else {
      chunk.rate = {.rate = RelativeRate(o, t),
                    .weight_sum = o.scale_parameter
                                      ? SumsAt(totals[0], entry, NumFactors(*param.view))
                                      : nullptr,
                    .stat_dtype = totals[0].dtype(),
                    .numel = chunk.numel,
                    .floor = o.eps[1]};
    }
    return chunk;
  };
  ForEachComputeDType<FactoredChunk>(
      params, make_chunk, [&](DType dtype, std::span<const FactoredChunk> chunks) {
        const DeviceContext& context = *params[0].grad.context();
        const Floors floors = FloorsOf(o, dtype);
        OptimKernelsFor(context).adafactor(
            context, {dtype, totals[0].dtype(), decision.grad_scale(), floors.added, floors.limit,
                      o.clip_threshold, o.beta1, o.weight_decay * (o.torch_style ? o.lr : 1),
                      /*decay_by_alpha=*/!o.torch_style, chunks});
      });
}

Tensor AdafactorLowRankStep(const AdafactorOptions& options, const SizedRate& alpha,
                            const ParamView& view, const Tensor& grad,
                            const StepDecision& decision) {
  AdafactorOptions o = options;
  o.scale_parameter = false;
  o.weight_decay = 0;
  // A step from zero weights gives the update itself.
  const ContextPtr& context = grad.context();
  ParamView low(view.name(),
                Tensor::Zeros(grad.shape(), grad.dtype(), context, MemoryCategory::kWorkspace),
                Layout(grad.shape()));
  low.ReplaceStates(view.states());
  const ActiveParam param{&low, 0, grad};
  AdafactorStep step([&o](int) { return o; }, &alpha);
  std::vector<StatBuffer> totals;
  low.set_step(view.step() - 1);
  for (int phase = 0; phase < AdafactorStep::kNumPhases; ++phase) {
    StatBuffer buffer(grad.dtype(), context);
    step.Declare(phase, {&param, 1}, buffer);
    buffer.Allocate();
    step.Compute(phase, {{&param, 1}, decision, totals}, buffer);
    totals.push_back(std::move(buffer));
  }
  low.set_step(view.step());
  step.Update({{&param, 1}, decision, totals});
  return low.value();
}

}  // namespace apogee::optim
