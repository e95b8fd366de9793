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
// A whole parameter has all of them in phase 0, one after another.
void Came::DeclareStats(int phase, std::span<const ActiveParam> params, StatBuffer& buffer) {
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
class Came::Sums {
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

void Came::ComputeFactors(Moment moment, int group, std::span<const ActiveParam> params,
                          size_t first, bool store, const Sums& sums, const StepGate* gate) {
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
    const void* at = sums.At(square ? 0 : 2, *param.view, entry);
    FactorChunk chunk =
        square ? square_->Moments(param, entry, "exp_avg_sq_row", "exp_avg_sq_col", at)
               : residual_->Moments(param, entry, "exp_avg_res_row", "exp_avg_res_col", at);
    chunk.beta2 = o.betas[square ? 1 : 2];
    return chunk;
  };
  ForEachComputeDType<FactorChunk>(
      factored, make_chunk, [&](DType dtype, std::span<const FactorChunk> chunks) {
        const DeviceContext& context = *params[0].grad.context();
        OptimKernelsFor(context).factor_moments(
            context,
            {dtype, sums.dtype(), o.eps[square ? 0 : 1], /*mean_floor=*/0, store, chunks, gate});
      });
}

void Came::ComputeStats(int phase, std::span<const ActiveParam> all, const StepDecision& decision,
                        std::span<const StatBuffer> totals, StatBuffer& buffer) {
  const Sums sums(totals, &buffer);
  ForEachGroup(all, [&](int group, size_t first, std::span<const ActiveParam> params) {
    while (!params.empty()) {
      const auto batch = params.first(BatchLength(params));
      if (!IsWhole(*batch[0].view)) {
        ComputePhase(phase, group, batch, first, decision, sums);
      } else if (phase == 0) {
        for (int p = 0; p < num_stat_phases(); ++p) {
          ComputePhase(p, group, batch, first, decision, sums);
        }
      }
      first += batch.size();
      params = params.subspan(batch.size());
    }
  });
}

void Came::ComputePhase(int phase, int group, std::span<const ActiveParam> params, size_t first,
                        const StepDecision& decision, const Sums& sums) {
  const CameOptions& o = options(group);
  if (phase == 1) ComputeFactors(Moment::kSquare, group, params, first, /*store=*/false, sums);
  const auto make_chunk = [&](const ActiveParam& param) {
    const size_t entry = first + static_cast<size_t>(&param - params.data());
    FactoredChunk chunk = square_->Chunk(param, entry);
    chunk.beta2 = o.betas[1];
    chunk.sums = sums.At(phase, *param.view, entry);
    if (phase == 2) chunk.update_sum = sums.At(1, *param.view, entry);
    return chunk;
  };
  ForEachComputeDType<
      FactoredChunk>(params, make_chunk, [&](DType dtype, std::span<const FactoredChunk> chunks) {
    const DeviceContext& context = *params[0].grad.context();
    const OptimKernels& kernels = OptimKernelsFor(context);
    const DType stats = sums.dtype();
    const GradFactor scale = decision.grad_scale();
    if (phase == 0) {
      kernels.adafactor_square_sums(context, {dtype, stats, scale, /*with_weights=*/false, chunks});
    } else if (phase == 1) {
      kernels.adafactor_update_sum(context, {dtype, stats, scale, o.eps[0],
                                             std::numeric_limits<double>::infinity(), chunks});
    } else {
      kernels.came_residual_sums(context, {dtype, stats, scale, o.eps[0], o.clip_threshold,
                                           o.betas[0], o.lr, o.lr * o.weight_decay, chunks});
    }
  });
}

void Came::Update(int group, std::span<const ActiveParam> params, const StepDecision& decision,
                  std::span<const StatBuffer> totals) {
  const CameOptions& o = options(group);
  const size_t first = EntryOf(totals[0], params[0]);
  const Sums sums(totals);
  ComputeFactors(Moment::kSquare, group, params, first, /*store=*/true, sums, decision.gate);
  ComputeFactors(Moment::kResidual, group, params, first, /*store=*/true, sums, decision.gate);
  const auto make_chunk = [&](const ActiveParam& param) {
    const size_t entry = first + static_cast<size_t>(&param - params.data());
    FactoredChunk chunk = square_->Chunk(param, entry);
    chunk.beta2 = o.betas[1];
    chunk.update_sum = sums.At(1, *param.view, entry);
    chunk.residual_factors = residual_->Chunk(param, entry).factors;
    return chunk;
  };
  ForEachComputeDType<FactoredChunk>(
      params, make_chunk, [&](DType dtype, std::span<const FactoredChunk> chunks) {
        const DeviceContext& context = *params[0].grad.context();
        OptimKernelsFor(context).came(
            context, {dtype, sums.dtype(), decision.grad_scale(), o.eps[0], o.clip_threshold,
                      o.betas[0], o.lr, o.lr * o.weight_decay, chunks});
      });
}

template class TypedOptimizer<CameOptions>;

}  // namespace apogee::optim
