// SPDX-License-Identifier: Apache-2.0

// Trains with AdaMax by name: on one rank, where a scalar formula must give the same weights, and
// on four ranks under DDP and ZeRO stage 2, which must make the update of one rank.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "adamax.h"
#include "apogee/apogee.h"

namespace {

using apogee::Tensor;

constexpr int64_t kSteps = 20, kSamples = 16, kInputs = 6, kClasses = 3;
constexpr double kRate = 0.01, kBound = 1e-12;
// The values of all parameters, one after the other.
using Values = std::vector<double>;

struct Run {
  Values start, end;
  std::vector<Values> gradients;  // of every step; only of one rank
};

optim::OptimizerRegistry WithAdaMax() {
  optim::OptimizerRegistry registry;
  registry.Add<AdaMax>("adamax");
  return registry;
}

// Samples [first, first + count) of a step: waves, and the class of the largest of three of them.
apogee::data::Batch BatchOf(int64_t step, int64_t first, int64_t count,
                            const apogee::ContextPtr& context) {
  Values inputs;
  std::vector<int64_t> targets;
  for (int64_t sample = first; sample < first + count; ++sample) {
    for (int64_t i = 0; i < kInputs; ++i) {
      inputs.push_back(std::sin(static_cast<double>(1 + step * 37 + sample * 11 + i * 5)));
    }
    const auto row = inputs.end() - kInputs;
    targets.push_back(std::max_element(row, row + kClasses) - row);
  }
  return {.inputs = Tensor::FromVector<double>(inputs, {count, kInputs}, context),
          .targets = Tensor::FromVector<int64_t>(targets, {count}, context)};
}

template <typename Read>
Values ValuesOf(const apogee::nn::Module& model, const Read& read) {
  Values values;
  for (const auto& parameter : model.Parameters()) {
    const Values more = read(*parameter).template ToVector<double>();
    values.insert(values.end(), more.begin(), more.end());
  }
  return values;
}

std::unique_ptr<apogee::Plugin> MakePlugin(const std::string& name,
                                           const apogee::comm::World& world) {
  const apogee::TrainingOptions training{.precision = apogee::Precision::kF64};
  return apogee::ValueOrThrow(apogee::PluginRegistry().Make(name, world, training));
}

Run Train(const std::string& plugin_name, int num_ranks) {
  Run run;
  const auto rank = [&](apogee::comm::World& world) {
    apogee::nn::Mlp model(
        {.sizes = {kInputs, 8, kClasses}, .activation = apogee::Activation::kTanh});
    model.Initialize(world.context(), {.seed = 1, .dtype = apogee::DType::kF64});
    const optim::OptimizerRegistry registry = WithAdaMax();
    const auto optimizer = apogee::ValueOrThrow(optim::MakeOptimizer(
        "adamax", model.Parameters(), {{"lr", std::to_string(kRate)}}, registry));
    const auto plugin = MakePlugin(plugin_name, world);
    Run mine;
    mine.start = ValuesOf(model, [](const auto& p) { return p.value(); });
    apogee::Booster booster(*plugin);
    auto boosted = booster.boost(model, *optimizer, {.criterion = apogee::nn::CrossEntropyLoss()});
    const int64_t count = kSamples / world.size();
    for (int64_t step = 0; step < kSteps; ++step) {
      const auto batch = BatchOf(step, world.rank() * count, count, world.context());
      booster.backward(boosted.criterion(boosted.model(batch.inputs), batch.targets),
                       boosted.optimizer);
      if (num_ranks == 1) {
        mine.gradients.push_back(ValuesOf(model, [](const auto& p) { return p.grad(); }));
      }
      boosted.optimizer.step();
      boosted.optimizer.zero_grad();
    }
    mine.end = ValuesOf(model, [&](const auto& p) { return plugin->WholeValue(p); });
    if (world.rank() == 0) run = std::move(mine);
  };
  apogee::OkOrThrow(apogee::comm::launch({.num_ranks = num_ranks, .threads_per_rank = 1}, rank));
  return run;
}

// The weights after the gradients of `run`, from the equations.
Values Formula(const Run& run) {
  const AdaMaxOptions o{.lr = kRate};
  Values w = run.start, m(w.size()), u(w.size());
  for (size_t t = 1; t <= run.gradients.size(); ++t) {
    for (size_t i = 0; i < w.size(); ++i) {
      const double g = run.gradients[t - 1][i];
      m[i] = o.betas[0] * m[i] + (1 - o.betas[0]) * g;
      u[i] = std::max(o.betas[1] * u[i], std::abs(g) + o.eps);
      w[i] -= o.lr / (1 - std::pow(o.betas[0], static_cast<double>(t))) * m[i] / u[i];
    }
  }
  return w;
}

// The largest error of a weight, relative to the largest update. Prints it.
bool Agrees(const char* what, const Run& want, const Values& got) {
  double error = 0, update = 0;
  bool finite = got.size() == want.end.size();
  for (size_t i = 0; finite && i < got.size(); ++i) {
    error = std::max(error, std::abs(got[i] - want.end[i]));
    update = std::max(update, std::abs(want.end[i] - want.start[i]));
    finite = std::isfinite(got[i]);
  }
  const bool agrees = finite && update > 0 && error / update <= kBound;
  std::printf("own optimizer: %-16s error of the update %.1e%s\n", what, error / update,
              agrees ? "" : "  WRONG");
  return agrees;
}

}  // namespace

int main() {
  const Run one = Train("single", 1);
  bool agrees = Agrees("formula", one, Formula(one));
  agrees = Agrees("ddp, 4 ranks", one, Train("ddp", 4).end) && agrees;
  agrees = Agrees("zero2, 4 ranks", one, Train("zero2", 4).end) && agrees;
  return agrees ? 0 : 1;
}
