// SPDX-License-Identifier: Apache-2.0

#include "apogee/bench/gpu/optimizer_rows.h"

#include "apogee/core/status.h"
#include "apogee/optim/registry.h"

namespace apogee::bench {
namespace {

// The update of each element reads gradient and weight and writes the weight. In bf16 it reads two
// bytes less and writes the working weight of two bytes.
constexpr double Update(int states) { return 12 + 8 * states; }

}  // namespace

double OptimizerRow::bytes(DType dtype) const {
  double sum = max_norm > 0 ? static_cast<double>(DTypeSize(dtype)) : 0;
  for (const OptimizerKernel& kernel : kernels) sum += kernel.bytes(dtype);
  return sum;
}

const std::vector<OptimizerRow>& OptimizerRows() {
  static const std::vector<OptimizerRow> kRows = {
      {"sgd", "sgd", {}, {{"sgd", Update(0), Update(0)}}},
      {"sgd, momentum", "sgd", {{"momentum", "0.9"}}, {{"sgd_momentum", Update(1), Update(1)}}},
      {"adamw", "adamw", {}, {{"adam", Update(2), Update(2)}}},
      {"adamw, clipped", "adamw", {}, {{"adam", Update(2), Update(2)}}, /*max_norm=*/1},
      {"lion", "lion", {}, {{"lion", Update(1), Update(1)}}},
      // Weights and gradients first, for the trust ratio.
      {"lars", "lars", {}, {{"lars_sums", 8, 6}, {"lars", Update(1), Update(1)}}},
      {"lamb", "lamb", {}, {{"lamb_sums", 16, 14}, {"lamb", Update(2), Update(2)}}},
      // Gradients and weights, gradients, then the update, all with factored second moments.
      {"adafactor",
       "adafactor",
       {},
       {{"adafactor_square_sums", 8, 6},
        {"factor_moments", 0, 0},
        {"adafactor_update_sum", 4, 2},
        {"adafactor", Update(0), Update(0)}}},
      // The residual is of the gradient and the first moment.
      {"came",
       "came",
       {},
       {{"adafactor_square_sums", 4, 2},
        {"factor_moments", 0, 0},
        {"adafactor_update_sum", 4, 2},
        {"came_residual_sums", 8, 6},
        {"came", Update(1), Update(1)}}},
      {"scaled_adam",
       "scaled_adam",
       {},
       {{"dots", 8, 6}, {"scaled_adam_sizes", 0, 0}, {"scaled_adam", Update(2), Update(2)}}},
      // Both moments have one byte.
      {"adamw8bit", "adamw8bit", {}, {{"adam8", 16, 16}}},
  };
  return kRows;
}

std::unique_ptr<optim::Optimizer> MakeOptimizer(const OptimizerRow& row,
                                                const std::vector<autograd::ParameterPtr>& params) {
  auto optimizer = ValueOrThrow(optim::MakeOptimizer(row.name, params, row.options));
  optim::StepOptions step;
  step.max_norm = row.max_norm;
  step.nonfinite = optim::NonFinitePolicy::kProceed;
  optimizer->set_step_options(step);
  return optimizer;
}

std::vector<autograd::ParameterPtr> MakeParameters(int64_t budget, DType dtype,
                                                   const ContextPtr& context) {
  const int64_t width = budget >= (1 << 26) ? 2048 : 64;
  std::vector<autograd::ParameterPtr> params;
  int64_t total = 0;
  const auto add = [&](const Shape& shape) {
    const auto count = params.size();
    params.push_back(std::make_shared<autograd::Parameter>(
        "p" + std::to_string(count), Tensor::Full(shape, dtype, 0.5, context)));
    params.back()->set_grad_dtype(dtype);
    params.back()->set_grad(Tensor::Full(shape, dtype, 0.01, context));
    total += shape.numel();
  };
  while (total + 12 * width * width <= budget || params.empty()) {
    for (const int64_t rows : {3 * width, width, 4 * width}) {
      add({rows, width});
      add({rows});
    }
    add({width, 4 * width});
    for (int k = 0; k < 5; ++k) add({width});
  }
  return params;
}

int64_t Numel(const std::vector<autograd::ParameterPtr>& params) {
  int64_t n = 0;
  for (const auto& parameter : params) n += parameter->data().numel();
  return n;
}

}  // namespace apogee::bench
