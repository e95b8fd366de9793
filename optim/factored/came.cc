// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/factored/came.h"

#include <limits>
#include <utility>

#include "apogee/optim/core/make_chunks.h"
#include "apogee/optim/factored/factored.h"

namespace apogee::optim {
namespace {

CameArgs ArgsOf(const CameOptions& o, DType stats, const GradFactor& scale) {
  return {{}, stats, scale, o.eps[0], o.clip_threshold, o.betas[0], o.lr, o.lr * o.weight_decay,
          {}};
}

// Whether this rank's sums over a parameter are the totals. Its phases then need no reduction in
// between.
bool IsWhole(const ParamView& view) { return !view.sharded() && !view.partial_grad(); }

// The most elements of a batch of whole parameters per thread: few enough for the gradients to stay
// in the last-level cache from phase to phase.
constexpr int64_t kBatchElements = 1 << 20;

// The length of the first batch of `params`. The phases of a batch of whole parameters run one
// after another. A batch is either of whole parameters or of others.
size_t BatchLength(std::span<const ActiveParam> params) {
  const bool whole = IsWhole(*params[0].view);
  const DeviceContext& context = *params[0].grad.context();
  const bool limited = whole && context.is_host();
  int64_t elements = 0;
  size_t length = 0;
  for (; length < params.size() && IsWhole(*params[length].view) == whole; ++length) {
    elements += params[length].view->layout().local_numel();
    if (limited && length > 0 && elements > context.num_threads() * kBatchElements) break;
  }
  return length;
}

}  // namespace

std::vector<OptionField<CameOptions>> CameOptions::Fields() {
  using O = CameOptions;
  return {{"lr", &O::lr, OptionCheck::kAtLeastZero, "learning rate"},
          {"eps", &O::eps, OptionCheck::kPositive, "added to g^2, and to the squared residual"},
          {"clip_threshold", &O::clip_threshold, OptionCheck::kPositive, "bound of rms(u)"},
          {"betas", &O::betas, OptionCheck::kDecay, "decay rates: m, R and C, RR and RC"},
          {"weight_decay", &O::weight_decay, OptionCheck::kAtLeastZero, "decoupled"}};
}

CameRule::CameRule(std::vector<CameOptions> groups)
    : RuleOf(kName, std::move(groups)),
      square_(std::make_unique<FactoredWork>()),
      residual_(std::make_unique<FactoredWork>()) {}

CameRule::~CameRule() = default;

void CameRule::States(const Subject& of, std::vector<StateSpec>& specs) const {
  specs = {{"exp_avg"}};
  if (!IsFactored(of.view)) return specs.push_back({"exp_avg_sq"});
  for (const auto& [row, column] :
       {std::pair{"exp_avg_sq_row", "exp_avg_sq_col"}, {"exp_avg_res_row", "exp_avg_res_col"}}) {
    specs.push_back({row, StateKind::kRow});
    specs.push_back({column, StateKind::kColumn});
  }
}

// Statistics:
//   phase 0  row and column sums of g^2
//   phase 1  sum of u^2
//   phase 2  row and column sums of (u - m)^2
// A whole parameter has all of them in phase 0, one after another.
void CameRule::DeclareStats(int phase, std::span<const ActiveParam> params, StatBuffer& buffer) {
  if (phase == 0) {
    square_->Prepare(params);
    residual_->Prepare(params);
  }
  for (const ActiveParam& param : params) {
    const int64_t factors = NumFactors(*param.view);
    if (IsWhole(*param.view)) {
      buffer.AddSums(*param.view, phase == 0 ? 2 * factors + 1 : 0);
    } else {
      buffer.AddSums(*param.view, phase == 1 ? 1 : factors);
    }
  }
}

// Finds the sums of earlier phases in `totals`, and those of the running phase in `partials`.
class CameRule::Sums {
 public:
  explicit Sums(std::span<const StatBuffer> totals, const StatBuffer* partials = nullptr)
      : totals_(totals), partials_(partials) {}
  void* At(int phase, const ParamView& view, size_t entry) const {
    if (!IsWhole(view)) return SumsAt(Buffer(phase), entry);
    return SumsAt(Buffer(0), entry, phase == 0 ? 0 : NumFactors(view) + phase - 1);
  }
  DType dtype() const { return Buffer(0).dtype(); }

 private:
  const StatBuffer& Buffer(int phase) const {
    const auto at = static_cast<size_t>(phase);
    return at < totals_.size() ? totals_[at] : *partials_;
  }

  std::span<const StatBuffer> totals_;
  const StatBuffer* partials_;
};

void CameRule::ComputeFactors(Moment moment, int group, std::span<const ActiveParam> params,
                              size_t first, bool store, const Sums& sums, const StepGate* gate) {
  const CameOptions& o = options(group);
  const bool square = moment == Moment::kSquare;
  const Factored of(params, first);
  FactoredWork& work = square ? *square_ : *residual_;
  RunKernel(of.params, &OptimKernels::factor_moments,
            FactorArgs{{}, sums.dtype(), o.eps[square ? 0 : 1], /*mean_floor=*/0, store, {}, gate},
            [&](const ActiveParam& param) {
              const size_t entry = of.EntryOf(param);
              FactorChunk chunk =
                  work.Moments(param, entry, square ? "exp_avg_sq_row" : "exp_avg_res_row",
                               square ? "exp_avg_sq_col" : "exp_avg_res_col",
                               sums.At(square ? 0 : 2, *param.view, entry));
              chunk.beta2 = o.betas[square ? 1 : 2];
              return chunk;
            });
}

std::string CameRule::ComputeStats(int phase, const RuleStep& step, StatBuffer& buffer) {
  const Sums sums(step.totals, &buffer);
  ForEachGroup(step.params, [&](int group, size_t first, std::span<const ActiveParam> params) {
    while (!params.empty()) {
      const auto batch = params.first(BatchLength(params));
      if (!IsWhole(*batch[0].view)) {
        ComputePhase(phase, group, batch, first, step.decision, sums);
      } else if (phase == 0) {
        for (const int p : {0, 1, 2}) ComputePhase(p, group, batch, first, step.decision, sums);
      }
      first += batch.size();
      params = params.subspan(batch.size());
    }
  });
  return "";
}

void CameRule::ComputePhase(int phase, int group, std::span<const ActiveParam> params, size_t first,
                            const StepDecision& decision, const Sums& sums) {
  const CameOptions& o = options(group);
  const DType stats = sums.dtype();
  const GradFactor scale = decision.grad_scale();
  if (phase == 1) ComputeFactors(Moment::kSquare, group, params, first, /*store=*/false, sums);
  const auto make_chunk = [&](const ActiveParam& param) {
    const size_t entry = first + static_cast<size_t>(&param - params.data());
    FactoredChunk chunk = square_->Chunk(param, entry);
    chunk.beta2 = o.betas[1];
    chunk.sums = sums.At(phase, *param.view, entry);
    if (phase == 2) chunk.update_sum = sums.At(1, *param.view, entry);
    return chunk;
  };
  if (phase == 0) {
    RunKernel(params, &OptimKernels::adafactor_square_sums,
              AdafactorSumArgs{{}, stats, scale, /*with_weights=*/false, {}}, make_chunk);
  } else if (phase == 1) {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    RunKernel(params, &OptimKernels::adafactor_update_sum,
              AdafactorUpdateSumArgs{{}, stats, scale, o.eps[0], kInfinity, {}}, make_chunk);
  } else {
    RunKernel(params, &OptimKernels::came_residual_sums, ArgsOf(o, stats, scale), make_chunk);
  }
}

void CameRule::Update(const RuleStep& step) {
  const auto& [params, decision, totals, group] = step;
  const CameOptions& o = options(group);
  const size_t first = EntryOf(totals[0], params[0]);
  const Sums sums(totals);
  ComputeFactors(Moment::kSquare, group, params, first, /*store=*/true, sums, decision.gate);
  ComputeFactors(Moment::kResidual, group, params, first, /*store=*/true, sums, decision.gate);
  RunKernel(params, &OptimKernels::came, ArgsOf(o, sums.dtype(), decision.grad_scale()),
            [&](const ActiveParam& param) {
              const size_t entry = first + static_cast<size_t>(&param - step.params.data());
              FactoredChunk chunk = square_->Chunk(param, entry);
              chunk.beta2 = o.betas[1];
              chunk.update_sum = sums.At(1, *param.view, entry);
              chunk.residual_factors = residual_->Chunk(param, entry).factors;
              return chunk;
            });
}

template class OptimizerOf<CameRule>;

}  // namespace apogee::optim
