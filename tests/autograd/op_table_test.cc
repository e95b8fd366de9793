// SPDX-License-Identifier: Apache-2.0

// Every op of op_table.h: gradients against central differences, values and gradients against
// PyTorch's (tests/autograd/op_values.json, written by scripts/check_ops.py), and lower precisions
// against f64.
#include "apogee/tests/autograd/op_table.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "apogee/autograd/engine.h"
#include "apogee/autograd/parameter.h"
#include "apogee/tests/support/grad_check.h"
#include "apogee/tests/support/test_context.h"
#include "apogee/tests/support/tolerance.h"

namespace apogee {
namespace op_table_test {

using testing::OpCase;
using testing::OpTable;
using testing::Tensors;
using Values = std::vector<double>;

// The result, then one gradient per input.
std::vector<Values> RunOp(const OpCase& op, const Tensors& inputs, const Values* weights) {
  std::vector<std::unique_ptr<autograd::Parameter>> leaves;
  Tensors values;
  for (const Tensor& input : inputs) {
    leaves.push_back(std::make_unique<autograd::Parameter>("x", input.Clone()));
    values.push_back(leaves.back()->value());
  }
  const Tensor y = op.fn(values);
  std::vector<Values> got{y.Detach().ToVector<double>()};
  Values ones(static_cast<size_t>(y.numel()), 1);
  const Tensor grad =
      Tensor::FromVector(weights != nullptr ? *weights : ones, y.shape(), y.context());
  autograd::Backward(y, {.grad = grad.To(y.dtype())});
  for (const auto& leaf : leaves) got.push_back(leaf->grad().ToVector<double>());
  return got;
}

void ExpectNear(const Values& got, const Values& want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  double scale = 1;
  for (const double value : want) scale = std::max(scale, std::abs(value));
  for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], tolerance * scale) << i;
}

TEST(OpTableTest, NamesAreUnique) {
  std::map<std::string, int> count;
  for (const OpCase& op : OpTable()) EXPECT_EQ(++count[op.name], 1) << op.name;
  EXPECT_GT(count.size(), 150u);
}

TEST(OpTableTest, GradientsAgreeWithDifferences) {
  const ContextPtr context = TestContext({.num_threads = 2});
  for (const OpCase& op : OpTable()) {
    SCOPED_TRACE(op.name);
    testing::ExpectGradients(op.Inputs(context, DType::kF64), op.fn);
  }
}

TEST(OpTableTest, AgreesWithPyTorch) {
  const ContextPtr context = TestContext({.num_threads = 2});
  std::ifstream file(APOGEE_OP_VALUES);
  if (!file) GTEST_SKIP() << "no " << APOGEE_OP_VALUES << " on this machine";
  const nlohmann::json golden = nlohmann::json::parse(file);
  for (const OpCase& op : OpTable()) {
    SCOPED_TRACE(op.name);
    ASSERT_TRUE(golden.contains(op.name)) << "write the file again: scripts/check_ops.py --write";
    const nlohmann::json& want = golden[op.name];
    const Values weights = want["weights"];
    const std::vector<Values> got = RunOp(op, op.Inputs(context, DType::kF64), &weights);
    ExpectNear(got[0], want["result"], Tolerance(DType::kF64, ErrorKind::kReduction));
    for (size_t i = 1; i < got.size(); ++i) {
      ExpectNear(got[i], want["gradients"][i - 1], Tolerance(DType::kF64, ErrorKind::kReduction));
    }
  }
}

TEST(OpTableTest, LowerPrecisionsRoundOnce) {
  const ContextPtr context = TestContext({.num_threads = 2});
  for (const OpCase& op : OpTable()) {
    const std::vector<Values> want = RunOp(op, op.Inputs(context, DType::kF64), nullptr);
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      SCOPED_TRACE(op.name + " " + DTypeName(dtype));
      const std::vector<Values> got = RunOp(op, op.Inputs(context, dtype), nullptr);
      for (size_t i = 0; i < got.size(); ++i) {
        ExpectNear(got[i], want[i], Tolerance(dtype, ErrorKind::kGemm));
      }
    }
  }
}

}  // namespace op_table_test
}  // namespace apogee
