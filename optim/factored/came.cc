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
void CameRule::DeclareStats(int phase, std::span<const ActiveParam> params, StatBuffer& buffer) {
  if (phase == 0) {
    square_->Prepare(params);
    residual_->Prepare(params);
  }
  for (const ActiveParam& param : params) {
    buffer.AddSums(*param.view, phase == 1 ? 1 : NumFactors(*param.view));
  }
}

void CameRule::ComputeFactors(Moment moment, int group, std::span<const ActiveParam> params,
                              size_t first, bool store, const StatBuffer& totals,
                              const StepGate* gate) {
  const CameOptions& o = options(group);
  const bool square = moment == Moment::kSquare;
  const Factored of(params, first);
  FactoredWork& work = square ? *square_ : *residual_;
  RunKernel(
      of.params, &OptimKernels::factor_moments,
      FactorArgs{{}, totals.dtype(), o.eps[square ? 0 : 1], /*mean_floor=*/0, store, {}, gate},
      [&](const ActiveParam& param) {
        const size_t entry = of.EntryOf(param);
        FactorChunk chunk =
            work.Moments(param, entry, square ? "exp_avg_sq_row" : "exp_avg_res_row",
                         square ? "exp_avg_sq_col" : "exp_avg_res_col", SumsAt(totals, entry));
        chunk.beta2 = o.betas[square ? 1 : 2];
        return chunk;
      });
}

std::string CameRule::ComputeStats(int phase, const RuleStep& step, StatBuffer& buffer) {
  ForEachGroup(step.params, [&](int group, size_t first, std::span<const ActiveParam> params) {
    const CameOptions& o = options(group);
    const DType stats = buffer.dtype();
    const GradFactor scale = step.decision.grad_scale();
    if (phase == 1) {
      ComputeFactors(Moment::kSquare, group, params, first, /*store=*/false, step.totals[0]);
    }
    const auto make_chunk = [&](const ActiveParam& param) {
      const size_t entry = first + static_cast<size_t>(&param - params.data());
      FactoredChunk chunk = square_->Chunk(param, entry);
      chunk.beta2 = o.betas[1];
      chunk.sums = SumsAt(buffer, entry);
      if (phase == 2) chunk.update_sum = SumsAt(step.totals[1], entry);
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
  });
  return "";
}

void CameRule::Update(const RuleStep& step) {
  const auto& [params, decision, totals, group] = step;
  const CameOptions& o = options(group);
  const size_t first = EntryOf(totals[0], params[0]);
  ComputeFactors(Moment::kSquare, group, params, first, /*store=*/true, totals[0], decision.gate);
  ComputeFactors(Moment::kResidual, group, params, first, /*store=*/true, totals[2], decision.gate);
  RunKernel(params, &OptimKernels::came, ArgsOf(o, totals[0].dtype(), decision.grad_scale()),
            [&](const ActiveParam& param) {
              const size_t entry = first + static_cast<size_t>(&param - step.params.data());
              FactoredChunk chunk = square_->Chunk(param, entry);
              chunk.beta2 = o.betas[1];
              chunk.update_sum = SumsAt(step.totals[1], entry);
              chunk.residual_factors = residual_->Chunk(param, entry).factors;
              return chunk;
            });
}

template class OptimizerOf<CameRule>;

}  // namespace apogee::optim
