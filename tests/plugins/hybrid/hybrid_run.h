// SPDX-License-Identifier: Apache-2.0

// Whole training runs in f64, on one rank and over ranks with HybridParallelPlugin, to compare.
//
//   const HybridTask task{.make = ..., .tokens = ..., .batch = 12, .steps = 5};
//   Weights start;
//   const Weights want = PlainRun(task, {}, start);
//   const Weights got = BoostedRun(task, 4, {.tp_size = 2}, {.data_size = 2});
//   EXPECT_LE(WorstUpdateError(start, want, got).error, 1e-9);
#ifndef APOGEE_TESTS_PLUGINS_HYBRID_HYBRID_RUN_H_
#define APOGEE_TESTS_PLUGINS_HYBRID_HYBRID_RUN_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "apogee/autograd/engine.h"
#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/booster/booster.h"
#include "apogee/nn/losses.h"
#include "apogee/optim/registry.h"
#include "apogee/plugins/hybrid_parallel.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tests/support/exactness.h"
#include "apogee/tests/support/run_ranks.h"

namespace apogee::testing {

struct HybridTask {
  std::function<std::unique_ptr<nn::Module>()> make;
  // Of `count` samples of a step's batch from the `first` one on: the inputs, or the targets.
  std::function<Tensor(int64_t step, int64_t first, int64_t count, const ContextPtr& context,
                       bool targets)>
      tokens;
  int64_t batch = 0, steps = 0;
  Criterion criterion = nn::CrossEntropyLoss();
  std::string optimizer = "adamw";
  optim::OptionMap options = {{"lr", "0.01"}};
  double max_norm = 0.5;
};

// The gradient of a key's bias is zero except for rounding, which normalising optimizers blow up.
inline std::unique_ptr<nn::Module> Initialized(const HybridTask& task, const ContextPtr& context,
                                               uint64_t seed) {
  std::unique_ptr<nn::Module> model = task.make();
  model->Initialize(context, {.seed = seed, .dtype = DType::kF64});
  for (const auto& p : model->Parameters()) {
    if (p->name().ends_with("c_attn.bias")) p->set_requires_grad(false);
  }
  return model;
}

inline std::unique_ptr<optim::Optimizer> OptimizerOf(const HybridTask& task,
                                                     const nn::Module& model) {
  return ValueOrThrow(optim::MakeOptimizer(task.optimizer, model.Parameters(), task.options));
}

// How a step's batch is cut: one part per data-parallel rank, each into micro-batches.
struct BatchCut {
  int64_t data_size = 1, accumulate = 1;
  bool keep = false;     // gradients are cleared before every second step only
  bool no_sync = false;  // under which all micro-batches but the last are
};

// The same rows of several tensors, one after the other.
inline Tensor Join(const std::vector<Tensor>& parts) {
  if (parts.size() == 1) return parts[0];
  const int64_t rows = parts[0].size(0);
  std::vector<int64_t> dims(parts[0].shape().dims().begin(), parts[0].shape().dims().end());
  dims[0] = rows * static_cast<int64_t>(parts.size());
  const Tensor whole = Tensor::Empty(Shape(dims), parts[0].dtype(), parts[0].context());
  for (size_t i = 0; i < parts.size(); ++i) {
    whole.Slice(0, static_cast<int64_t>(i) * rows, rows).CopyFrom(parts[i]);
  }
  return whole;
}

// The loop without a booster. Each of its micro-batches consists of those of all data-parallel
// ranks.
inline Weights PlainRun(const HybridTask& task, const BatchCut& cut, Weights& start) {
  const ContextPtr context = CpuContext();
  const auto model = Initialized(task, context, 11);
  const auto optimizer = OptimizerOf(task, *model);
  optimizer->set_step_options({.max_norm = task.max_norm});
  start = WeightsOf(*model);
  const int64_t parts = cut.data_size * cut.accumulate, count = task.batch / parts;
  for (int64_t step = 0; step < task.steps; ++step) {
    for (int64_t m = 0; m < cut.accumulate; ++m) {
      std::vector<Tensor> inputs, targets;
      for (int64_t rank = 0; rank < cut.data_size; ++rank) {
        const int64_t first = (rank * cut.accumulate + m) * count;
        inputs.push_back(task.tokens(step, first, count, context, false));
        targets.push_back(task.tokens(step, first, count, context, true));
      }
      const Tensor loss = task.criterion((*model)(Join(inputs)), Join(targets));
      autograd::Backward(autograd::Scale(loss, 1.0 / static_cast<double>(cut.accumulate)));
    }
    optimizer->step();
    if (!cut.keep || step % 2 == 1) optimizer->zero_grad();
  }
  return WeightsOf(*model);
}

// Fails the test where ranks differ, in whole weights.
inline Weights BoostedRun(const HybridTask& task, int num_ranks,
                          const HybridParallelOptions& options, const BatchCut& cut) {
  std::vector<Weights> results(static_cast<size_t>(num_ranks));
  const TrainingOptions training{
      .precision = Precision::kF64, .max_norm = task.max_norm, .bucket_bytes = 3000};
  RunRanks(num_ranks, [&](comm::World& world) {
    const auto model = Initialized(task, world.context(), world.rank() == 0 ? 11 : 99);
    const auto optimizer = OptimizerOf(task, *model);
    HybridParallelPlugin plugin(world, training, options);
    Booster booster(plugin);
    Boosted boosted = booster.boost(*model, *optimizer, {.criterion = task.criterion});
    ASSERT_EQ(plugin.data_size(), cut.data_size);
    const int64_t count = task.batch / cut.data_size / cut.accumulate;
    for (int64_t step = 0; step < task.steps; ++step) {
      for (int64_t m = 0; m < cut.accumulate; ++m) {
        const int64_t first = (plugin.data_rank() * cut.accumulate + m) * count;
        const Tensor loss = boosted.criterion(
            boosted.model(task.tokens(step, first, count, world.context(), false)),
            task.tokens(step, first, count, world.context(), true));
        const auto hold = cut.no_sync && m + 1 < cut.accumulate ? booster.no_sync() : nullptr;
        booster.backward(autograd::Scale(loss, 1.0 / static_cast<double>(cut.accumulate)),
                         boosted.optimizer);
      }
      boosted.optimizer.step();
      if (!cut.keep || step % 2 == 1) boosted.optimizer.zero_grad();
    }
    Weights& result = results[static_cast<size_t>(world.rank())];
    for (const auto& p : model->Parameters()) {
      result[p->name()] = plugin.WholeValue(*p).ToVector<double>();
    }
  });
  ShareByRank(results);
  for (const Weights& other : results) EXPECT_EQ(other, results[0]) << "ranks differ";
  return results[0];
}

}  // namespace apogee::testing

#endif  // APOGEE_TESTS_PLUGINS_HYBRID_HYBRID_RUN_H_
