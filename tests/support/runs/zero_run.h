// SPDX-License-Identifier: Apache-2.0

// A small run with sharded optimizer states, for tests of everything but training itself.
//
//   RunRanks(2, [&](comm::World& world) { ZeroRun run(world); run.Step(); run.booster.save_...; });
#ifndef APOGEE_TESTS_SUPPORT_RUNS_ZERO_RUN_H_
#define APOGEE_TESTS_SUPPORT_RUNS_ZERO_RUN_H_

#include <tuple>
#include <vector>

#include "apogee/booster/booster.h"
#include "apogee/nn/losses.h"
#include "apogee/nn/models/mlp.h"
#include "apogee/optim/adam/adam.h"
#include "apogee/plugins/low_level_zero.h"

namespace apogee::testing {

// One rank's run with ZeRO stage 1.
struct ZeroRun {
  explicit ZeroRun(const comm::World& world, int64_t width = 24)
      : model({.sizes = {8, width, 4}}),
        optimizer(Made(world), {.lr = 1e-2}),
        plugin(world.group(), {}, {.stage = 1}),
        booster(plugin) {
    std::ignore = booster.boost(model, optimizer);
  }
  std::vector<autograd::ParameterPtr> Made(const comm::World& world) {
    model.Initialize(world.context(), {.seed = 3});
    return model.Parameters();
  }
  void Step() {
    const Tensor input =
        Tensor::Full({2, 8}, DType::kF32, 0.5, model.Parameters()[0]->data().context());
    const Tensor output = model(input);
    const Tensor target = Tensor::FromVector<int64_t>({1, 2}, {2}, input.context());
    booster.backward(nn::CrossEntropyLoss()(output, target), optimizer);
    optimizer.step();
    optimizer.zero_grad();
  }

  nn::Mlp model;
  optim::AdamW optimizer;
  LowLevelZeroPlugin plugin;
  Booster booster;
};

}  // namespace apogee::testing

#endif  // APOGEE_TESTS_SUPPORT_RUNS_ZERO_RUN_H_
