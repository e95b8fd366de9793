// SPDX-License-Identifier: Apache-2.0

// A small model with batch norms, and one rank's run of it.
//
//   RankRun run(Hybrid({.tp_size = 2, .plan = plan}), /*seed=*/1, world);
//   run.Step({BatchOf(step, Range(0, 6), run.context)});
//   const Result now = run.Now();
#ifndef APOGEE_TESTS_PLUGINS_BATCH_NORM_RUN_H_
#define APOGEE_TESTS_PLUGINS_BATCH_NORM_RUN_H_

#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apogee/autograd/functions/activation.h"
#include "apogee/booster/booster.h"
#include "apogee/nn/chain.h"
#include "apogee/nn/layers.h"
#include "apogee/nn/losses.h"
#include "apogee/optim/adam/adam.h"
#include "apogee/plugins/hybrid_parallel.h"

namespace apogee::testing::batch_norm {

constexpr int64_t kSamples = 12;
constexpr int kSteps = 4;
constexpr TrainingOptions kTraining = {.precision = Precision::kF64};

// Without biases before norms: the loss does not depend on them, and AdamW would turn the rounding
// errors of their gradients into updates.
inline std::unique_ptr<nn::Sequential> MakeModel() {
  const nn::LinearOptions no_bias{.bias = false};
  using Named = std::pair<std::string, std::shared_ptr<nn::Module>>;
  return std::make_unique<nn::Sequential>(std::vector<Named>{
      {"fc1", std::make_shared<nn::Linear>(6, 8)},
      {"act", nn::Function(autograd::Tanh)},
      {"fc2", std::make_shared<nn::Linear>(8, 8, no_bias)},
      {"norm", std::make_shared<nn::BatchNorm>(8)},
      {"relu", nn::Function(autograd::Relu)},
      {"deep", std::make_shared<nn::Linear>(8, 8, no_bias)},
      {"deep_norm", std::make_shared<nn::BatchNorm>(8, nn::BatchNormOptions{.momentum = 0.3})},
      {"head", std::make_shared<nn::Linear>(8, 3)}});
}

using MakePlugin = std::function<std::unique_ptr<Plugin>(const comm::World& world)>;

inline MakePlugin Hybrid(const HybridParallelOptions& options) {
  return [options](const comm::World& world) {
    return std::make_unique<HybridParallelPlugin>(world, kTraining, options);
  };
}

inline std::vector<int64_t> Range(int64_t first, int64_t count) {
  std::vector<int64_t> samples;
  for (int64_t i = first; i < first + count; ++i) samples.push_back(i);
  return samples;
}

inline data::Batch BatchOf(int step, const std::vector<int64_t>& samples,
                           const ContextPtr& context) {
  std::vector<double> inputs;
  std::vector<int64_t> targets;
  for (const int64_t sample : samples) {
    for (int64_t i = 0; i < 6; ++i) {
      inputs.push_back(std::sin(static_cast<double>(7 * step + 3 * sample + 5 * i * sample + i)));
    }
    targets.push_back((step + sample * sample) % 3);
  }
  const auto n = static_cast<int64_t>(samples.size());
  return {Tensor::FromVector(inputs, {n, 6}, context), Tensor::FromVector(targets, {n}, context)};
}

struct Result {
  std::vector<double> losses;
  std::map<std::string, std::vector<double>> weights, buffers;
};

// One rank's run.
struct RankRun {
  RankRun(const MakePlugin& make, uint64_t seed, const comm::World& world,
          DType dtype = DType::kF64)
      : context(world.context()), model(MakeModel()) {
    model->Initialize(context, {.seed = seed, .dtype = dtype});
    // Where weights differ, buffers do, too.
    for (const auto& buffer : model->Buffers()) buffer->data().Fill(static_cast<double>(seed));
    optimizer.emplace(model->Parameters(), optim::AdamWOptions{.lr = 0.05});
    plugin = make(world);
    booster.emplace(*plugin);
    boosted.emplace(booster->boost(*model, *optimizer, {.criterion = nn::CrossEntropyLoss()}));
  }
  double Step(const std::vector<data::Batch>& micros) {
    const Accumulation window = booster->accumulate(static_cast<int64_t>(micros.size()));
    double loss = 0;
    for (const data::Batch& batch : micros) {
      loss += booster->execute_pipeline(batch, *model, boosted->criterion, &boosted->optimizer)
                  .loss.Item();
    }
    boosted->optimizer.step();
    boosted->optimizer.zero_grad();
    return loss;
  }
  Result Now(bool weights = true) const {
    Result result;
    for (const auto& p : model->Parameters()) {
      if (!weights) break;
      result.weights[p->name()] = plugin->WholeValue(*p).ToVector<double>();
    }
    for (const auto& buffer : model->Buffers()) {
      if (buffer->is_here()) result.buffers[buffer->name()] = buffer->data().ToVector<double>();
    }
    return result;
  }

  ContextPtr context;
  std::unique_ptr<nn::Sequential> model;
  std::optional<optim::AdamW> optimizer;
  std::unique_ptr<Plugin> plugin;
  std::optional<Booster> booster;
  std::optional<Boosted> boosted;
};

}  // namespace apogee::testing::batch_norm

#endif  // APOGEE_TESTS_PLUGINS_BATCH_NORM_RUN_H_
