// SPDX-License-Identifier: Apache-2.0

// Trains OwnModel on one rank, and on 4 ranks with its plan: tensor parallelism over two, data
// parallelism and ZeRO over the other two. Exit code 0: the updates agree.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "own_model.h"

using namespace own_model;

namespace {

constexpr int kSteps = 5, kSamples = 4, kTokens = 3, kVocabulary = 11;

using Weights = std::map<std::string, std::vector<double>>;

// Samples `first` to `first + count` of a step; the targets are the next words.
data::Batch Samples(const ContextPtr& context, int step, int64_t first, int64_t count) {
  std::vector<int64_t> words, next;
  for (int64_t i = first * kTokens; i < (first + count) * kTokens; ++i) {
    words.push_back((i * i + 3 * step) % kVocabulary);
    next.push_back((i * i + 2 * i + 1 + 3 * step) % kVocabulary);
  }
  return {Tensor::FromVector<int64_t>(words, {count, kTokens}, context),
          Tensor::FromVector<int64_t>(next, {count, kTokens}, context)};
}

// Returns the whole weights before and after the training.
std::pair<Weights, Weights> Train(Plugin& plugin, const ContextPtr& context) {
  OwnModel model(kVocabulary, /*d=*/6);
  model.Initialize(context, {.seed = 3});
  optim::AdamW optimizer(model.Parameters(), {.lr = 0.01});
  Booster booster(plugin);
  Boosted boosted = booster.boost(model, optimizer, {.criterion = nn::CrossEntropyLoss()});
  const auto weights = [&] {
    Weights values;
    for (const auto& parameter : model.Parameters()) {
      values[parameter->name()] = plugin.WholeValue(*parameter).ToVector<double>();
    }
    return values;
  };
  const Weights before = weights();
  const int64_t count = kSamples / plugin.data_size();
  for (int step = 0; step < kSteps; ++step) {
    const data::Batch batch = Samples(context, step, plugin.data_rank() * count, count);
    booster.backward(boosted.criterion(boosted.model(batch.inputs), batch.targets),
                     boosted.optimizer);
    boosted.optimizer.step();
    boosted.optimizer.zero_grad();
  }
  return {before, weights()};
}

}  // namespace

int main() {
  const TrainingOptions training{.precision = Precision::kF64, .max_norm = 0.5};
  SingleRankPlugin single(training);
  const auto [before, want] = Train(single, CpuContext());
  double worst = 0;
  std::mutex mutex;
  OkOrThrow(comm::launch({.num_ranks = 4}, [&](comm::World& world) {
    HybridParallelPlugin plugin(world, training, {.tp_size = 2, .stage = 1, .plan = OwnPlan()});
    const auto [start, got] = Train(plugin, world.context());
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
  std::printf("own_model: 4 ranks against one, error of the update %.1e\n", worst);
  return worst <= 1e-11 ? 0 : 1;
}
