// SPDX-License-Identifier: Apache-2.0

// Whole training runs in which samples and targets that count are spread unevenly over ranks and
// micro-batches, on one rank and under every plugin, to compare.
//
//   // Of two ranks, the second has one target that counts in each of its two samples.
//   ExpectExact({{{2, 4}}, {{2, 1}}});
#ifndef APOGEE_TESTS_PLUGINS_UNEVEN_TARGETS_RUN_H_
#define APOGEE_TESTS_PLUGINS_UNEVEN_TARGETS_RUN_H_

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "apogee/autograd/engine.h"
#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/booster/booster.h"
#include "apogee/nn/losses.h"
#include "apogee/nn/models/gpt2.h"
#include "apogee/optim/registry.h"
#include "apogee/plugins/ddp.h"
#include "apogee/plugins/gemini.h"
#include "apogee/plugins/hybrid_parallel.h"
#include "apogee/plugins/low_level_zero.h"
#include "apogee/plugins/single_rank.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tests/support/exactness.h"
#include "apogee/tests/support/run_ranks.h"

namespace apogee {
namespace uneven_targets_test {

using testing::RunRanks;
using testing::Weights;
using testing::WeightsOf;
using testing::WorstUpdateError;

inline constexpr int64_t kTokens = 4, kVocab = 19, kSteps = 4, kIgnored = -100;
inline constexpr double kTolerance = 1e-9;

// Of each rank's micro-batches: samples, and how many targets of each sample count.
struct Part {
  int64_t samples = 2;
  int64_t counted = kTokens;
};
// [data rank][micro-batch]
using Spread = std::vector<std::vector<Part>>;

inline data::Batch BatchOf(int64_t step, size_t rank, size_t micro, const Part& part,
                           const ContextPtr& context) {
  std::vector<int64_t> inputs, targets;
  for (int64_t sample = 0; sample < part.samples; ++sample) {
    for (int64_t t = 0; t < kTokens; ++t) {
      const auto place = ((static_cast<uint64_t>(step) * 8 + rank) * 8 + micro) * 1024 +
                         static_cast<uint64_t>(sample * 16 + t);
      const std::array<uint32_t, 4> bits = Philox(MakeKey(5, "tokens"), place);
      inputs.push_back(bits[0] % kVocab);
      targets.push_back(t < part.counted ? static_cast<int64_t>(bits[1] % kVocab) : kIgnored);
    }
  }
  return {Tensor::FromVector<int64_t>(inputs, {part.samples, kTokens}, context),
          Tensor::FromVector<int64_t>(targets, {part.samples, kTokens}, context)};
}

inline Tensor Join(const std::vector<Tensor>& parts) {
  std::vector<int64_t> values;
  for (const Tensor& part : parts) {
    for (const int64_t value : part.ToVector<int64_t>()) values.push_back(value);
  }
  return Tensor::FromVector<int64_t>(
      values, {static_cast<int64_t>(values.size()) / kTokens, kTokens}, parts[0].context());
}

// Micro-batch `micro` of all ranks.
inline data::Batch GlobalBatch(int64_t step, const Spread& spread, size_t micro,
                               const ContextPtr& context) {
  std::vector<Tensor> inputs, targets;
  for (size_t rank = 0; rank < spread.size(); ++rank) {
    const data::Batch batch = BatchOf(step, rank, micro, spread[rank][micro], context);
    inputs.push_back(batch.inputs);
    targets.push_back(batch.targets);
  }
  return {Join(inputs), Join(targets)};
}

inline std::unique_ptr<nn::Gpt2> Model(const ContextPtr& context) {
  auto model = std::make_unique<nn::Gpt2>(nn::Gpt2Config{
      .vocab_size = kVocab, .n_positions = kTokens, .n_embd = 8, .n_layer = 2, .n_head = 2});
  model->Initialize(context, {.seed = 11, .dtype = DType::kF64});
  for (const auto& p : model->Parameters()) {
    // Its gradient is rounding, which AdamW blows up.
    if (p->name().ends_with("c_attn.bias")) p->set_requires_grad(false);
  }
  return model;
}

inline std::unique_ptr<optim::Optimizer> AdamW(const nn::Module& model) {
  return ValueOrThrow(
      optim::MakeOptimizer("adamw", model.Parameters(), {{"lr", "0.01"}, {"weight_decay", "0.1"}}));
}

struct Result {
  Weights start, end;
  std::vector<double> losses;  // of each step
};

// One rank, no booster. `over_window`: the mean over all targets of a step, else of micro-batches'
// means.
inline Result PlainRun(const Spread& spread, bool over_window, const Criterion& criterion) {
  const ContextPtr context = CpuContext();
  const auto model = Model(context);
  const auto optimizer = AdamW(*model);
  optimizer->set_step_options({.max_norm = 0.5});
  Result result{.start = WeightsOf(*model), .end = {}, .losses = {}};
  const size_t micros = spread[0].size();
  for (int64_t step = 0; step < kSteps; ++step) {
    double total = 0;
    for (size_t m = 0; m < micros; ++m) {
      total += static_cast<double>(nn::CountTargets(GlobalBatch(step, spread, m, context).targets));
    }
    double sum = 0;
    for (size_t m = 0; m < micros; ++m) {
      const data::Batch batch = GlobalBatch(step, spread, m, context);
      const auto counted = static_cast<double>(nn::CountTargets(batch.targets));
      if (over_window && counted == 0) continue;
      const double share = over_window ? counted / total : 1.0 / static_cast<double>(micros);
      const Tensor loss = autograd::Scale(criterion((*model)(batch.inputs), batch.targets), share);
      sum += loss.Item();
      autograd::Backward(loss);
    }
    result.losses.push_back(sum);
    optimizer->step();
    optimizer->zero_grad();
  }
  result.end = WeightsOf(*model);
  return result;
}

struct Case {
  std::string name;
  int ranks = 4;
  // "ddp", "zero1", "zero2", "gemini" or, null, these options.
  std::function<HybridParallelOptions()> hybrid = nullptr;
  bool has_stages = false;
};

inline HybridParallelOptions Cut(
    int tp, int pp, int zero,
    nn::parallel::SequenceMode sp_mode = nn::parallel::SequenceMode::kNone) {
  HybridParallelOptions options{.tp_size = tp, .pp_size = pp, .stage = zero};
  if (sp_mode != nn::parallel::SequenceMode::kNone) options.sp_size = 2, options.sp_mode = sp_mode;
  if (pp > 1) options.num_microbatches = 2;
  return options;
}

inline std::vector<Case> Cases(int data_size) {
  const int n = data_size;
  return {
      {"ddp", n},
      {"zero1", n},
      {"zero2", n},
      {"gemini", n},
      {"tp2 zero0", 2 * n, [] { return Cut(2, 1, 0); }},
      {"tp2 zero3", 2 * n, [] { return Cut(2, 1, 3); }},
      {"all_to_all", 2 * n, [] { return Cut(1, 1, 1, nn::parallel::SequenceMode::kAllToAll); }},
      {"pp2 zero0", 2 * n, [] { return Cut(1, 2, 0); }, true},
      {"pp2 zero2", 2 * n, [] { return Cut(1, 2, 2); }, true},
  };
}

inline std::unique_ptr<Plugin> MakePlugin(const Case& run, const comm::World& world) {
  const TrainingOptions training{.precision = Precision::kF64, .max_norm = 0.5};
  if (run.hybrid) {
    return std::make_unique<HybridParallelPlugin>(world, training, run.hybrid());
  }
  if (run.name == "single") {
    return std::make_unique<SingleRankPlugin>(training);
  }
  if (run.name == "ddp") {
    return std::make_unique<DdpPlugin>(world.group(), training);
  }
  if (run.name == "gemini") {
    return std::make_unique<GeminiPlugin>(world.group(), training);
  }
  return std::make_unique<LowLevelZeroPlugin>(
      world.group(), training, LowLevelZeroOptions{.stage = run.name == "zero1" ? 1 : 2});
}

inline Tensor WholeValue(Plugin& plugin, const autograd::Parameter& parameter) {
  if (auto* hybrid = dynamic_cast<HybridParallelPlugin*>(&plugin)) {
    return hybrid->WholeValue(parameter);
  }
  if (auto* gemini = dynamic_cast<GeminiPlugin*>(&plugin)) return gemini->WholeValue(parameter);
  return parameter.data();
}

// Of this rank, in a step.
inline std::vector<data::Batch> BatchesOf(int64_t step, const Spread& spread, Plugin& plugin,
                                          const comm::World& world) {
  const auto* hybrid = dynamic_cast<HybridParallelPlugin*>(&plugin);
  const auto rank = static_cast<size_t>(hybrid ? hybrid->data_rank() : world.rank());
  std::vector<data::Batch> batches;
  for (size_t m = 0; m < spread[rank].size(); ++m) {
    batches.push_back(BatchOf(step, rank, m, spread[rank][m], world.context()));
  }
  return batches;
}

enum class Loop { kMeanOfMicros, kWindow, kRaw };

// What a rank does in a step; returns its loss.
inline double RunStep(Booster& booster, Boosted& boosted, const Criterion& criterion,
                      const Case& run, const std::vector<data::Batch>& batches, Loop loop) {
  const double share = loop == Loop::kWindow ? 1 : 1.0 / static_cast<double>(batches.size());
  std::shared_ptr<void> window;
  if (loop == Loop::kWindow) {
    int64_t targets = 0;
    for (const data::Batch& batch : batches) targets += nn::CountTargets(batch.targets);
    window = booster.accumulation_window(targets);
  }
  double sum = 0;
  for (size_t m = 0; m < batches.size(); ++m) {
    const auto keep = m + 1 < batches.size() ? booster.no_sync() : nullptr;
    const Criterion scaled = [&](const Tensor& output, const Tensor& targets) {
      return autograd::Scale(criterion(output, targets), share);
    };
    if (run.has_stages) {
      sum += booster.execute_pipeline(batches[m], boosted.model, scaled, &boosted.optimizer)
                 .loss.Item();
      continue;
    }
    const Tensor loss = scaled(boosted.model(batches[m].inputs), batches[m].targets);
    sum += loss.Item();
    booster.backward(loss, boosted.optimizer);
  }
  boosted.optimizer.step();
  boosted.optimizer.zero_grad();
  return sum;
}

inline Result BoostedRun(const Case& run, const Spread& spread, Loop loop,
                         const Criterion& criterion) {
  std::vector<Result> results(static_cast<size_t>(run.ranks));
  RunRanks(run.ranks, [&](comm::World& world) {
    const auto model = Model(world.context());
    const auto optimizer = AdamW(*model);
    const auto plugin = MakePlugin(run, world);
    Booster booster(*plugin);
    Boosted boosted = booster.boost(*model, *optimizer, {.criterion = criterion});
    Result& result = results[static_cast<size_t>(world.rank())];
    for (int64_t step = 0; step < kSteps; ++step) {
      const std::vector<data::Batch> batches = BatchesOf(step, spread, *plugin, world);
      const Criterion& used = loop == Loop::kRaw ? criterion : boosted.criterion;
      const double loss = RunStep(booster, boosted, used, run, batches, loop);
      const Tensor mean = Tensor::Full({1}, DType::kF64, loss, world.context());
      if (plugin->data_group() != nullptr) {
        plugin->data_group()->AllReduce(mean);
        result.losses.push_back(mean.Item() / plugin->data_group()->size());
      } else {
        result.losses.push_back(loss);
      }
    }
    for (const auto& p : model->Parameters()) {
      result.end[p->name()] = WholeValue(*plugin, *p).ToVector<double>();
    }
  });
  return results[0];
}

inline void ExpectSame(const Result& want, const Result& got, const std::string& name) {
  SCOPED_TRACE(name);
  ASSERT_EQ(got.losses.size(), want.losses.size());
  EXPECT_LE(WorstUpdateError(want.start, want.end, got.end).error, kTolerance);
  for (size_t step = 0; step < want.losses.size(); ++step) {
    if (std::isnan(want.losses[step])) {
      EXPECT_TRUE(std::isnan(got.losses[step])) << step;
    } else {
      EXPECT_NEAR(got.losses[step], want.losses[step], kTolerance) << step;
    }
  }
}

inline void ExpectExact(const Spread& spread, Loop loop = Loop::kMeanOfMicros,
                        const Criterion& criterion = nn::CrossEntropyLoss()) {
  const Result want = PlainRun(spread, loop == Loop::kWindow, criterion);
  for (const Case& run : Cases(static_cast<int>(spread.size()))) {
    ExpectSame(want, BoostedRun(run, spread, loop, criterion), run.name);
  }
}

}  // namespace uneven_targets_test
}  // namespace apogee

#endif  // APOGEE_TESTS_PLUGINS_UNEVEN_TARGETS_RUN_H_
