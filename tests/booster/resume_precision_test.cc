// SPDX-License-Identifier: Apache-2.0

// A checkpoint of a run in another precision: one line says why nothing in it fits.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/booster/booster.h"
#include "apogee/nn/models/mlp.h"
#include "apogee/optim/adam/adam.h"
#include "apogee/plugins/single_rank.h"
#include "apogee/tests/support/files/temp_dir.h"
#include "apogee/tests/support/test_context.h"

namespace apogee {
namespace resume_precision_test {

using ::testing::HasSubstr;

struct Rig {
  explicit Rig(Precision precision) : plugin({.precision = precision}), booster(plugin) {
    model.Initialize(TestContext(), {.seed = 1});
    optimizer = std::make_unique<optim::AdamW>(model.Parameters(), optim::AdamWOptions{});
    std::ignore = booster.boost(model, *optimizer);
  }
  void Step() {
    const autograd::ParameterPtr weight = model.Parameters()[0];
    const Tensor x = Tensor::Full({2, 4}, weight->dtype(), 0.5, weight->context());
    booster.backward(autograd::Mean(model(x)), *optimizer);
    optimizer->step();
  }
  nn::Mlp model{{.sizes = {4, 5, 3}}};
  SingleRankPlugin plugin;
  Booster booster;
  std::unique_ptr<optim::AdamW> optimizer;
};

TEST(ResumePrecisionTest, TheCauseComesFirst) {
  const ::apogee::testing::TempDir dir;
  Rig saved(Precision::kBf16);
  saved.Step();
  ASSERT_TRUE(saved.booster.save_training_state(dir / "run", {.step = 1}).ok());
  Rig other(Precision::kF32);
  const absl::Status status = other.booster.resume(dir / "run").status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(Message(status),
              HasSubstr("does not fit this run:\n  precision: 4 weights were saved as bf16, this "
                        "run has them as f32\n"));
  Rig same(Precision::kBf16);
  EXPECT_TRUE(same.booster.resume(dir / "run").ok());
}

}  // namespace resume_precision_test
}  // namespace apogee
