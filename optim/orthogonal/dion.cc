// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/orthogonal/dion.h"

#include <algorithm>
#include <cmath>

#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/grad_mode.h"
#include "apogee/core/rng.h"
#include "apogee/optim/lowrank/low_rank_basis.h"
#include "apogee/optim/orthogonal/matrix_rule_steps.h"
#include "apogee/tensor/ops/elementwise.h"
#include "apogee/tensor/ops/matmul.h"
#include "apogee/tensor/ops/nn.h"

namespace apogee::optim {
namespace {

constexpr const char* kMomentum = "momentum";
constexpr const char* kBasis = "Q";

// A matrix with the places of its basis and of its P and R.
struct LowRankPart {
  MatrixPart matrix;
  int64_t rank;
  int64_t basis, computed;  // first elements
  bool wide() const { return matrix.rows < matrix.cols; }
  int64_t small() const { return std::min(matrix.rows, matrix.cols); }
  int64_t large() const { return std::max(matrix.rows, matrix.cols); }
  Tensor BasisOf(const Tensor& flat) const {
    return flat.Slice(0, basis, small() * rank).View({small(), rank});
  }
  Tensor POf(const Tensor& flat) const {
    return flat.Slice(0, computed, large() * rank).View({large(), rank});
  }
  Tensor ROf(const Tensor& flat) const {
    return flat.Slice(0, computed + large() * rank, small() * rank).View({small(), rank});
  }
  // p q^T, transposed back.
  Tensor Product(const Tensor& p, const Tensor& q) const {
    return wide() ? ops::MatMul(q, p, {.b_trans = true}) : ops::MatMul(p, q, {.b_trans = true});
  }
};

int64_t RankOf(const DionOptions& o, int64_t small) {
  const auto multiple = static_cast<double>(o.rank_multiple_of);
  const double rank = multiple * std::ceil(o.rank_fraction * static_cast<double>(small) / multiple);
  return std::min(static_cast<int64_t>(rank), small);
}

std::vector<LowRankPart> LowRankParts(const std::vector<MatrixPart>& matrices,
                                      const DionOptions& o) {
  std::vector<LowRankPart> parts;
  int64_t basis = 0, computed = 0;
  for (const MatrixPart& matrix : matrices) {
    const int64_t rank = RankOf(o, std::min(matrix.rows, matrix.cols));
    const LowRankPart& part = parts.emplace_back(matrix, rank, basis, computed);
    basis += part.small() * rank;
    computed += (part.small() + part.large()) * rank;
  }
  return parts;
}

double Norm(const Tensor& x) { return std::sqrt(autograd::Sum(autograd::Square(x)).Item()); }

// Q of a parameter that was never updated.
Tensor FirstBasis(const ParamView& view) {
  const Tensor first = Tensor::EmptyLike(view.state(kBasis));
  ops::FillNormal(first, 0, 1, MakeKey(0, view.name() + "/Q"));
  return first;
}

// Each column divided by its length + eps. Columns that are rounding errors beside the longest one
// become 0.
Tensor NormalizedColumns(const Tensor& x, double eps) {
  const Tensor lengths = autograd::Sqrt(autograd::Sum(autograd::Square(x), {0}));
  double longest = 0;
  for (const double length : lengths.ToVector<double>()) longest = std::max(longest, length);
  const auto all = [&](double value) {
    return Tensor::Full(lengths.shape(), x.dtype(), value, x.context());
  };
  const double rounding = longest * (x.dtype() == DType::kF64 ? 1e-13 : 1e-5);
  const Tensor counts = ops::Less(all(rounding), lengths);
  const Tensor inverse =
      ops::Where(counts, autograd::Div(all(1), autograd::Add(lengths, all(eps))), all(0));
  return ops::Mul(x, inverse);
}

}  // namespace

std::vector<OptionField<DionOptions>> DionOptions::Fields() {
  using O = DionOptions;
  using enum OptionCheck;
  return JoinFields<O>(
      {{{"lr", &O::lr, kAtLeastZero, "learning rate"},
        {"mu", &O::mu, kDecay, "of the momentum in the directions of the update"},
        {"weight_decay", &O::weight_decay, kAtLeastZero,
         "decoupled: shrinks the weights by lr * it"},
        {"rank_fraction", &O::rank_fraction, kPositive, "rank over the smaller side; at most 1"},
        {"rank_multiple_of", &O::rank_multiple_of, kAtLeastOne, "rounds the rank up to a multiple"},
        {"power_iters", &O::power_iters, kAtLeastOne, "steps of the power iteration"},
        {"eps", &O::eps, kPositive, "added to the lengths of columns"}},
       MatrixFields<O>()});
}

void DionOptions::Check(OptionProblems& problems) const {
  if (rank_fraction > 1) {
    problems.Add(internal::Concat("rank_fraction is ", rank_fraction, ", must be at most 1"));
  }
}

void DionRule::MatrixStates(const ParamView& view, const DionOptions& options,
                            std::vector<StateSpec>& specs) const {
  const LowRankPart last = LowRankParts(Parts(view, options), options).back();
  specs = {{kMomentum}, {kBasis, StateKind::kBasis, {last.basis + last.small() * last.rank}}};
}

Tensor DionRule::Gathered(const ActiveParam& param, const DionOptions& /*options*/,
                          double grad_scale) const {
  const int64_t numel = param.view->layout().local_numel();
  const Tensor next = Flat(param.view->state(kMomentum), numel).Clone(MemoryCategory::kWorkspace);
  ops::Accumulate(next, Flat(param.grad, numel), grad_scale);
  return next;
}

int64_t DionRule::NumComputed(const ParamView& view, const DionOptions& options) const {
  const LowRankPart last = LowRankParts(Parts(view, options), options).back();
  return last.computed + (last.small() + last.large()) * last.rank;
}

void DionRule::Compute(std::span<const Job> jobs) {
  for (const Job& job : jobs) ComputeOne(job);
}

void DionRule::ComputeOne(const Job& job) const {
  const ParamView& view = job.view;
  const DionOptions& options = job.options;
  const Tensor &whole = job.whole, &to = job.to;
  const autograd::NoGradGuard no_grad;
  Tensor basis = view.state(kBasis);
  if (Norm(basis) == 0) basis = FirstBasis(view);
  for (const LowRankPart& part : LowRankParts(Parts(view, options), options)) {
    const Tensor momentum = part.matrix.Of(whole);
    if (!whole.context()->is_dry() && Norm(momentum) == 0) continue;
    Tensor p, q = part.BasisOf(basis);
    for (int64_t i = 0; i < options.power_iters; ++i) {
      const Tensor columns = ops::MatMul(momentum, q, {.a_trans = part.wide()});
      p = OrthonormalColumns(columns.To(DType::kF64, MemoryCategory::kWorkspace))
              .To(whole.dtype(), MemoryCategory::kWorkspace);
      q = ops::MatMul(momentum, p, {.a_trans = !part.wide()});
    }
    part.POf(to).CopyFrom(p);
    part.ROf(to).CopyFrom(q);
  }
}

void DionRule::UpdateMatrix(const ActiveParam& param, const DionOptions& o, double grad_scale,
                            const Tensor& computed) {
  const autograd::NoGradGuard no_grad;
  ParamView& view = *param.view;
  const Tensor basis = view.state(kBasis);
  if (Norm(basis) == 0) basis.CopyFrom(FirstBasis(view));
  const int64_t numel = view.layout().logical_shape().numel();
  const Tensor update =
      Tensor::Zeros({numel}, computed.dtype(), computed.context(), MemoryCategory::kWorkspace);
  const Tensor caught = Tensor::EmptyLike(update);
  for (const LowRankPart& part : LowRankParts(Parts(view, o), o)) {
    const Tensor p = part.POf(computed), r = part.ROf(computed), q = part.BasisOf(basis);
    const bool moves = r.context()->is_dry() || Norm(r) > 0;
    q.CopyFrom(NormalizedColumns(moves ? r : q.Clone(), o.eps));
    part.matrix.Of(caught).CopyFrom(part.Product(p, r));
    if (!moves) continue;
    const auto rows = static_cast<double>(part.matrix.rows);
    const auto cols = static_cast<double>(part.matrix.cols);
    part.matrix.Of(update).CopyFrom(ops::Scale(part.Product(p, q), std::sqrt(rows / cols)));
  }
  const int64_t own = view.layout().local_numel();
  const Tensor momentum = Gathered(param, o, grad_scale);
  if (own > 0) ops::Accumulate(momentum, OwnOf(view, caught), -(1 - o.mu));
  Flat(view.state(kMomentum), own).CopyFrom(momentum);
  if (own == 0) return;
  ApplyUpdate(param, OwnOf(view, update), o.lr, o.lr * o.weight_decay, DecayKind::kBefore);
}

template class MatrixRule<DionOptions>;
template class OptimizerOf<DionRule>;

}  // namespace apogee::optim
