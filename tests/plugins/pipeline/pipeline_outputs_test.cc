// SPDX-License-Identifier: Apache-2.0

// What execute_pipeline returns: the model's outputs on the ranks of the last part, for the whole
// batch in its order, and the loss everywhere.
#include <gtest/gtest.h>

#include "apogee/booster/booster.h"
#include "apogee/nn/losses.h"
#include "apogee/optim/momentum/sgd.h"
#include "apogee/plugins/hybrid_parallel.h"
#include "apogee/tests/support/run_ranks.h"

namespace apogee {
namespace pipeline_outputs_test {

using pipeline::ScheduleKind;
using testing::RunRanks;

constexpr int64_t kSamples = 8, kDim = 5;
constexpr int kStages = 2;

data::Batch Batch(const ContextPtr& context) {
  std::vector<double> values;
  std::vector<int64_t> targets;
  for (int64_t i = 0; i < kSamples * kDim; ++i) values.push_back(0.1 * static_cast<double>(i));
  for (int64_t i = 0; i < kSamples; ++i) targets.push_back(i % kDim);
  return {Tensor::FromVector<double>(values, {kSamples, kDim}, context),
          Tensor::FromVector<int64_t>(targets, {kSamples}, context)};
}

void ExpectOutputs(comm::World& world, ScheduleKind schedule) {
  const nn::MlpConfig config{.sizes = std::vector<int64_t>(6, kDim)};
  const nn::InitOptions init{.seed = 1, .dtype = DType::kF64};
  nn::Mlp plain(config), model(config);
  plain.Initialize(world.context(), init);
  model.Initialize(world.context(), init);
  optim::Sgd optimizer(model.Parameters(), {.lr = 0.1});
  HybridParallelOptions options{.pp_size = kStages};
  options.schedule = schedule;
  options.num_microbatches = 3;  // of 3, 3 and 2 samples
  HybridParallelPlugin plugin(world, {.precision = Precision::kF64}, options);
  Booster booster(plugin);
  Boosted boosted = booster.boost(model, optimizer, {.criterion = nn::CrossEntropyLoss()});
  const data::Batch batch = Batch(world.context());
  const Tensor want = plain(batch.inputs).Detach();
  const double loss = nn::CrossEntropyLoss()(want, batch.targets).Item();
  const int last_stage = schedule == ScheduleKind::kZbv ? 0 : kStages - 1;
  for (optim::Optimizer* trains : {static_cast<optim::Optimizer*>(nullptr), &boosted.optimizer}) {
    const PipelineResult result =
        booster.execute_pipeline(batch, model, boosted.criterion, trains, {.return_outputs = true});
    EXPECT_NEAR(result.loss.Item(), loss, 1e-12);
    ASSERT_EQ(result.outputs.defined(), world.rank() == last_stage);
    if (result.outputs.defined()) {
      ASSERT_EQ(result.outputs.shape(), want.shape());
      const std::vector<double> all = want.ToVector<double>();
      for (size_t i = 0; i < all.size(); ++i) {
        EXPECT_NEAR(result.outputs.ToVector<double>()[i], all[i], 1e-12) << i;
      }
    }
    EXPECT_FALSE(
        booster.execute_pipeline(batch, model, boosted.criterion, nullptr).outputs.defined())
        << "nobody asked";
  }
  // Outputs need no criterion, nor targets.
  const PipelineResult alone = booster.execute_pipeline({batch.inputs, Tensor()}, model, nullptr,
                                                        nullptr, {.return_outputs = true});
  EXPECT_FALSE(alone.loss.defined());
  EXPECT_EQ(alone.outputs.defined(), world.rank() == last_stage);
}

TEST(PipelineOutputsTest, AreTheModels) {
  for (const ScheduleKind schedule :
       {ScheduleKind::k1F1B, ScheduleKind::kInterleaved, ScheduleKind::kZbv}) {
    RunRanks(kStages, [&](comm::World& world) { ExpectOutputs(world, schedule); });
    ASSERT_FALSE(HasFailure()) << Name(schedule);
  }
}

}  // namespace pipeline_outputs_test
}  // namespace apogee
