// SPDX-License-Identifier: Apache-2.0

// Batch norm under plugins: 16 bits, gradients that only some ranks have, and a refused plan.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <map>

#include "apogee/autograd/engine.h"
#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/plugins/ddp.h"
#include "apogee/tests/plugins/batch_norm_run.h"
#include "apogee/tests/support/files/shared_temp_dir.h"
#include "apogee/tests/support/run_ranks.h"
#include "apogee/tests/support/says.h"

namespace apogee {
namespace batch_norm_edge_test {

using ::testing::HasSubstr;
using testing::RunRanks;
using testing::Says;
using testing::SharedTempDir;
using namespace testing::batch_norm;  // NOLINT(google-build-using-namespace)
using enum nn::parallel::ParallelStyle;

// In 16 bits, with stages that lack the averages.
TEST(BatchNormEdgeTest, SavesAndResumesAPipelineInBf16) {
  const MakePlugin make = [](const comm::World& world) {
    return std::make_unique<HybridParallelPlugin>(
        world, TrainingOptions{.precision = Precision::kBf16},
        HybridParallelOptions{.pp_size = 2, .num_microbatches = 2});
  };
  const SharedTempDir folder;
  std::map<std::string, std::vector<double>> saved;
  for (const bool resume : {false, true}) {
    RunRanks(2, [&](comm::World& world) {
      RankRun run(make, resume ? 7 : 1, world, DType::kF32);
      if (resume) {
        ASSERT_EQ(run.booster->resume(folder / "run").status(), absl::OkStatus());
      } else {
        const Tensor inputs = BatchOf(0, Range(0, kSamples), run.context).inputs;
        run.Step({{inputs.To(DType::kBF16), BatchOf(0, Range(0, kSamples), run.context).targets}});
        ASSERT_EQ(run.booster->save_training_state(folder / "run", {.step = 1}), absl::OkStatus());
      }
      world.group()->Barrier();
      for (int rank = 0; rank < 2; ++rank) {
        if (rank == world.rank()) {
          for (const auto& [name, values] : run.Now(/*weights=*/false).buffers) {
            if (resume) {
              EXPECT_EQ(values, saved.at(name)) << name;
            }
            saved[name] = values;
          }
        }
        world.group()->Barrier();
      }
    });
  }
  EXPECT_EQ(saved.size(), 4u);
}

// A head that only rank 1 uses: its gradients are reduced at another time on each rank, beside the
// sums of the norm.
TEST(BatchNormEdgeTest, SumsBesideGradientsThatOnlySomeRanksHave) {
  class TwoHeads : public nn::Module {
   public:
    explicit TwoHeads(bool uses_second) : uses_second_(uses_second) {
      norm_ = Register("norm", std::make_shared<nn::BatchNorm>(6));
      trunk_ = Register("trunk", std::make_shared<nn::Linear>(6, 6));
      norm2_ = Register("norm2", std::make_shared<nn::BatchNorm>(6));
      first_ = Register("first", std::make_shared<nn::Linear>(6, 3));
      second_ = Register("second", std::make_shared<nn::Linear>(6, 3));
    }
    Tensor Forward(const Tensor& x) override {
      const Tensor h = (*norm2_)(autograd::Tanh((*trunk_)((*norm_)(x))));
      const Tensor y = (*first_)(h);
      return uses_second_ ? autograd::Add(y, (*second_)(h)) : y;
    }

   private:
    bool uses_second_;
    std::shared_ptr<nn::BatchNorm> norm_, norm2_;
    std::shared_ptr<nn::Linear> trunk_, first_, second_;
  };
  std::vector<double> second[2];
  RunRanks(2, [&](comm::World& world) {
    TwoHeads model(world.rank() == 1);
    model.Initialize(world.context(), {.seed = 1, .dtype = DType::kF64});
    optim::AdamW optimizer(model.Parameters(), {.lr = 0.05});
    DdpPlugin plugin(world.group(), {.precision = Precision::kF64, .bucket_bytes = 1});
    Booster booster(plugin);
    const Boosted boosted = booster.boost(model, optimizer, {.criterion = nn::CrossEntropyLoss()});
    for (int step = 0; step < kSteps; ++step) {
      const data::Batch batch = BatchOf(step, Range(6 * world.rank(), 6), world.context());
      booster.backward(boosted.criterion(model(batch.inputs), batch.targets), boosted.optimizer);
      boosted.optimizer.step();
      boosted.optimizer.zero_grad();
    }
    second[world.rank()] = model.FindParameter("second.weight")->data().ToVector<double>();
  });
  EXPECT_EQ(second[0], second[1]);
}

TEST(BatchNormEdgeTest, RefusesSomeOfTheChannels) {
  RunRanks(2, [](comm::World& world) {
    RankRun run(
        Hybrid({.tp_size = 2,
                .plan = nn::parallel::ParallelPlan{.name = "cut before the norm",
                                                   .rules = {{.pattern = "fc2", .style = kColumn},
                                                             {.pattern = "deep", .style = kRow}}}}),
        1, world);
    EXPECT_THAT([&] { run.Step({BatchOf(0, Range(0, 4), run.context)}); },
                Says(HasSubstr("batch norm \"norm\": its input [4, 4] holds only this rank's")));
  });
}

}  // namespace batch_norm_edge_test
}  // namespace apogee
