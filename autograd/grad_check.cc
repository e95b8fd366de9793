// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <cmath>
#include <memory>

#include "apogee/autograd/engine.h"
#include "apogee/autograd/function.h"
#include "apogee/autograd/grad_mode.h"
#include "apogee/autograd/parameter.h"
#include "apogee/core/rng.h"
#include "apogee/tensor/ops/nn.h"

namespace apogee::autograd {

std::string GradCheckResult::ToString() const {
  if (!failure.empty()) return failure;
  return apogee::internal::Concat("input ", input, ", element ", element, ": the gradient is ",
                                  gradient, ", the difference ", difference, " (error ", error,
                                  ", tolerance ", tolerance, ")");
}

GradCheckResult GradCheck(const std::function<Tensor(const std::vector<Tensor>&)>& fn,
                          const std::vector<Tensor>& inputs, const GradCheckOptions& options) {
  std::vector<std::unique_ptr<Parameter>> leaves;
  std::vector<Tensor> values;
  for (size_t i = 0; i < inputs.size(); ++i) {
    APOGEE_CHECK(inputs[i].defined() && inputs[i].dtype() == DType::kF64, "GradCheck: input ", i,
                 " must be f64");
    leaves.push_back(std::make_unique<Parameter>("input" + std::to_string(i), inputs[i].Clone()));
    values.push_back(leaves.back()->value());
  }
  const Tensor y = fn(values);
  const Tensor weights = Tensor::Empty(y.shape(), DType::kF64, y.context());
  ops::FillNormal(weights, 0, 1, MakeKey(17, "weights"));
  const std::vector<double> w = weights.ToVector<double>();
  Backward(y, {.grad = weights});

  const auto loss = [&] {
    const NoGradGuard no_grad;
    std::vector<Tensor> detached;
    for (const auto& leaf : leaves) detached.push_back(leaf->data());
    const std::vector<double> out = fn(detached).ToVector<double>();
    double sum = 0;
    for (size_t i = 0; i < out.size(); ++i) sum += out[i] * w[i];
    return sum;
  };
  GradCheckResult worst{.tolerance = options.tolerance};
  for (size_t k = 0; k < leaves.size(); ++k) {
    if (!leaves[k]->has_grad()) {
      worst.failure = apogee::internal::Concat("input ", k, " got no gradient");
      return worst;
    }
    const std::vector<double> grad = leaves[k]->grad().ToVector<double>();
    std::vector<double> elements = leaves[k]->data().ToVector<double>();
    const auto loss_at = [&](size_t i, double value) {
      const double original = elements[i];
      elements[i] = value;
      leaves[k]->data().SetValues(elements);
      elements[i] = original;
      return loss();
    };
    double scale = 1;
    for (const double g : grad) scale = std::max(scale, std::abs(g));
    for (size_t i = 0; i < grad.size(); ++i) {
      const double h = options.step * std::max(1.0, std::abs(elements[i]));
      const double up = loss_at(i, elements[i] + h), down = loss_at(i, elements[i] - h);
      const double difference = (up - down) / (2 * h);
      const double error = std::abs(grad[i] - difference) / scale;
      if (error <= worst.error || std::isnan(worst.error)) continue;  // NaN is the worst
      worst.input = k;
      worst.element = static_cast<int64_t>(i);
      worst.gradient = grad[i];
      worst.difference = difference;
      worst.error = error;
    }
    leaves[k]->data().SetValues(elements);
  }
  return worst;
}

}  // namespace apogee::autograd
