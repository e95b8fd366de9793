// SPDX-License-Identifier: Apache-2.0

// Prints the inputs, results and gradients of all ops in the dtype of the first argument, as JSON.
// For scripts/check_ops.py.
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "apogee/autograd/engine.h"
#include "apogee/autograd/parameter.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tests/autograd/op_table.h"

namespace apogee::testing {
namespace {

nlohmann::json JsonOf(const Tensor& tensor) {
  return {
      {"shape", std::vector<int64_t>(tensor.shape().dims().begin(), tensor.shape().dims().end())},
      {"values", tensor.ToVector<double>()}};
}

// The weights of the result's elements in the sum that backward starts from.
Tensor WeightsOf(const Tensor& y) {
  std::vector<double> weights(static_cast<size_t>(y.numel()));
  for (size_t i = 0; i < weights.size(); ++i) {
    weights[i] = 0.5 + static_cast<double>(i % 5) / 4 - static_cast<double>(i % 3);
  }
  return Tensor::FromVector(weights, y.shape(), y.context()).To(y.dtype());
}

nlohmann::json Run(const OpCase& op, DType dtype) {
  std::vector<std::unique_ptr<autograd::Parameter>> leaves;
  Tensors values;
  nlohmann::json json{{"name", op.name}, {"torch", op.torch}};
  for (const Tensor& input : op.Inputs(CpuContext(), dtype)) {
    json["inputs"].push_back(JsonOf(input));
    leaves.push_back(std::make_unique<autograd::Parameter>("x", input));
    values.push_back(leaves.back()->value());
  }
  const Tensor y = op.fn(values);
  json["result"] = JsonOf(y.Detach());
  const Tensor weights = WeightsOf(y);
  json["weights"] = weights.ToVector<double>();
  autograd::Backward(y, {.grad = weights});
  for (const auto& leaf : leaves) json["gradients"].push_back(JsonOf(leaf->grad()));
  return json;
}

}  // namespace
}  // namespace apogee::testing

int main(int argc, char** argv) {
  using namespace apogee;
  const DType dtype = DTypeFromName(argc > 1 ? argv[1] : "f64");
  nlohmann::json all = nlohmann::json::array();
  for (const testing::OpCase& op : testing::OpTable()) all.push_back(testing::Run(op, dtype));
  std::cout << all.dump(1) << "\n";
  return 0;
}
