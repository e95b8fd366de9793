// SPDX-License-Identifier: Apache-2.0

// For tests of optimizers of matrices: matrices by plain loops, and a run of one parameter.
//
//   MatrixRun<Muon> run({6, 4}, {.lr = 0.1});
//   run.Step(run.Gradient(0));
#ifndef APOGEE_TESTS_OPTIM_ORTHOGONAL_MATRIX_RUN_H_
#define APOGEE_TESTS_OPTIM_ORTHOGONAL_MATRIX_RUN_H_

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "apogee/optim/optimizer.h"
#include "apogee/tests/support/buffer.h"
#include "apogee/tests/support/grad_check.h"

namespace apogee::testing::matrices {

using autograd::Parameter;
using autograd::ParameterPtr;
using Values = std::vector<double>;

// Row-major matrices by plain loops.
struct Matrix {
  int64_t rows, cols;
  Values x;
  double& at(int64_t r, int64_t c) { return x[static_cast<size_t>(r * cols + c)]; }
  double at(int64_t r, int64_t c) const { return x[static_cast<size_t>(r * cols + c)]; }
};

inline Matrix Product(const Matrix& a, const Matrix& b) {
  Matrix c{a.rows, b.cols, Values(static_cast<size_t>(a.rows * b.cols), 0)};
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t k = 0; k < a.cols; ++k) {
      for (int64_t j = 0; j < b.cols; ++j) c.at(i, j) += a.at(i, k) * b.at(k, j);
    }
  }
  return c;
}

inline Matrix Transposed(const Matrix& a) {
  Matrix t{a.cols, a.rows, Values(a.x.size())};
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t j = 0; j < a.cols; ++j) t.at(j, i) = a.at(i, j);
  }
  return t;
}

// One parameter under an optimizer, with random gradients.
template <typename Opt>
struct MatrixRun {
  MatrixRun(const Shape& shape, const typename Opt::Options& options, const std::string& name = "w",
            DType dtype = DType::kF64)
      : context(TestContext()),
        parameter(std::make_shared<Parameter>(name, RandomTensor(shape, name, context).To(dtype))),
        optimizer(std::vector<ParameterPtr>{parameter}, options) {}
  Tensor Gradient(int step) const {
    return RandomTensor(parameter->shape(), internal::Concat("g", step), context);
  }
  void Step(const Tensor& gradient) {
    optimizer.zero_grad();
    parameter->AccumulateGrad(gradient.To(parameter->dtype()));
    optimizer.step();
  }
  Values values() const { return parameter->data().ToVector<double>(); }

  ContextPtr context;
  ParameterPtr parameter;
  Opt optimizer;
};

// A skipped step leaves weights and states as they were: the run goes on as one without it.
template <typename Opt>
void CheckOverflow(const typename Opt::Options& options) {
  MatrixRun<Opt> run({5, 4}, options), other({5, 4}, options);
  for (int step = 0; step < 5; ++step) {
    run.Step(run.Gradient(step));
    other.Step(other.Gradient(step));
    if (step != 2) continue;
    const Tensor bad = run.Gradient(9);
    bad.Slice(0, 2, 1).Fill(std::numeric_limits<double>::infinity());
    run.Step(bad);
    EXPECT_TRUE(run.optimizer.last_step().skip);
  }
  EXPECT_EQ(run.values(), other.values());
}

}  // namespace apogee::testing::matrices

#endif  // APOGEE_TESTS_OPTIM_ORTHOGONAL_MATRIX_RUN_H_
