// SPDX-License-Identifier: Apache-2.0

// Short training runs of small models with any plugin, for tests of HybridParallelPlugin on the
// edges.
//
//   const HybridTask task = ShortGpt2Task(7);              // of 7 words
//   ExpectEqualRuns(task, 4, {.tp_size = 2});
//   const Weights got = Train(task, model, optimizer, plugin, plugin.data_rank(), 2, context);
#ifndef APOGEE_TESTS_PLUGINS_HYBRID_HYBRID_SHORT_RUN_H_
#define APOGEE_TESTS_PLUGINS_HYBRID_HYBRID_SHORT_RUN_H_

#include <utility>

#include "apogee/plugins/single_rank.h"
#include "apogee/tests/plugins/hybrid/hybrid_run.h"

namespace apogee::testing {

inline constexpr int64_t kShortBatch = 8, kShortTokens = 4, kShortSteps = 5;

// Words of a vocabulary; `shift` 1 for targets.
inline Tensor Ids(int64_t vocab, int64_t step, int64_t first, int64_t count, int64_t shift,
                  const ContextPtr& context) {
  std::vector<int64_t> values;
  for (int64_t sample = first; sample < first + count; ++sample) {
    for (int64_t t = shift; t < kShortTokens + shift; ++t) {
      const auto place = static_cast<uint64_t>((step * kShortBatch + sample) * 16 + t);
      values.push_back(
          static_cast<int64_t>(Philox(MakeKey(5, "ids"), place)[0] % static_cast<uint64_t>(vocab)));
    }
  }
  return Tensor::FromVector<int64_t>(values, {count, kShortTokens}, context);
}

inline HybridTask ShortTask(std::function<std::unique_ptr<nn::Module>()> make, int64_t vocab = 8) {
  return {.make = std::move(make),
          .tokens =
              [vocab](int64_t step, int64_t first, int64_t count, const ContextPtr& context,
                      bool targets) {
                return Ids(vocab, step, first, count, targets ? 1 : 0, context);
              },
          .batch = kShortBatch,
          .steps = kShortSteps};
}

inline nn::Gpt2Config ShortGpt2(int64_t vocab, bool tied = true) {
  return {.vocab_size = vocab,
          .n_positions = kShortTokens,
          .n_embd = 16,
          .n_layer = 1,
          .n_head = 4,
          .tie_word_embeddings = tied};
}

inline HybridTask ShortGpt2Task(int64_t vocab, bool tied = true) {
  return ShortTask([=] { return std::make_unique<nn::Gpt2>(ShortGpt2(vocab, tied)); }, vocab);
}

// The task's model, the same on every rank.
inline std::unique_ptr<nn::Module> Initialized(const HybridTask& task, const ContextPtr& context) {
  return Initialized(task, context, 3);
}

// Trains with a plugin, this rank's part of each batch, and returns whole weights.
inline Weights Train(const HybridTask& task, nn::Module& model, optim::Optimizer& optimizer,
                     Plugin& plugin, int data_rank, int data_size, const ContextPtr& context) {
  Booster booster(plugin);
  Boosted boosted = booster.boost(model, optimizer, {.criterion = task.criterion});
  const int64_t count = task.batch / data_size, first = data_rank * count;
  for (int64_t step = 0; step < task.steps; ++step) {
    booster.backward(
        boosted.criterion(boosted.model(task.tokens(step, first, count, context, false)),
                          task.tokens(step, first, count, context, true)),
        boosted.optimizer);
    boosted.optimizer.step();
    boosted.optimizer.zero_grad();
  }
  Weights weights;
  const auto* hybrid = dynamic_cast<const HybridParallelPlugin*>(&plugin);
  for (const auto& p : model.Parameters()) {
    weights[p->name()] =
        (hybrid != nullptr ? hybrid->WholeValue(*p) : p->data()).ToVector<double>();
  }
  return weights;
}

// Ranks end with the weights of one rank with the whole batch.
inline void ExpectEqualRuns(const HybridTask& task, int num_ranks,
                            const HybridParallelOptions& options) {
  if (TooManyRanks(num_ranks)) GTEST_SKIP() << "needs " << num_ranks << " processes";
  const TrainingOptions training{.precision = Precision::kF64, .max_norm = task.max_norm};
  const ContextPtr context = CpuContext();
  const auto model = Initialized(task, context);
  const Weights start = WeightsOf(*model);
  const auto optimizer = OptimizerOf(task, *model);
  SingleRankPlugin single(training);
  const Weights want = Train(task, *model, *optimizer, single, 0, 1, context);
  std::vector<Weights> results(static_cast<size_t>(num_ranks));
  RunRanks(num_ranks, [&](comm::World& world) {
    const auto model = Initialized(task, world.context());
    const auto optimizer = OptimizerOf(task, *model);
    HybridParallelPlugin plugin(world, training, options);
    results[static_cast<size_t>(world.rank())] = Train(
        task, *model, *optimizer, plugin, plugin.data_rank(), plugin.data_size(), world.context());
  });
  ShareByRank(results);
  for (const Weights& other : results) EXPECT_EQ(other, results[0]) << "ranks differ";
  ASSERT_EQ(results[0].size(), want.size());
  const auto worst = WorstUpdateError(start, want, results[0]);
  EXPECT_LE(worst.error, 1e-9) << worst.name << ", " << num_ranks << " ranks, tp "
                               << options.tp_size << ", zero " << options.stage << ", "
                               << task.optimizer;
}

}  // namespace apogee::testing

#endif  // APOGEE_TESTS_PLUGINS_HYBRID_HYBRID_SHORT_RUN_H_
