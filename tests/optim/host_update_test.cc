// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/host_update.h"

#include <gtest/gtest.h>

#include "apogee/optim/momentum/sgd.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tests/optim/optim_fixture.h"
#include "apogee/tests/support/heavy_ball.h"

namespace apogee::optim {
namespace host_update_test {

// Weights after three steps with gradients that are twice too large, as under a loss scale.
std::vector<double> Train(Optimizer& optimizer, const ParameterPtr& w) {
  optimizer.set_step_options({.loss_scale = 2});
  for (uint64_t step = 0; step < 3; ++step) {
    w->set_grad(RandomTensor({5}, w->dtype(), CpuContext(), 7 + step, 2));
    optimizer.step();
  }
  return Values(optimizer.views()[0].master());
}

// SGD with momentum is the same update, in a kernel.
TEST(HostUpdateTest, EveryDTypeHasTheUpdateOfAKernel) {
  const std::pair<DType, double> cases[] = {
      {DType::kF64, 1e-14}, {DType::kF32, 1e-6}, {DType::kBF16, 1e-6}, {DType::kF16, 1e-6}};
  for (const auto& [dtype, bound] : cases) {
    const ParameterPtr ours = RandomParam("w", {5}, dtype, CpuContext(), 1);
    const ParameterPtr theirs = RandomParam("w", {5}, dtype, CpuContext(), 1);
    const std::vector<double> start = Values(ours->value());
    HeavyBall own({{.params = {ours}, .options = {.lr = 0.1, .momentum = 0.9}}});
    Sgd sgd({theirs}, {.lr = 0.1, .momentum = 0.9});
    EXPECT_LE(UpdateError(Train(own, ours), Train(sgd, theirs), start), bound) << DTypeName(dtype);
    if (dtype == DType::kBF16 || dtype == DType::kF16) {
      EXPECT_EQ(Values(ours->value()), Values(theirs->value())) << DTypeName(dtype);
    }
  }
}

}  // namespace host_update_test
}  // namespace apogee::optim
