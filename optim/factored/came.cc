// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/factored/came.h"

#include <limits>

#include "apogee/optim/check_options.h"
#include "apogee/optim/core/make_chunks.h"
#include "apogee/optim/factored/factored.h"

namespace apogee::optim {
namespace {

constexpr StateSpec kCameFactored[] = {{"exp_avg", StateKind::kElementwise},
                                       {"exp_avg_sq_row", StateKind::kRow},
                                       {"exp_avg_sq_col", StateKind::kColumn},
                                       {"exp_avg_res_row", StateKind::kRow},
                                       {"exp_avg_res_col", StateKind::kColumn}};
constexpr StateSpec kCameFull[] = {{"exp_avg", StateKind::kElementwise},
                                   {"exp_avg_sq", StateKind::kElementwise}};

}  // namespace

std::vector<std::string> CameOptions::Problems() const {
  OptionProblems problems;
  problems.AtLeastZero("lr", lr);
  problems.Positive("eps[0]", eps[0]);
  problems.Positive("eps[1]", eps[1]);
  problems.Positive("clip_threshold", clip_threshold);
  problems.Decay("betas[0]", betas[0]);
  problems.Decay("betas[1]", betas[1]);
  problems.Decay("betas[2]", betas[2]);
  problems.AtLeastZero("weight_decay", weight_decay);
  return problems.list();
}

std::vector<OptionField<CameOptions>> CameOptions::Fields() {
  return {{"lr", &CameOptions::lr},
          {"eps", &CameOptions::eps},
          {"clip_threshold", &CameOptions::clip_threshold},
          {"betas", &CameOptions::betas},
          {"weight_decay", &CameOptions::weight_decay}};
}

Came::Came(std::vector<ParamGroup<CameOptions>> groups)
    : TypedOptimizer("came", std::move(groups)),
      square_(std::make_unique<FactoredWork>()),
      residual_(std::make_unique<FactoredWork>()) {}

Came::~Came() = default;

std::span<const StateSpec> Came::StatesUnder(const ParamView& view, const CameOptions&) const {
  if (IsFactored(view)) return kCameFactored;
  return kCameFull;
}

// Statistics:
//   phase 0  row and column sums of g^2
//   phase 1  sum of u^2
//   phase 2  row and column sums of (u - m)^2
void Came::DeclareStats(int phase, std::span<const ActiveParam> params, StatBuffer& buffer) {
  if (phase == 0) {
    square_->Prepare(params);
    residual_->Prepare(params);
  }
  for (const ActiveParam& param : params) {
    buffer.AddSums(*param.view, phase == 1 ? 1 : NumFactors(*param.view));
  }
}

void Came::ComputeFactors(Moment moment, int group, std::span<const ActiveParam> params,
                          size_t first, bool store, const StatBuffer& totals,
                          const StepGate* gate) {
  const CameOptions& o = options(group);
  const bool square = moment == Moment::kSquare;
  std::vector<ActiveParam> factored;
  std::vector<size_t> entries;
  for (size_t i = 0; i < params.size(); ++i) {
    if (!IsFactored(*params[i].view)) continue;
    factored.push_back(params[i]);
    entries.push_back(first + i);
  }
  const auto make_chunk = [&](const ActiveParam& param) {
    const size_t entry = entries[static_cast<size_t>(&param - factored.data())];
    const void* sums = SumsAt(totals, entry);
    FactorChunk chunk =
        square ? square_->Moments(param, entry, "exp_avg_sq_row", "exp_avg_sq_col", sums)
               : residual_->Moments(param, entry, "exp_avg_res_row", "exp_avg_res_col", sums);
    chunk.beta2 = o.betas[square ? 1 : 2];
    return chunk;
  };
  ForEachComputeDType<FactorChunk>(
      factored, make_chunk, [&](DType dtype, std::span<const FactorChunk> chunks) {
        const DeviceContext& context = *params[0].grad.context();
        OptimKernelsFor(context).factor_moments(
            context,
            {dtype, totals.dtype(), o.eps[square ? 0 : 1], /*mean_floor=*/0, store, chunks, gate});
      });
}

void Came::ComputeStats(int phase, std::span<const ActiveParam> all, const StepDecision& decision,
                        std::span<const StatBuffer> totals, StatBuffer& buffer) {
  ForEachGroup(all, [&](int group, size_t first, std::span<const ActiveParam> params) {
    const CameOptions& o = options(group);
    if (phase == 1)
      ComputeFactors(Moment::kSquare, group, params, first, /*store=*/false, totals[0]);
    const auto make_chunk = [&](const ActiveParam& param) {
      const size_t entry = first + static_cast<size_t>(&param - params.data());
      FactoredChunk chunk = square_->Chunk(param, entry);
      chunk.beta2 = o.betas[1];
      chunk.sums = SumsAt(buffer, entry);
      if (phase == 2) chunk.update_sum = SumsAt(totals[1], entry);
      return chunk;
    };
    ForEachComputeDType<FactoredChunk>(
        params, make_chunk, [&](DType dtype, std::span<const FactoredChunk> chunks) {
          const DeviceContext& context = *params[0].grad.context();
          const OptimKernels& kernels = OptimKernelsFor(context);
          const DType stats = buffer.dtype();
          const GradFactor scale = decision.grad_scale();
          if (phase == 0) {
            kernels.adafactor_square_sums(context,
                                          {dtype, stats, scale, /*with_weights=*/false, chunks});
          } else if (phase == 1) {
            kernels.adafactor_update_sum(
                context,
                {dtype, stats, scale, o.eps[0], std::numeric_limits<double>::infinity(), chunks});
          } else {
            kernels.came_residual_sums(context, {dtype, stats, scale, o.eps[0], o.clip_threshold,
                                                 o.betas[0], o.lr, o.lr * o.weight_decay, chunks});
          }
        });
  });
}

void Came::Update(int group, std::span<const ActiveParam> params, const StepDecision& decision,
                  std::span<const StatBuffer> totals) {
  const CameOptions& o = options(group);
  const size_t first = EntryOf(totals[0], params[0]);
  ComputeFactors(Moment::kSquare, group, params, first, /*store=*/true, totals[0], decision.gate);
  ComputeFactors(Moment::kResidual, group, params, first, /*store=*/true, totals[2], decision.gate);
  const auto make_chunk = [&](const ActiveParam& param) {
    const size_t entry = first + static_cast<size_t>(&param - params.data());
    FactoredChunk chunk = square_->Chunk(param, entry);
    chunk.beta2 = o.betas[1];
    chunk.update_sum = SumsAt(totals[1], entry);
    chunk.residual_factors = residual_->Chunk(param, entry).factors;
    return chunk;
  };
  ForEachComputeDType<FactoredChunk>(
      params, make_chunk, [&](DType dtype, std::span<const FactoredChunk> chunks) {
        const DeviceContext& context = *params[0].grad.context();
        OptimKernelsFor(context).came(
            context, {dtype, totals[0].dtype(), decision.grad_scale(), o.eps[0], o.clip_threshold,
                      o.betas[0], o.lr, o.lr * o.weight_decay, chunks});
      });
}

template class TypedOptimizer<CameOptions>;

}  // namespace apogee::optim
