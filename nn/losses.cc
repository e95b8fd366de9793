// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/losses.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/core/error.h"
#include "apogee/tensor/ops/elementwise.h"

namespace apogee::nn {
namespace {

using autograd::Clamp, autograd::Log, autograd::Mean, autograd::Mul, autograd::Sub, autograd::Sum;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Of 16-bit floats, the sums and the loss are f32.
Tensor Wide(const Tensor& x) {
  return x.dtype() == DType::kF64 ? x : autograd::Cast(x, DType::kF32);
}

// The targets outside of any graph.
Tensor Targets(const char* loss, const Tensor& output, const Tensor& targets) {
  APOGEE_CHECK(output.defined() && targets.defined(), loss, ": ",
               output.defined() ? "the targets are" : "the output is", " undefined");
  APOGEE_CHECK(output.shape() == targets.shape(), loss, ": output and targets need one shape, got ",
               output.shape(), " and ", targets.shape());
  APOGEE_CHECK(output.dtype() == targets.dtype(), loss, ": output and targets need one dtype, got ",
               DTypeName(output.dtype()), " and ", DTypeName(targets.dtype()),
               "; cast one of them, with autograd::Cast(x, dtype)");
  return Wide(targets.Detach());
}

}  // namespace

int64_t CountTargets(const Tensor& targets, int64_t ignore_index) {
  const std::vector<int64_t> values = targets.ToVector<int64_t>();
  return static_cast<int64_t>(values.size()) - std::ranges::count(values, ignore_index);
}

Tensor MseLoss::operator()(const Tensor& output, const Tensor& targets) const {
  const Tensor t = Targets("mse_loss", output, targets);
  return Mean(autograd::Square(Sub(Wide(output), t)));
}

Tensor L1Loss::operator()(const Tensor& output, const Tensor& targets) const {
  const Tensor t = Targets("l1_loss", output, targets);
  return Mean(autograd::Abs(Sub(Wide(output), t)));
}

// -t log(sigmoid(x)) - (1 - t) log(1 - sigmoid(x)) = softplus(x) - t x.
Tensor BceWithLogitsLoss::operator()(const Tensor& logits_in, const Tensor& targets) const {
  const Tensor t = Targets("bce_with_logits_loss", logits_in, targets);
  const Tensor logits = Wide(logits_in);
  return Mean(Sub(autograd::Softplus(logits), Mul(logits, t)));
}

Tensor KlDivLoss::operator()(const Tensor& log_probs, const Tensor& targets) const {
  const Tensor t = Targets("kl_div_loss", log_probs, targets);
  APOGEE_CHECK(t.rank() > 0, "kl_div_loss: needs a dim of probabilities, got a scalar");
  // 0 log(0) counts as 0.
  const Tensor none = ops::Equal(t, Tensor::Full({}, t.dtype(), 0, t.context()));
  const Tensor log_t = Log(autograd::MaskedFill(t, none, 1));
  return Mean(Sum(Mul(t, Sub(log_t, Wide(log_probs))), {-1}));
}

Tensor CosineLoss::operator()(const Tensor& output_in, const Tensor& targets) const {
  const Tensor t = Targets("cosine_loss", output_in, targets);
  const Tensor output = Wide(output_in);
  APOGEE_CHECK(t.rank() > 0, "cosine_loss: needs a dim of features, got a scalar");
  constexpr double kLeastNorms = 1e-16;  // |x|^2 |t|^2
  const Tensor dot = Sum(Mul(output, t), {-1});
  const Tensor norms = Mul(Sum(autograd::Square(output), {-1}), Sum(autograd::Square(t), {-1}));
  const Tensor cosines = Mul(dot, autograd::Rsqrt(Clamp(norms, kLeastNorms, kInfinity)));
  const Tensor one = Tensor::Full({}, cosines.dtype(), 1, cosines.context());
  return Mean(Sub(one, cosines));
}

}  // namespace apogee::nn
