// SPDX-License-Identifier: Apache-2.0

// autograd::GradCheck as an assertion, and random inputs for it.
//
//   ExpectGradients({x, w}, [](const std::vector<Tensor>& in) {
//     return autograd::Linear(in[0], in[1], {});
//   });
#ifndef APOGEE_TESTS_SUPPORT_GRAD_CHECK_H_
#define APOGEE_TESTS_SUPPORT_GRAD_CHECK_H_

#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "apogee/autograd/function.h"
#include "apogee/core/rng.h"
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
  const autograd::GradCheckResult result =
      autograd::GradCheck(fn, inputs, {.tolerance = tolerance});
  ASSERT_TRUE(result.ok()) << result.ToString();
}

}  // namespace apogee::testing

#endif  // APOGEE_TESTS_SUPPORT_GRAD_CHECK_H_
