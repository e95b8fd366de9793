// SPDX-License-Identifier: Apache-2.0

// A very small training run, an Mlp with AdamW, for tests of its checkpoints. On several ranks its
// states are sharded. One thread per rank, so it can run in a forked child.
//
//   const absl::Status saved = OnSmallRun(2, [&](SmallRun& run) {
//     run.Step();
//     return run.booster.save_training_state(folder, {.step = 1});
//   });
#ifndef APOGEE_TESTS_SUPPORT_RUNS_SMALL_RUN_H_
#define APOGEE_TESTS_SUPPORT_RUNS_SMALL_RUN_H_

#include <functional>
#include <memory>
#include <tuple>
#include <vector>

#include "apogee/booster/booster.h"
#include "apogee/comm/launch.h"
#include "apogee/nn/losses.h"
#include "apogee/nn/models/mlp.h"
#include "apogee/optim/adam/adam.h"
#include "apogee/plugins/low_level_zero.h"
#include "apogee/plugins/single_rank.h"

namespace apogee::testing {

class SmallRun {
 public:
  explicit SmallRun(const comm::World& world)
      : model_({.sizes = {4, 8, 3}}),
        optimizer_(Initialized(world), {.lr = 1e-2}),
        plugin_(MakePlugin(world)),
        booster(*plugin_) {
    std::ignore = booster.boost(model_, optimizer_);
  }
  void Step() {
    const ContextPtr context = model_.Parameters()[0]->data().context();
    const Tensor output = model_(Tensor::Full({2, 4}, DType::kF32, 0.5, context));
    const Tensor target = Tensor::FromVector<int64_t>({1, 2}, {2}, context);
    booster.backward(nn::CrossEntropyLoss()(output, target), optimizer_);
    optimizer_.step();
    optimizer_.zero_grad();
  }

 private:
  std::vector<autograd::ParameterPtr> Initialized(const comm::World& world) {
    model_.Initialize(world.context(), {.seed = 3});
    return model_.Parameters();
  }
  static std::unique_ptr<Plugin> MakePlugin(const comm::World& world) {
    if (world.size() == 1) return std::make_unique<SingleRankPlugin>();
    return std::make_unique<LowLevelZeroPlugin>(world.group(), TrainingOptions{},
                                                LowLevelZeroOptions{.stage = 1});
  }

  nn::Mlp model_;
  optim::AdamW optimizer_;
  std::unique_ptr<Plugin> plugin_;

 public:
  Booster booster;
};

// The result of `fn` on rank 0, or the error of a rank that threw.
inline absl::Status OnSmallRun(int ranks, const std::function<absl::Status(SmallRun&)>& fn) {
  absl::Status first;
  const absl::Status launched =
      comm::launch({.num_ranks = ranks, .threads_per_rank = 1}, [&](comm::World& world) {
        SmallRun run(world);
        const absl::Status status = fn(run);
        if (world.rank() == 0) first = status;
      });
  return launched.ok() ? first : launched;
}

}  // namespace apogee::testing

#endif  // APOGEE_TESTS_SUPPORT_RUNS_SMALL_RUN_H_
