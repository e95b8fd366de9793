// SPDX-License-Identifier: Apache-2.0

// Checks gradients against central finite differences in f64.
//
//   ExpectGradients({x, w}, [](const std::vector<Tensor>& in) {
//     return autograd::Linear(in[0], in[1], {});
//   });
//
// The output is contracted with a fixed random tensor, so every element of the Jacobian is checked.
// Inputs must be f64 and small (two evaluations per element).
#ifndef APOGEE_TESTS_SUPPORT_GRAD_CHECK_H_
#define APOGEE_TESTS_SUPPORT_GRAD_CHECK_H_

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <vector>

#include "apogee/autograd/engine.h"
#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/grad_mode.h"
#include "apogee/autograd/parameter.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tensor/ops/nn.h"

namespace apogee::testing {

inline Tensor RandomTensor(const Shape& shape, const std::string& name, const ContextPtr& context,
                           double std = 1.0, DType dtype = DType::kF64) {
  const Tensor x = Tensor::Empty(shape, DType::kF64, context);
  ops::FillNormal(x, 0, std, MakeKey(17, name));
  return x.To(dtype);
}

using GradFn = std::function<Tensor(const std::vector<Tensor>&)>;

inline void ExpectGradients(const std::vector<Tensor>& inputs, const GradFn& fn,
                            double tolerance = 2e-7) {
  std::vector<std::unique_ptr<autograd::Parameter>> leaves;
  std::vector<Tensor> values;
  for (size_t i = 0; i < inputs.size(); ++i) {
    leaves.push_back(
        std::make_unique<autograd::Parameter>("input" + std::to_string(i), inputs[i].Clone()));
    values.push_back(leaves.back()->value());
  }
  const Tensor y = fn(values);
  const Tensor weights = RandomTensor(y.shape(), "weights", y.context());
  const std::vector<double> w = weights.ToVector<double>();
  autograd::Backward(y, {.grad = weights});

  auto loss = [&] {
    autograd::NoGradGuard no_grad;
    std::vector<Tensor> detached;
    for (const auto& leaf : leaves) detached.push_back(leaf->data());
    const std::vector<double> out = fn(detached).ToVector<double>();
    double sum = 0;
    for (size_t i = 0; i < out.size(); ++i) sum += out[i] * w[i];
    return sum;
  };
  for (size_t k = 0; k < leaves.size(); ++k) {
    ASSERT_TRUE(leaves[k]->has_grad()) << "input " << k << " got no gradient";
    const std::vector<double> grad = leaves[k]->grad().ToVector<double>();
    std::vector<double> values = leaves[k]->data().ToVector<double>();
    const auto set = [&, k](size_t i, double value) {
      values[i] = value;
      leaves[k]->data().SetValues(values);
    };
    double scale = 1;
    for (double g : grad) scale = std::max(scale, std::abs(g));
    for (size_t i = 0; i < grad.size(); ++i) {
      const double original = values[i];
      const double h = 1e-5 * std::max(1.0, std::abs(original));
      set(i, original + h);
      const double up = loss();
      set(i, original - h);
      const double down = loss();
      set(i, original);
      ASSERT_NEAR(grad[i], (up - down) / (2 * h), tolerance * scale)
          << "input " << k << ", element " << i;
    }
  }
}

}  // namespace apogee::testing

#endif  // APOGEE_TESTS_SUPPORT_GRAD_CHECK_H_
