// SPDX-License-Identifier: Apache-2.0

// A save takes parts of what ranks hold alike from each of them: where they have drifted apart it
// refuses, and names what differs.
#include "apogee/booster/replica_check.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "apogee/autograd/engine.h"
#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/booster/booster.h"
#include "apogee/nn/models/mlp.h"
#include "apogee/optim/adam/adam.h"
#include "apogee/plugins/ddp.h"
#include "apogee/plugins/low_level_zero.h"
#include "apogee/tests/support/files/shared_temp_dir.h"
#include "apogee/tests/support/run_ranks.h"

namespace apogee {
namespace replica_check_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::RunRanks;
using testing::SharedTempDir;

// Ranks train alone; their weights and states become rank 0's before a save, if it is asked for.
class AlonePlugin : public Plugin {
 public:
  AlonePlugin(comm::GroupPtr group, bool meets) : group_(std::move(group)), meets_(meets) {}
  std::string name() const override { return "alone"; }
  comm::GroupPtr group() const override { return group_; }
  comm::GroupPtr data_group() const override { return nullptr; }
  optim::Optimizer& Configure(nn::Module&, optim::Optimizer& optimizer) override {
    return optimizer;
  }
  void Backward(const Tensor& loss, optim::Optimizer&) override { autograd::Backward(loss); }
  std::shared_ptr<void> NoSync() override { return nullptr; }
  void BeforeSave(optim::Optimizer& optimizer) override {
    if (!meets_) return;
    optimizer.ForEachView([&](optim::ParamView& view, int) {
      group_->Broadcast(view.value(), 0);
      for (const optim::NamedState& state : view.states()) group_->Broadcast(state.value, 0);
    });
  }

 private:
  comm::GroupPtr group_;
  bool meets_;
};

// A rank's own step.
void Train(Booster& booster, nn::Module& model, optim::Optimizer& optimizer, double input) {
  const Tensor x =
      Tensor::Full({2, 4}, DType::kF32, input, model.Parameters()[0]->data().context());
  booster.backward(autograd::Mean(model(x)), optimizer);
  optimizer.step();
  optimizer.zero_grad();
}

TEST(ReplicaCheckTest, APluginWhoseRanksDifferIsToldAndCanHelpIt) {
  for (const bool meets : {false, true}) {
    const SharedTempDir dir;
    RunRanks(2, [&](comm::World& world) {
      nn::Mlp model{{.sizes = {4, 5, 3}}};
      model.Initialize(world.context(), {.seed = 1});
      optim::AdamW optimizer(model.Parameters(), {.lr = 1e-2});
      AlonePlugin plugin(world.group(), meets);
      Booster booster(plugin);
      std::ignore = booster.boost(model, optimizer);
      Train(booster, model, optimizer, 1 + world.rank());
      const absl::Status all[] = {booster.save_training_state(dir / "run", {.step = 1}),
                                  booster.save_model(dir / "model"),
                                  booster.save_optimizer(dir / "optimizer")};
      for (const absl::Status& status : all) {
        if (meets) {
          EXPECT_TRUE(status.ok()) << status;
          continue;
        }
        EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
        EXPECT_THAT(Message(status),
                    AllOf(HasSubstr("rank 0 and rank 1 hold the same elements of \""),
                          HasSubstr("nothing was written"), HasSubstr("Plugin::BeforeSave")));
      }
    });
  }
}

TEST(ReplicaCheckTest, AWeightThatOneRankSetIsNamed) {
  const SharedTempDir dir;
  RunRanks(3, [&](comm::World& world) {
    nn::Mlp model{{.sizes = {4, 5, 3}}};
    model.Initialize(world.context(), {.seed = 1});
    optim::AdamW optimizer(model.Parameters(), {.lr = 1e-2});
    DdpPlugin plugin(world.group());
    Booster booster(plugin);
    std::ignore = booster.boost(model, optimizer);
    Train(booster, model, optimizer, 1 + world.rank());
    EXPECT_TRUE(booster.save_training_state(dir / "good", {.step = 1}).ok());
    const autograd::ParameterPtr weight = model.Parameters()[2];
    if (world.rank() == 2) weight->data().Fill(7);
    const absl::Status status = booster.save_training_state(dir / "bad", {.step = 2});
    EXPECT_THAT(Message(status), AllOf(HasSubstr("save_training_state: rank 0 and rank 2 hold"),
                                       HasSubstr("\"model/" + weight->name() + "\"")));
  });
}

// What ranks hold parts of is theirs.
TEST(ReplicaCheckTest, ShardsDiffer) {
  const SharedTempDir dir;
  RunRanks(2, [&](comm::World& world) {
    nn::Mlp model{{.sizes = {4, 5, 3}}};
    model.Initialize(world.context(), {.seed = 1});
    optim::AdamW optimizer(model.Parameters(), {.lr = 1e-2});
    LowLevelZeroPlugin plugin(world.group());
    Booster booster(plugin);
    std::ignore = booster.boost(model, optimizer);
    Train(booster, model, optimizer, 1 + world.rank());
    EXPECT_TRUE(booster.save_training_state(dir / "run", {.step = 1}).ok());
    EXPECT_TRUE(booster.save_optimizer(dir / "optimizer").ok());
  });
}

}  // namespace replica_check_test
}  // namespace apogee
