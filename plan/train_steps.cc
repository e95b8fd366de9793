// SPDX-License-Identifier: Apache-2.0

#include "apogee/plan/train_steps.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "apogee/booster/booster.h"
#include "apogee/nn/losses.h"
#include "apogee/optim/registry.h"
#include "apogee/plugins/registry.h"

namespace apogee::plan {
namespace {

// As if at random: equal tokens would add all gradients of the embedding into one row.
std::vector<int64_t> Tokens(int64_t count, int64_t vocab_size) {
  std::vector<int64_t> ids(static_cast<size_t>(count));
  uint64_t state = 1;
  for (int64_t& id : ids) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    id = static_cast<int64_t>((state >> 33) % static_cast<uint64_t>(vocab_size));
  }
  return ids;
}

}  // namespace

void TrainSteps(const TrainingSetup& setup, const Candidate& candidate, comm::World& world,
                int num_steps, const std::function<void(int step)>& before_step) {
  const PluginRegistry registry;
  const std::unique_ptr<Plugin> plugin =
      ValueOrThrow(registry.Make(candidate.plugin, world, setup.training, candidate.options));
  if (setup.train) return setup.train(world, *plugin, before_step);
  const std::unique_ptr<nn::Module> model = setup.make_model(setup.recompute);
  model->InitializeLazily(world.context(), {.seed = 1});
  Booster booster(*plugin);
  if (setup.lora) booster.enable_lora(*model, *setup.lora);
  const std::unique_ptr<optim::Optimizer> optimizer = ValueOrThrow(optim::BuiltInOptimizers().Make(
      setup.optimizer, model->Parameters(), setup.optimizer_options));
  const Boosted boosted = booster.boost(*model, *optimizer, {.criterion = nn::CrossEntropyLoss()});
  const bool pipelined = candidate.pp > 1;
  const int64_t micro_batches = pipelined ? 1 : setup.accumulate;
  const int64_t samples = setup.batch / candidate.dp() / micro_batches;
  const std::vector<int64_t> ids = Tokens(samples * setup.tokens, setup.vocab_size);
  for (int step = 0; step < num_steps; ++step) {
    before_step(step);
    const Accumulation window = booster.accumulate(micro_batches);
    for (int64_t micro = 0; micro < micro_batches; ++micro) {
      const Shape shape{samples, setup.tokens};
      const data::Batch batch{Tensor::FromVector(ids, shape, world.context()),
                              Tensor::FromVector(ids, shape, world.context())};
      if (pipelined) {
        booster.execute_pipeline(batch, boosted.model, boosted.criterion, &boosted.optimizer);
      } else {
        booster.backward(boosted.criterion(boosted.model(batch.inputs), batch.targets),
                         boosted.optimizer);
      }
    }
    boosted.optimizer.step();
    boosted.optimizer.zero_grad();
  }
}

}  // namespace apogee::plan
