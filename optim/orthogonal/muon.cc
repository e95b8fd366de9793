// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/orthogonal/muon.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/grad_mode.h"
#include "apogee/optim/orthogonal/matrix_rule_steps.h"
#include "apogee/optim/orthogonal/newton_schulz.h"
#include "apogee/tensor/ops/elementwise.h"

namespace apogee::optim {
namespace {

constexpr const char* kMomentum = "momentum_buffer";
constexpr const char* kRowVariance = "row_variance";
constexpr double kRowEps = 1e-8;

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

}  // namespace

void MuonRule::MatrixStates(const ParamView& view, const MuonOptions& options,
                            std::vector<StateSpec>& specs) const {
  specs = {{kMomentum}};
  if (!options.normalize_rows) return;
  const MatrixPart last = Parts(view, options).back();
  specs.push_back({kRowVariance, StateKind::kHistory, {last.first_row + last.rows}});
}

Tensor MuonRule::Gathered(const ActiveParam& param, const MuonOptions& options,
                          double grad_scale) const {
  return LookAhead(options, param, grad_scale, NextMomentum(options, param, grad_scale));
}

int64_t MuonRule::NumComputed(const ParamView& view, const MuonOptions& options) const {
  const MatrixPart last = Parts(view, options).back();
  return view.layout().logical_shape().numel() +
         (options.normalize_rows ? last.first_row + last.rows : 0);
}

void MuonRule::Compute(std::span<const Job> jobs) {
  // Matrices of one shape under the same options.
  struct Place {
    const Job* job;
    MatrixPart part;
  };
  std::map<std::tuple<const MuonOptions*, int64_t, int64_t>, std::vector<Place>> by_shape;
  for (const Job& job : jobs) {
    const Tensor variance = job.view.state(kRowVariance);
    if (variance.defined()) {
      job.to.Slice(0, job.whole.numel(), variance.numel()).CopyFrom(variance);
    }
    for (const MatrixPart& part : Parts(job.view, job.options)) {
      by_shape[{&job.options, part.rows, part.cols}].push_back({&job, part});
    }
  }
  for (const auto& [key, places] : by_shape) {
    const auto& [options, rows, cols] = key;
    const double scale = options->ScaleOf(rows, cols);
    std::vector<Tensor> matrices;
    for (const auto& [job, part] : places) matrices.push_back(part.Of(job->whole));
    Orthogonalize(matrices, options->Iteration(), [&](size_t i, Tensor direction) {
      const auto& [job, part] = places[i];
      if (options->normalize_rows) {
        const int64_t at = job->whole.numel() + part.first_row;
        direction = NormalizedRows(direction, options->beta2, job->to.Slice(0, at, rows));
      }
      part.Of(job->to).CopyFrom(ops::Scale(direction, scale));
    });
  }
}

void MuonRule::UpdateMatrix(const ActiveParam& param, const MuonOptions& o, double grad_scale,
                            const Tensor& computed) {
  ParamView& view = *param.view;
  const int64_t numel = view.layout().logical_shape().numel();
  const Tensor variance = view.state(kRowVariance);
  if (variance.defined()) variance.CopyFrom(computed.Slice(0, numel, variance.numel()));
  const Tensor next = NextMomentum(o, param, grad_scale);
  Flat(view.state(kMomentum), next.numel()).CopyFrom(next);
  if (view.layout().local_numel() == 0) return;
  const Tensor update =
      computed.defined() ? OwnOf(view, computed.Slice(0, 0, numel)) : UpdateFromSums(view, o);
  const double decay = o.lr * o.weight_decay;
  if (o.cautious_decay && decay > 0) DecayCautiously(param, update, decay);
  ApplyUpdate(param, update, o.lr, o.cautious_decay ? 0 : decay, DecayKind::kBefore);
}

template class MatrixRule<MuonOptions>;
template class OptimizerOf<MuonRule>;

}  // namespace apogee::optim
