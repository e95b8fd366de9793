// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/orthogonal/soap.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/grad_mode.h"
#include "apogee/optim/orthogonal/eigen_basis.h"
#include "apogee/optim/orthogonal/matrix_rule_steps.h"
#include "apogee/tensor/ops/elementwise.h"
#include "apogee/tensor/ops/matmul.h"

namespace apogee::optim {
namespace {

constexpr const char* kFirst = "exp_avg";
constexpr const char* kSecond = "exp_avg_sq";
constexpr std::array<const char*, Shape::kMaxRank> kGrams = {"GG0", "GG1", "GG2",
                                                             "GG3", "GG4", "GG5"};
constexpr std::array<const char*, Shape::kMaxRank> kBases = {"Q0", "Q1", "Q2", "Q3", "Q4", "Q5"};

// A dim that has a basis, with the place of its matrices in the states.
struct RotatedAxis {
  int axis;
  int64_t size, begin;
  Tensor Of(const Tensor& flat) const {
    return flat.Slice(0, begin, size * size).View({size, size});
  }
};

struct RotatedPart {
  int64_t first;  // element
  Shape shape;
  std::vector<RotatedAxis> axes;
  Tensor Of(const Tensor& flat) const { return flat.Slice(0, first, shape.numel()); }
};

bool Rotates(const SoapOptions& o, const Shape& shape, int axis) {
  if (shape[axis] > o.max_precond_dim) return false;
  if (shape.rank() == 1) return o.precondition_1d;
  if (!o.one_sided) return true;
  int smallest = 0;
  for (int i = 1; i < shape.rank(); ++i) smallest = shape[i] < shape[smallest] ? i : smallest;
  return axis == smallest;
}

std::vector<RotatedPart> PartsOf(const ParamView& view, const SoapOptions& o) {
  const Shape& whole = view.layout().logical_shape();
  std::vector<int64_t> sections = o.sections;
  if (sections.empty() || whole.rank() < 2) sections = {whole.rank() == 0 ? 1 : whole[0]};
  std::vector<RotatedPart> parts;
  std::array<int64_t, Shape::kMaxRank> ends{};
  int64_t first = 0;
  for (const int64_t rows : sections) {
    std::vector<int64_t> sizes;
    for (int axis = 0; axis < whole.rank(); ++axis) sizes.push_back(axis == 0 ? rows : whole[axis]);
    RotatedPart& part = parts.emplace_back(first, Shape(sizes), std::vector<RotatedAxis>());
    first += part.shape.numel();
    for (int axis = 0; axis < whole.rank(); ++axis) {
      if (!Rotates(o, part.shape, axis)) continue;
      int64_t& end = ends[static_cast<size_t>(axis)];
      part.axes.push_back({axis, sizes[static_cast<size_t>(axis)], end});
      end += part.shape[axis] * part.shape[axis];
    }
  }
  return parts;
}

// The tensor as [size of the axis, all others], and back.
Tensor Unfolded(const Tensor& x, const Shape& shape, int axis) {
  int64_t before = 1;
  for (int i = 0; i < axis; ++i) before *= shape[i];
  const int64_t size = shape[axis], after = shape.numel() / (before * size);
  return x.View({before, size, after}).Transpose(0, 1).Contiguous().View({size, before * after});
}
Tensor Folded(const Tensor& matrix, const Shape& shape, int axis) {
  int64_t before = 1;
  for (int i = 0; i < axis; ++i) before *= shape[i];
  const int64_t size = shape[axis], after = shape.numel() / (before * size);
  return matrix.View({size, before, after}).Transpose(0, 1).Contiguous().View({shape.numel()});
}

// Multiplies the axis by q^T, or by q.
Tensor Turned(const Tensor& x, const RotatedPart& part, const RotatedAxis& axis, const Tensor& q,
              bool back) {
  const Tensor matrix = Unfolded(x, part.shape, axis.axis);
  return Folded(ops::MatMul(q, matrix, {.a_trans = !back}), part.shape, axis.axis);
}

}  // namespace

std::vector<OptionField<SoapOptions>> SoapOptions::Fields() {
  using O = SoapOptions;
  using enum OptionCheck;
  return JoinFields<O>(
      {{{"lr", &O::lr, kAtLeastZero, "learning rate"},
        {"betas", &O::betas, kDecay, "decay rates of the moments"},
        {"shampoo_beta", &O::shampoo_beta, kFinite, "of the statistics; negative: betas[1]"},
        {"eps", &O::eps, kAtLeastZero, "added to the root of the second moment"},
        {"weight_decay", &O::weight_decay, kAtLeastZero, "decoupled, after the update"},
        {"precondition_frequency", &O::precondition_frequency, kAtLeastOne,
         "updates between new bases"},
        {"max_precond_dim", &O::max_precond_dim, kAtLeastOne, "larger dims get no basis"},
        {"one_sided", &O::one_sided, {}, "only the smallest dim of a tensor gets a basis"},
        {"precondition_1d", &O::precondition_1d, {}, "vectors get a basis, too"},
        {"normalize_grads", &O::normalize_grads, {}, "divides an update by its rms"},
        {"correct_bias", &O::correct_bias, {}, "corrects the moments' start at zero"}},
       BesideFields<O>()});
}

void SoapOptions::Check(OptionProblems& problems) const {
  if (shampoo_beta >= 1) {
    problems.Add(internal::Concat("shampoo_beta is ", shampoo_beta, ", must be below 1"));
  }
}

std::string SoapRule::Effect(int count) const {
  return internal::Concat("rotates the moments of ", count, " tensors");
}

int64_t SoapRule::Work(const ParamView& view, const SoapOptions& options) const {
  int64_t work = options.normalize_grads ? view.layout().logical_shape().numel() : 0;
  for (const RotatedPart& part : PartsOf(view, options)) {
    for (const RotatedAxis& axis : part.axes) work += part.shape.numel() * axis.size;
  }
  return work;
}

void SoapRule::MatrixStates(const ParamView& view, const SoapOptions& options,
                            std::vector<StateSpec>& specs) const {
  if (Work(view, options) == 0) {
    specs = {{kFirst}, {kSecond}};
    return;
  }
  if (view.sharded() && !view.owned()) return;
  const Shape& shape = view.layout().logical_shape();
  specs = {{kFirst, StateKind::kLowRank, shape}, {kSecond, StateKind::kLowRank, shape}};
  std::array<int64_t, Shape::kMaxRank> ends{};
  for (const RotatedPart& part : PartsOf(view, options)) {
    for (const RotatedAxis& axis : part.axes) {
      ends[static_cast<size_t>(axis.axis)] = axis.begin + axis.size * axis.size;
    }
  }
  for (size_t axis = 0; axis < ends.size(); ++axis) {
    if (ends[axis] == 0) continue;
    specs.push_back({kGrams[axis], StateKind::kLowRank, {ends[axis]}});
    specs.push_back({kBases[axis], StateKind::kLowRank, {ends[axis]}});
  }
}

Tensor SoapRule::Gathered(const ActiveParam& param, const SoapOptions& /*options*/,
                          double grad_scale) const {
  const Tensor grad = Flat(param.grad, param.view->layout().local_numel());
  return ops::Scale(grad, grad_scale, param.view->compute_dtype());
}

int64_t SoapRule::NumComputed(const ParamView& view, const SoapOptions& /*options*/) const {
  return view.layout().logical_shape().numel();
}

void SoapRule::Compute(std::span<const Job> jobs) {
  for (const Job& job : jobs) ComputeOne(job);
}

void SoapRule::ComputeOne(const Job& job) {
  const ParamView& view = job.view;
  const SoapOptions& o = job.options;
  const int64_t earlier = job.earlier;
  const Tensor &whole = job.whole, &to = job.to;
  const autograd::NoGradGuard no_grad;
  // Of a shard this is a statistic, and the step may still fail.
  std::map<std::string, Tensor> states;
  for (const NamedState& state : view.states()) {
    const Tensor flat = state.value.View({state.value.numel()});
    states[state.name] = view.sharded() ? flat.Clone(MemoryCategory::kWorkspace) : flat;
  }
  const double b = o.shampoo_beta < 0 ? o.betas[1] : o.shampoo_beta;
  const auto t = static_cast<double>(earlier);
  const double correction =
      o.correct_bias ? std::sqrt(1 - std::pow(o.betas[1], t)) / (1 - std::pow(o.betas[0], t)) : 1;
  double squares = 0;  // of U
  for (const RotatedPart& part : PartsOf(view, o)) {
    const Tensor g = part.Of(whole);
    const auto gram = [&](const RotatedAxis& axis) {
      return axis.Of(states.at(kGrams[static_cast<size_t>(axis.axis)]));
    };
    const auto basis = [&](const RotatedAxis& axis) {
      return axis.Of(states.at(kBases[static_cast<size_t>(axis.axis)]));
    };
    const auto turn = [&](Tensor x, bool back) {
      for (const RotatedAxis& axis : part.axes) x = Turned(x, part, axis, basis(axis), back);
      return x;
    };
    const Tensor m = part.Of(states.at(kFirst)), v = part.Of(states.at(kSecond));
    if (earlier > 0) {
      const Tensor rotated = turn(g, /*back=*/false);
      ops::Accumulate(m, rotated, 1 - o.betas[0], o.betas[0]);
      ops::Accumulate(v, autograd::Square(rotated), 1 - o.betas[1], o.betas[1]);
      const Tensor divisor =
          autograd::Add(autograd::Sqrt(v), Tensor::Full(v.shape(), v.dtype(), o.eps, v.context()));
      const Tensor update = turn(autograd::Div(m, divisor), /*back=*/true);
      part.Of(to).CopyFrom(ops::Scale(update, correction));
      if (o.normalize_grads) squares += autograd::Sum(autograd::Square(update)).Item();
    }
    const bool refreshes = earlier > 0 && earlier % o.precondition_frequency == 0;
    // As in the authors' code in every step: bases from elsewhere may be orthonormal to f32 only.
    if (earlier > 0) m.CopyFrom(turn(m, /*back=*/true));
    for (const RotatedAxis& axis : part.axes) {
      const Tensor unfolded = Unfolded(g, part.shape, axis.axis);
      const Tensor average = gram(axis);
      ops::Accumulate(average, ops::MatMul(unfolded, unfolded, {.b_trans = true}), 1 - b, b);
      if (earlier == 0) {
        const Tensor wide = unfolded.To(DType::kF64, MemoryCategory::kWorkspace);
        basis(axis).CopyFrom(EigenBasis(ops::MatMul(wide, wide, {.b_trans = true})));
      } else if (refreshes) {
        const auto [q, order] = Refreshed(average, basis(axis));
        basis(axis).CopyFrom(q);
        v.CopyFrom(Turned(v, part, axis, order, /*back=*/false));
      }
    }
    if (earlier > 0) m.CopyFrom(turn(m, /*back=*/false));
  }
  if (o.normalize_grads && earlier > 0) {
    const double rms = std::sqrt(squares / static_cast<double>(to.numel()));
    to.CopyFrom(ops::Scale(to, 1 / (1e-30 + rms)));
  }
  if (view.sharded()) moved_[&view] = std::move(states);
}

void SoapRule::UpdateMatrix(const ActiveParam& param, const SoapOptions& o, double grad_scale,
                            const Tensor& computed) {
  ParamView& view = *param.view;
  const int64_t earlier = view.step() - 1;
  if (const auto moved = moved_.find(&view); moved != moved_.end()) {
    for (const auto& [name, value] : moved->second) {
      const Tensor state = view.state(name);
      state.View({state.numel()}).CopyFrom(value);
    }
    moved_.erase(moved);
  }
  if (earlier == 0 || view.layout().local_numel() == 0) return;
  const double decay = o.lr * o.weight_decay;
  if (computed.defined()) {
    return ApplyUpdate(param, OwnOf(view, computed), o.lr, decay, DecayKind::kAfter);
  }
  const AdamSettings settings = AdamWSettings({.lr = o.lr,
                                               .betas = o.betas,
                                               .eps = o.eps,
                                               .weight_decay = o.weight_decay,
                                               .correct_bias = o.correct_bias,
                                               .hf_style = true},
                                              earlier);
  RunElements(&OptimKernels::adam, {&param, 1}, GradFactor(grad_scale), settings,
              {kFirst, kSecond});
}

template class MatrixRule<SoapOptions>;
template class OptimizerOf<SoapRule>;

}  // namespace apogee::optim
