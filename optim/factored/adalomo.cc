// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/factored/adalomo.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "apogee/optim/core/make_chunks.h"
#include "apogee/optim/core/stat_values.h"
#include "apogee/optim/factored/factored.h"

namespace apogee::optim {
namespace {

struct Counts {
  size_t rows = 0, cols = 0;  // 0 for a vector
};
Counts CountsOf(const ParamView& view) {
  if (!IsFactored(view)) return {};
  const MatrixView m = view.layout().matrix();
  return {static_cast<size_t>(m.batch * m.rows), static_cast<size_t>(m.batch * m.cols)};
}

size_t IndexOf(const StatBuffer& buffer, const ParamView* view) {
  const auto found = std::ranges::find(buffer.sum_entries(), view, &StatBuffer::Entry::view);
  return static_cast<size_t>(found - buffer.sum_entries().begin());
}

double NumelOf(const ParamView& view) {
  return static_cast<double>(view.layout().logical_shape().numel());
}

}  // namespace

std::vector<OptionField<AdaLomoOptions>> AdaLomoOptions::Fields() {
  using O = AdaLomoOptions;
  using enum OptionCheck;
  return {{"lr", &O::lr, kAtLeastZero, "learning rate, relative to rms(w)"},
          {"weight_decay", &O::weight_decay, kAtLeastZero, "decoupled, times the rate"},
          {"eps", &O::eps, {}, "added to g^2; lower bound of rms(w)"},
          {"clip_threshold", &O::clip_threshold, kPositive, "bound of rms(u)"},
          {"decay_rate", &O::decay_rate, {}, "b = 1 - T^decay_rate"},
          {"clip_grad_value", &O::clip_grad_value, kAboveZero,
           "gradients are clamped to +- this; inf: not"}};
}

void AdaLomoOptions::Check(OptionProblems& problems) const {
  problems.Run(OptionCheck::kPositive, "eps[0]", eps[0]);
  problems.Run(OptionCheck::kAtLeastZero, "eps[1]", eps[1]);
  if (!(decay_rate <= 0 && decay_rate >= -1)) {
    problems.Add(internal::Concat("decay_rate is ", decay_rate, ", must be in [-1, 0]"));
  }
}

void AdaLomoRule::States(const Subject& of, std::vector<StateSpec>& specs) const {
  if (IsFactored(of.view)) {
    specs = {{"exp_avg_sq_row", StateKind::kRow}, {"exp_avg_sq_col", StateKind::kColumn}};
  } else {
    specs = {{"exp_avg_sq"}};
  }
}

absl::Status AdaLomoRule::CheckGroupState(const GroupState& state, const OptionMap&) const {
  for (const auto& [key, values] : state) {
    if (key != "step_num" || values.size() != 1 || !(values[0] >= 0)) {
      return InvalidArgument("the group state of adalomo is one number \"step_num\", got \"", key,
                             "\" with ", values.size());
    }
  }
  return absl::OkStatus();
}

void AdaLomoRule::On(RuleEvent event) {
  if (event != RuleEvent::kUpdated) return;
  for (int group = 0; group < num_groups(); ++group) {
    std::vector<double>& steps = store().mutable_group_state(group)["step_num"];
    steps.resize(1);
    ++steps[0];
  }
}

// Beta2 of the current step. "step_num" counts finished steps only.
double AdaLomoRule::Beta2(int group) const {
  const GroupState& state = store().group_state(group);
  const auto found = state.find("step_num");
  const double steps = found == state.end() ? 0 : found->second[0];
  return 1 - std::pow(steps + 1, options(group).decay_rate);
}

void AdaLomoRule::DeclareStats(int phase, std::span<const ActiveParam> params, StatBuffer& buffer) {
  for (const ActiveParam& param : params) {
    const Counts counts = CountsOf(*param.view);
    // Phase 0: row sums, column sums, sum of squared weights. Phase 1: sum of squares of the
    // update.
    buffer.AddSums(*param.view,
                   phase == 0 ? static_cast<int64_t>(counts.rows + counts.cols) + 1 : 1);
  }
}

AdaLomoRule::Factors AdaLomoRule::MakeFactors(const ActiveParam& param, const double* sums) const {
  const ParamView& view = *param.view;
  Factors f;
  if (!IsFactored(view)) return f;
  const MatrixView m = view.layout().matrix();
  const Counts counts = CountsOf(view);
  const double beta2 = Beta2(param.group);
  const auto advance = [&](const char* state, const double* from, size_t count, int64_t divisor) {
    std::vector<double> moments = view.state(state).ToVector<double>();
    for (size_t i = 0; i < count; ++i) {
      moments[i] = beta2 * moments[i] + (1 - beta2) * from[i] / static_cast<double>(divisor);
    }
    return moments;
  };
  f.row_moments = advance("exp_avg_sq_row", sums, counts.rows, m.cols);
  f.col_moments = advance("exp_avg_sq_col", sums + counts.rows, counts.cols, m.rows);
  f.rows.resize(counts.rows);
  f.cols.resize(counts.cols);
  const auto rows = static_cast<size_t>(m.rows);
  for (size_t begin = 0; begin < counts.rows; begin += rows) {
    double mean = 0;
    for (size_t r = begin; r < begin + rows; ++r) mean += f.row_moments[r];
    mean /= static_cast<double>(rows);
    for (size_t r = begin; r < begin + rows; ++r)
      f.rows[r] = 1 / std::sqrt(f.row_moments[r] / mean);
  }
  for (size_t c = 0; c < counts.cols; ++c) f.cols[c] = 1 / std::sqrt(f.col_moments[c]);
  return f;
}

std::string AdaLomoRule::ComputeStats(int phase, const RuleStep& step, StatBuffer& buffer) {
  const std::span<const ActiveParam> params = step.params;
  const std::span<const StatBuffer> totals = step.totals;
  const StepDecision& decision = step.decision;
  std::vector<double> partials(static_cast<size_t>(buffer.sum_values().numel())), before;
  if (phase > 0) before = ReadStats(totals[0], StatSection::kSums);
  for (size_t i = 0; i < params.size(); ++i) {
    const ActiveParam& param = params[i];
    const AdaLomoOptions& o = options(param.group);
    const ParamView& view = *param.view;
    AdaLomoChunk chunk = MakeUpdateChunk<AdaLomoChunk>(param);
    chunk.layout = &view.layout();
    const DeviceContext& context = *param.grad.context();
    const AdaLomoArgs args{view.compute_dtype(),
                           decision.inv_loss_scale,
                           o.clip_grad_value,
                           decision.clip_factor,
                           o.eps[0],
                           Beta2(param.group),
                           std::span(&chunk, 1)};
    const StatBuffer::Entry& entry = buffer.sum_entries()[i];
    const auto sums = std::span(partials).subspan(static_cast<size_t>(entry.offset),
                                                  static_cast<size_t>(entry.count));
    if (phase == 0) {
      const Counts counts = CountsOf(view);
      if (counts.rows > 0) {
        chunk.row_sums = sums.data();
        chunk.col_sums = sums.data() + counts.rows;
      }
      OptimKernelsFor(context).adalomo_sums(context, args);
      sums.back() = chunk.weight_squares;
    } else {
      const Factors factors = MakeFactors(param, before.data() + totals[0].sum_entries()[i].offset);
      if (IsFactored(view)) {
        chunk.row_factors = factors.rows.data();
        chunk.col_factors = factors.cols.data();
      } else {
        chunk.exp_avg_sq = view.state("exp_avg_sq").raw();
      }
      OptimKernelsFor(context).adalomo_update_norm(context, args);
      sums[0] = chunk.update_squares;
    }
  }
  WriteStats(buffer, StatSection::kSums, partials);
  return "";
}

void AdaLomoRule::Update(const RuleStep& step) {
  const std::span<const ActiveParam> params = step.params;
  const std::span<const StatBuffer> totals = step.totals;
  const StepDecision& decision = step.decision;
  const AdaLomoOptions& o = options(step.group);
  std::vector<Factors> factors(params.size());
  const size_t first = IndexOf(totals[0], params[0].view);
  const std::vector<double> sums_of_all = ReadStats(totals[0], StatSection::kSums);
  const std::vector<double> update_squares = ReadStats(totals[1], StatSection::kSums);
  const auto make_chunk = [&](const ActiveParam& param) {
    const ParamView& view = *param.view;
    const auto i = static_cast<size_t>(&param - params.data());
    const StatBuffer::Entry& entry = totals[0].sum_entries()[first + i];
    const double* sums = sums_of_all.data() + entry.offset;
    AdaLomoChunk chunk = MakeUpdateChunk<AdaLomoChunk>(param);
    chunk.layout = &view.layout();
    if (IsFactored(view)) {
      Factors& f = factors[i] = MakeFactors(param, sums);
      view.state("exp_avg_sq_row").SetValues(f.row_moments);
      view.state("exp_avg_sq_col").SetValues(f.col_moments);
      chunk.row_factors = f.rows.data();
      chunk.col_factors = f.cols.data();
    } else {
      chunk.exp_avg_sq = view.state("exp_avg_sq").raw();
    }
    const double weight_rms = std::sqrt(sums[entry.count - 1] / NumelOf(view));
    const auto offset = static_cast<size_t>(totals[1].sum_entries()[first + i].offset);
    const double update_rms = std::sqrt(update_squares[offset] / NumelOf(view));
    const double lr = o.lr * std::max(o.eps[1], weight_rms);
    chunk.decay = lr * o.weight_decay;
    chunk.step_size = lr / std::max(1.0, update_rms / o.clip_threshold);
    return chunk;
  };
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    std::vector<AdaLomoChunk> chunks;
    for (const ActiveParam& param : params) {
      if (param.view->compute_dtype() == dtype) chunks.push_back(make_chunk(param));
    }
    if (chunks.empty()) continue;
    const DeviceContext& context = *params[0].grad.context();
    OptimKernelsFor(context).adalomo(
        context, {dtype, decision.inv_loss_scale, o.clip_grad_value, decision.clip_factor, o.eps[0],
                  Beta2(step.group), chunks});
  }
}

template class OptimizerOf<AdaLomoRule>;

}  // namespace apogee::optim
