// SPDX-License-Identifier: Apache-2.0

// Finds LateMeanPlugin by its name, trains on 4 ranks and on one, and compares what the training
// has changed. Exit code 0: the updates agree.
#include <cmath>
#include <cstdio>
#include <map>
#include <mutex>
#include <string>

#include "late_mean.h"

using namespace apogee;

namespace {

constexpr int kSteps = 6, kSamples = 8, kAccumulate = 2;

using Weights = std::map<std::string, std::vector<double>>;

Weights ReadWeights(const nn::Module& model) {
  Weights weights;
  for (const auto& parameter : model.Parameters()) {
    weights[parameter->name()] = parameter->data().ToVector<double>();
  }
  return weights;
}

// Samples `first` to `first + count` of a step.
data::Batch Samples(const ContextPtr& context, int step, int64_t first, int64_t count) {
  std::vector<double> inputs;
  std::vector<int64_t> targets;
  for (int64_t i = first; i < first + count; ++i) {
    for (int d = 0; d < 5; ++d) inputs.push_back(std::sin(1.0 + step + 7.0 * i + 3.0 * d));
    targets.push_back((step + i) % 3);
  }
  return {Tensor::FromVector<double>(inputs, {count, 5}, context),
          Tensor::FromVector<int64_t>(targets, {count}, context)};
}

// Trains with the plugin of that name. Returns the weights before and after.
std::pair<Weights, Weights> Train(const PluginRegistry& registry, const std::string& name,
                                  const comm::World& world) {
  nn::Mlp model({.sizes = {5, 7, 3}, .activation = Activation::kGelu});
  model.Initialize(world.context(), {.seed = 3});
  optim::AdamW optimizer(model.Parameters(), {.lr = 0.01});
  const auto plugin =
      ValueOrThrow(registry.Make(name, world, {.precision = Precision::kF64, .max_norm = 0.5}));
  Booster booster(*plugin);
  Boosted boosted = booster.boost(model, optimizer, {.criterion = nn::CrossEntropyLoss()});
  const Weights before = ReadWeights(model);
  const Accumulation window = booster.accumulate(kAccumulate);
  const int64_t count = kSamples / plugin->data_size();
  for (int micro = 0; micro < kSteps * kAccumulate; ++micro) {
    const data::Batch batch = Samples(world.context(), micro, plugin->data_rank() * count, count);
    booster.backward(boosted.criterion(boosted.model(batch.inputs), batch.targets),
                     boosted.optimizer);
    if (!window.is_complete()) continue;
    boosted.optimizer.step();
    boosted.optimizer.zero_grad();
  }
  return {before, ReadWeights(model)};
}

}  // namespace

int main() {
  PluginRegistry registry;
  registry.Add("late_mean",
               [](const comm::World& world, const TrainingOptions& training,
                  const optim::OptionMap&) -> absl::StatusOr<std::unique_ptr<Plugin>> {
                 return std::make_unique<LateMeanPlugin>(world.group(), training);
               },
               /*defaults=*/{});
  const comm::World one(0, 1, CpuContext(), nullptr);
  const auto [before, want] = Train(registry, "single", one);
  double worst = 0;
  std::mutex mutex;
  OkOrThrow(comm::launch({.num_ranks = 4}, [&](comm::World& world) {
    const auto [start, got] = Train(registry, "late_mean", world);
    const std::lock_guard<std::mutex> lock(mutex);
    for (const auto& [name, values] : want) {
      double error = 0, update = 0;
      for (size_t i = 0; i < values.size(); ++i) {
        error = std::max(error, std::abs(got.at(name)[i] - values[i]));
        update = std::max(update, std::abs(values[i] - before.at(name)[i]));
      }
      worst = std::max(worst, error / update);
    }
  }));
  std::printf("late_mean: 4 ranks against one, error of the update %.1e\n", worst);
  return worst <= 1e-12 ? 0 : 1;
}
