// SPDX-License-Identifier: Apache-2.0

// Weights of 16 bits: fp32 masters, rounding in the update's own pass, gradients of every dtype.
#include <gtest/gtest.h>

#include "apogee/optim/adam/adam.h"
#include "apogee/optim/momentum/sgd.h"
#include "apogee/tests/optim/optim_fixture.h"

namespace apogee::optim {
namespace precision_test {

constexpr DType kFloats[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kF64};

// The master of a 16 bit run equals, bit for bit, the weights of the f32 run that starts from the
// same values and gets the same gradients; the working weights are the master rounded.
TEST(PrecisionTest, MasterFollowsTheF32Run) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (const DType grad_dtype : kFloats) {
      const ContextPtr context = TestContext({.num_threads = 2});
      const Shape shape{411, 123};
      const ParameterPtr low = RandomParam("p", shape, dtype, context, 1);
      const auto full = std::make_shared<Parameter>("p", low->data().To(DType::kF32));
      AdamW low_optimizer({low}, {.lr = 0.01, .weight_decay = 0.1});
      AdamW full_optimizer({full}, {.lr = 0.01, .weight_decay = 0.1});
      for (uint64_t step = 0; step < 5; ++step) {
        const Tensor grad = RandomTensor(shape, grad_dtype, context, 10 + step);
        low->set_grad(grad);
        full->set_grad(grad.To(DType::kF32));
        low_optimizer.step();
        full_optimizer.step();
      }
      const Tensor& master = low_optimizer.views()[0].own_master();
      EXPECT_EQ(Values(master), Values(full->data())) << DTypeName(dtype) << DTypeName(grad_dtype);
      EXPECT_EQ(Values(low->data()), Values(master.To(dtype)));
      EXPECT_NE(Values(low->data()), Values(master));
    }
  }
}

TEST(PrecisionTest, GradientsOfEveryDTypeIntoF64) {
  const ContextPtr context = TestContext();
  for (const DType grad_dtype : kFloats) {
    const ParameterPtr p = RandomParam("p", {33, 17}, DType::kF64, context, 1);
    const std::vector<double> before = Values(p->data());
    const Tensor grad = RandomTensor({33, 17}, grad_dtype, context, 2);
    p->set_grad(grad);
    Sgd optimizer({p}, {.lr = 0.5});
    optimizer.step();
    const std::vector<double> after = Values(p->data()), g = Values(grad);
    for (size_t i = 0; i < g.size(); ++i) EXPECT_EQ(after[i], before[i] - 0.5 * g[i]);
  }
}

// Updates below the resolution of the working weights add up in the master.
TEST(PrecisionTest, SmallUpdatesAreNotLost) {
  const ContextPtr context = TestContext();
  const auto p = std::make_shared<Parameter>("p", Tensor::Full({4}, DType::kBF16, 1.0, context));
  Sgd optimizer({p}, {.lr = 1e-4});
  for (int step = 0; step < 100; ++step) {
    p->set_grad(Tensor::Full({4}, DType::kBF16, 1.0, context));
    optimizer.step();
  }
  EXPECT_NEAR(Values(optimizer.views()[0].own_master())[0], 0.99, 5e-6);  // 100 roundings
  EXPECT_NEAR(Values(p->data())[0], 0.99, 4e-3);
  EXPECT_NE(Values(p->data())[0], 1.0);
}

TEST(PrecisionTest, BytesPerParameter) {
  struct Row {
    DType dtype;
    int64_t bytes;
  };
  for (const auto& [dtype, bytes] :
       {Row{DType::kF32, 8}, Row{DType::kBF16, 12}, Row{DType::kF64, 16}}) {
    const ContextPtr context = TestContext();
    const ParameterPtr p = RandomParam("p", {64, 32}, dtype, context, 1);
    AdamW optimizer({p}, {});
    EXPECT_EQ(context->ledger().live_bytes(MemoryCategory::kOptimizerState), 0);
    p->set_grad(RandomTensor({64, 32}, dtype, context, 2));
    optimizer.step();
    EXPECT_EQ(context->ledger().live_bytes(MemoryCategory::kOptimizerState), 64 * 32 * bytes);
  }
}

TEST(PrecisionTest, MastersCanBeHandedOverAndRefreshed) {
  const ContextPtr context = TestContext();
  const ParameterPtr p = RandomParam("p", {9}, DType::kF32, context, 1);
  AdamW optimizer({p}, {.lr = 0});
  const std::vector<double> exact = Values(p->data());
  const Tensor full = p->data();
  p->set_value(full.To(DType::kBF16));  // a plugin casts the model
  optimizer.views()[0].set_master(full);
  p->set_grad(RandomTensor({9}, DType::kBF16, context, 2));
  optimizer.step();
  EXPECT_EQ(Values(optimizer.views()[0].own_master()), exact);

  p->data().Fill(2);  // weights were loaded
  optimizer.RefreshMasters();
  optimizer.step();
  EXPECT_EQ(Values(p->data()), std::vector<double>(9, 2.0));
}

}  // namespace precision_test
}  // namespace apogee::optim
