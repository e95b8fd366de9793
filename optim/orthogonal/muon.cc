// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/orthogonal/muon.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/grad_mode.h"
#include "apogee/core/text/text.h"
#include "apogee/optim/adam/adam.h"
#include "apogee/optim/core/make_chunks.h"
#include "apogee/optim/core/stat_values.h"
#include "apogee/optim/orthogonal/newton_schulz.h"
#include "apogee/tensor/ops/elementwise.h"

namespace apogee::optim {
namespace {

constexpr const char* kMomentum = "momentum_buffer";
constexpr const char* kRowVariance = "row_variance";
constexpr double kRowEps = 1e-8;
constexpr int kGradientPhase = 0, kDirectionPhase = 1, kNumPhases = 2;

// Whether the parameter is orthogonalized.
bool IsMatrix(const MuonOptions& o, const ParamView& view) {
  return o.orthogonalize && view.layout().logical_shape().rank() >= 2 &&
         (o.all_matrices || !IsTableName(view.name()));
}

// A tensor as matrices.
struct Matrices {
  int64_t batch, rows, cols;
};
Matrices MatricesOf(const Shape& shape, bool batch_convolutions) {
  const int rank = shape.rank();
  if (rank == 2) return {1, shape[0], shape[1]};
  if (rank == 3 || batch_convolutions) {
    return {shape.numel() / (shape[rank - 2] * shape[rank - 1]), shape[rank - 2], shape[rank - 1]};
  }
  return {1, shape[0], shape.numel() / shape[0]};
}

double ScaleOf(const std::string& name, int64_t rows, int64_t cols) {
  const auto m = static_cast<double>(rows), n = static_cast<double>(cols);
  if (name == "rms") return 0.2 * std::sqrt(std::max(m, n));
  if (name == "spectral") return std::sqrt(m / n);
  return name == "keller" ? std::sqrt(std::max(1.0, m / n)) : 1;
}

NewtonSchulz IterationOf(const MuonOptions& o) {
  return {.coefficients = ValueOrThrow(ParseCoefficients(o.coefficients, o.ns_steps)),
          .eps = o.ns_eps,
          .clamps_norm = o.clamps_norm,
          .norm_scale = o.norm_scale};
}

Tensor Flat(const Tensor& tensor, int64_t numel) {
  return tensor.View({tensor.numel()}).Slice(0, 0, numel);
}

// The gradient's part of the momentum after this step.
double ShareOf(const MuonOptions& o, double grad_scale) {
  return grad_scale * (o.average ? 1 - o.momentum : 1);
}

// The momentum after this step. A new tensor; the state stays.
Tensor NextMomentum(const MuonOptions& o, const ActiveParam& param, double grad_scale) {
  const int64_t numel = param.view->layout().local_numel();
  const Tensor next = ops::Scale(Flat(param.view->state(kMomentum), numel), o.momentum);
  ops::Accumulate(next, Flat(param.grad, numel), ShareOf(o, grad_scale));
  return next;
}

// U of the momentum after this step.
Tensor LookAhead(const MuonOptions& o, const ActiveParam& param, double grad_scale,
                 const Tensor& next) {
  if (!o.nesterov) return next;
  const Tensor ahead = ops::Scale(next, o.momentum);
  ops::Accumulate(ahead, Flat(param.grad, next.numel()), ShareOf(o, grad_scale));
  return ahead;
}

// NorMuon: O / (sqrt(v) + eps) with the norm of O. `variance` advances in place.
Tensor NormalizedRows(const Tensor& o, double beta2, const Tensor& variance) {
  const autograd::NoGradGuard no_grad;
  const Tensor squares = autograd::Square(o);
  const Tensor means = autograd::Mean(squares, {1});
  variance.CopyFrom(
      autograd::Add(autograd::Scale(variance, beta2), autograd::Scale(means, 1 - beta2)));
  const Tensor divisor =
      autograd::Add(autograd::Sqrt(variance), Tensor::Full({1}, o.dtype(), kRowEps, o.context()));
  const Tensor rows = autograd::Div(o, divisor.View({divisor.numel(), 1}));
  const double before = std::sqrt(autograd::Sum(squares, {0, 1}).Item());
  const double after = std::sqrt(autograd::Sum(autograd::Square(rows), {0, 1}).Item());
  return after > 0 ? ops::Scale(rows, before / after) : rows;
}

// w -= decay * w where the update and w have one sign, or one of them is 0.
void DecayCautiously(const ActiveParam& param, const Tensor& update, double decay) {
  const Tensor w = Flat(param.view->master(), update.numel());
  const Tensor zeros = Tensor::Zeros(w.shape(), w.dtype(), w.context());
  const Tensor agrees = ops::LessEqual(zeros, ops::Mul(update, w));
  ops::Accumulate(w, ops::Where(agrees, w, zeros), -decay);
}

// w -= decay * w + lr * update
void Apply(const ActiveParam& param, const Tensor& update, double lr, double decay) {
  UpdateChunk chunk = MakeUpdateChunk<UpdateChunk>(param);
  chunk.grad = update.raw();
  chunk.grad_dtype = update.dtype();
  const DeviceContext& context = *param.grad.context();
  OptimKernelsFor(context).low_rank_update(
      context, {.dtype = update.dtype(),
                .decay_kind = decay > 0 ? DecayKind::kBefore : DecayKind::kNone,
                .scale = -lr,
                .decay = decay,
                .decay_rate = {1},
                .gate = nullptr,
                .chunks = {&chunk, 1}});
}

AdamSettings AdamOf(const MuonOptions& o, int64_t step) {
  AdamSettings settings = AdamWSettings({.lr = o.orthogonalize ? o.adam_scale * o.lr : o.lr,
                                         .betas = o.adam_betas,
                                         .eps = o.adam_eps,
                                         .weight_decay = o.weight_decay,
                                         .hf_style = o.adam_hf_style},
                                        step);
  // Moonlight's decays first.
  if (settings.decay_kind == DecayKind::kAfter) settings.decay_kind = DecayKind::kBefore;
  return settings;
}

}  // namespace

bool MuonRule::IsOrthogonal(const ParamView& view, int group) const {
  return IsMatrix(options(group), view);
}

OptimizerTraits MuonRule::traits() {
  return {.shards = true,
          .num_stat_phases = kNumPhases,
          .of_param = [this](const ParamView& view, int group) {
            if (!IsOrthogonal(view, group)) return ParamTraits{};
            const auto [batch, rows, cols] =
                MatricesOf(view.layout().logical_shape(), options(group).batch_convolutions);
            return ParamTraits{.owned_numel = batch * rows * cols * std::min(rows, cols)};
          }};
}

void MuonRule::CheckGroup(const ParamGroup<MuonOptions>& group,
                          std::vector<std::string>& problems) {
  const std::vector<int64_t>& sections = group.options.sections;
  if (!group.options.orthogonalize || sections.empty()) return;
  const int64_t sum = std::accumulate(sections.begin(), sections.end(), int64_t{0});
  for (const autograd::ParameterPtr& parameter : group.params) {
    if (parameter == nullptr || parameter->shape().rank() < 2) continue;
    if (!group.options.all_matrices && IsTableName(parameter->name())) continue;
    const int64_t rows = MatricesOf(parameter->shape(), group.options.batch_convolutions).rows;
    if (rows != sum) {
      problems.push_back(internal::Concat("sections have ", sum, " rows together, but \"",
                                          parameter->name(), "\" ", parameter->shape(), " has ",
                                          rows));
    }
  }
}

void MuonRule::States(const Subject& of, std::vector<StateSpec>& specs) const {
  const Shape& shape = of.view.layout().logical_shape();
  if (!IsMatrix(of.options, of.view)) {
    specs = {{"exp_avg"}, {"exp_avg_sq"}};
    return;
  }
  specs = {{kMomentum}};
  if (!of.options.normalize_rows) return;
  const Matrices matrices = MatricesOf(shape, of.options.batch_convolutions);
  specs.push_back({kRowVariance, StateKind::kHistory, {matrices.batch * matrices.rows}});
}

void MuonRule::DeclareStats(int phase, std::span<const ActiveParam> params, StatBuffer& buffer) {
  for (const ActiveParam& param : params) {
    const ParamView& view = *param.view;
    if (!view.sharded() || !IsOrthogonal(view, param.group)) continue;
    const int64_t numel = view.layout().logical_shape().numel();
    if (phase == kGradientPhase) {
      buffer.AddSums(view, numel);
    } else {
      const Tensor variance = view.state(kRowVariance);
      buffer.AddFromOwner(view, numel + (variance.defined() ? variance.numel() : 0));
    }
  }
}

std::string MuonRule::ComputeStats(int phase, const RuleStep& step, StatBuffer& buffer) {
  for (const ActiveParam& param : step.params) {
    const ParamView& view = *param.view;
    if (!view.sharded() || !IsOrthogonal(view, param.group)) continue;
    const MuonOptions& o = options(param.group);
    const StatBuffer::Entry& entry = *FindEntry(buffer.sum_entries(), &view);
    const Tensor to = StatSlice(buffer, StatSection::kSums, entry.offset, entry.count);
    if (phase == kGradientPhase) {
      const double scale = step.decision.grad_scale();
      AddOwn(view.layout(), LookAhead(o, param, scale, NextMomentum(o, param, scale)), to);
    } else if (view.owned()) {
      const int64_t numel = view.layout().logical_shape().numel();
      const Tensor state = view.state(kRowVariance);
      const Tensor variance = state.defined() ? state.Clone(MemoryCategory::kWorkspace) : Tensor();
      const Tensor direction =
          Direction(o, view, TotalsOf(step.totals[kGradientPhase], view), variance);
      to.Slice(0, 0, numel).CopyFrom(direction);
      if (variance.defined()) to.Slice(0, numel, variance.numel()).CopyFrom(variance);
    }
  }
  return "";
}

Tensor MuonRule::Direction(const MuonOptions& o, const ParamView& view, const Tensor& momentum,
                           const Tensor& variance) const {
  const NewtonSchulz iteration = IterationOf(o);
  const auto [batch, rows, cols] = MatricesOf(view.layout().logical_shape(), o.batch_convolutions);
  const std::vector<int64_t> sections =
      o.sections.empty() ? std::vector<int64_t>{rows} : o.sections;
  const Tensor result = Tensor::EmptyLike(momentum);
  int64_t first = 0;  // row of all matrices together
  for (int64_t b = 0; b < batch; ++b) {
    for (const int64_t count : sections) {
      const Tensor own = momentum.Slice(0, first * cols, count * cols).View({count, cols});
      Tensor direction = Orthogonalized(own, iteration);
      if (variance.defined()) {
        direction = NormalizedRows(direction, o.beta2, variance.Slice(0, first, count));
      }
      result.Slice(0, first * cols, count * cols)
          .View({count, cols})
          .CopyFrom(ops::Scale(direction, ScaleOf(o.update_scale, count, cols)));
      first += count;
    }
  }
  return result;
}

void MuonRule::UpdateMatrix(const ActiveParam& param, const RuleStep& step) {
  ParamView& view = *param.view;
  const MuonOptions& o = options(param.group);
  const int64_t numel = view.layout().logical_shape().numel();
  const double scale = step.decision.grad_scale();
  const Tensor next = NextMomentum(o, param, scale);
  const Tensor variance = view.state(kRowVariance);
  Tensor direction;
  if (view.sharded()) {
    const Tensor sent = TotalsOf(step.totals[kDirectionPhase], view);
    direction = sent.Slice(0, 0, numel);
    if (variance.defined()) variance.CopyFrom(sent.Slice(0, numel, variance.numel()));
  } else {
    direction = Direction(o, view, LookAhead(o, param, scale, next), variance);
  }
  Flat(view.state(kMomentum), next.numel()).CopyFrom(next);
  const Layout& layout = view.layout();
  if (layout.local_numel() == 0) return;
  const Tensor update =
      layout.is_whole()
          ? direction
          : Flat(view.CutToLayout(direction, Layout(layout.logical_shape())), layout.local_numel());
  const double decay = o.lr * o.weight_decay;
  if (o.cautious_decay && decay > 0) DecayCautiously(param, update, decay);
  Apply(param, update, o.lr, o.cautious_decay ? 0 : decay);
}

void MuonRule::Update(const RuleStep& step) {
  const MuonOptions& o = options(step.group);
  std::vector<ActiveParam> others;
  for (const ActiveParam& param : step.params) {
    if (IsOrthogonal(*param.view, step.group)) {
      UpdateMatrix(param, step);
    } else {
      others.push_back(param);
    }
  }
  if (others.empty()) return;
  const auto settings = [&](const ActiveParam& p) { return AdamOf(o, p.view->step()); };
  RunElements(&OptimKernels::adam, others, step.decision.grad_scale(), settings,
              {"exp_avg", "exp_avg_sq"});
}

std::string MuonRule::Note() const {
  int matrices = 0;
  std::vector<std::string> tables;
  store().ForEachView([&](const ParamView& view, int group) {
    if (!view.trainable()) return;
    if (IsOrthogonal(view, group)) {
      ++matrices;
    } else if (view.layout().logical_shape().rank() >= 2) {
      tables.push_back(view.name());
    }
  });
  return internal::Concat("muon: makes the updates of ", matrices,
                          " matrices orthogonal; AdamW trains vectors",
                          tables.empty() ? "" : ", " + JoinTexts(tables, ", "));
}

template class OptimizerOf<MuonRule>;

}  // namespace apogee::optim
