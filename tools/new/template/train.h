// The training loop. It is the same for one rank and for many: the plugin makes the difference.
#ifndef MY_APP_TRAIN_H_
#define MY_APP_TRAIN_H_

#include <functional>
#include <memory>
#include <string>

#include "own_model.h"

namespace app {

struct TrainOptions {
  std::string plugin = "ddp";            // single, ddp, zero1, zero2, gemini or hybrid
  optim::OptionMap plugin_options = {};  // for example {{"tp_size", "2"}}
  Precision precision = Precision::kF32;
  int64_t steps = 600;
  int64_t batch = 48;  // samples per step, of all ranks together
};

// Trains on every rank of `world`. Calls `report` on rank 0 after each step with the mean loss of
// the whole batch.
inline void Train(comm::World& world, const TrainOptions& options,
                  const std::function<void(int64_t step, double loss)>& report) {
  OwnModel model(/*width=*/32);
  model.Initialize(world.context(), {.seed = 1});
  optim::AdamW optimizer(model.Parameters(), {.lr = 0.01});
  const PluginRegistry plugins(OwnPlan());
  const std::unique_ptr<Plugin> plugin = ValueOrThrow(plugins.Make(
      options.plugin, world, {.precision = options.precision}, options.plugin_options));
  Booster booster(*plugin);
  Boosted boosted = booster.boost(model, optimizer, {.criterion = nn::CrossEntropyLoss()});

  const int64_t count = options.batch / plugin->data_size();  // of this rank
  for (int64_t step = 1; step <= options.steps; ++step) {
    const data::Batch batch = Spirals(step, plugin->data_rank() * count, count,
                                      DTypeOf(options.precision), world.context());
    const Tensor loss = boosted.criterion(boosted.model(batch.inputs), batch.targets);
    booster.backward(loss, boosted.optimizer);
    boosted.optimizer.step();
    boosted.optimizer.zero_grad();
    // The mean of the ranks' shares is the loss of the whole batch.
    const Tensor mean = Tensor::FromVector<double>({loss.Item()}, {1}, world.context());
    if (world.group() != nullptr) world.group()->AllReduce(mean);
    if (world.rank() == 0) report(step, mean.Item() / world.size());
  }
}

}  // namespace app

#endif  // MY_APP_TRAIN_H_
