// SPDX-License-Identifier: Apache-2.0

// Sequences that ranks share compute what one rank computes, whole training runs in f64: every
// mode, with and without tensor parallelism, data parallelism and ZeRO. (The matrix runs the
// products with every optimizer; here: masks, ignored targets, recompute, other criteria, kept
// gradients.)
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/functions/loss.h"
#include "apogee/booster/booster.h"
#include "apogee/nn/losses.h"
#include "apogee/nn/parallel/sequence_parallel.h"
#include "apogee/optim/registry.h"
#include "apogee/plugins/hybrid_parallel.h"
#include "apogee/plugins/single_rank.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tests/plugins/hybrid/hybrid_run.h"
#include "apogee/tests/support/exactness.h"
#include "apogee/tests/support/files/shared_temp_dir.h"
#include "apogee/tests/support/files/temp_dir.h"
#include "apogee/tests/support/run_ranks.h"

namespace apogee {
namespace hybrid_sequence_test {

using nn::parallel::SequenceMode;
using enum SequenceMode;
using testing::BatchCut;
using testing::BoostedRun;
using testing::HybridTask;
using testing::Initialized;
using testing::OptimizerOf;
using testing::PlainRun;
using testing::RunRanks;
using testing::Weights;
using testing::WeightsOf;
using testing::WorstUpdateError;

constexpr int64_t kBatch = 4, kTokens = 16, kVocab = 19, kSteps = 6, kIgnored = -7;

// Sequences of `tokens`; `ignore`: some targets do not count.
auto TokensOf(int64_t tokens, bool ignore = true) {
  return [=](int64_t step, int64_t first, int64_t count, const ContextPtr& context, bool targets) {
    std::vector<int64_t> values;
    for (int64_t sample = first; sample < first + count; ++sample) {
      for (int64_t t = 0; t < tokens; ++t) {
        const auto place = static_cast<uint64_t>((step * kBatch + sample) * 64 + t + targets);
        const uint32_t word = Philox(MakeKey(5, "tokens"), place)[0];
        // The first samples have targets near their end only: some ranks have none.
        const bool ignored = targets && ignore && (sample % 2 == 0 ? t < 13 : word % 3 == 0);
        values.push_back(ignored ? kIgnored : static_cast<int64_t>(word % kVocab));
      }
    }
    return Tensor::FromVector<int64_t>(values, {count, tokens}, context);
  };
}

HybridTask TaskOf(std::function<std::unique_ptr<nn::Module>()> make) {
  return {.make = std::move(make),
          .tokens = TokensOf(kTokens),
          .batch = kBatch,
          .steps = kSteps,
          .criterion = nn::CrossEntropyLoss{.ignore_index = kIgnored}};
}

int DataSize(int num_ranks, const HybridParallelOptions& options) {
  const int sp = options.sp_mode == kSplitGather ? 1 : options.sp_size;
  return num_ranks / sp / options.tp_size;
}

void ExpectEqualSequenceRuns(const HybridTask& task, int num_ranks,
                             const HybridParallelOptions& options, BatchCut cut = {}) {
  if (testing::TooManyRanks(num_ranks)) GTEST_SKIP() << "needs " << num_ranks << " processes";
  cut.data_size = DataSize(num_ranks, options);
  Weights start;
  const Weights want = PlainRun(task, cut, start);
  const Weights got = BoostedRun(task, num_ranks, options, cut);
  ASSERT_EQ(got.size(), want.size());
  const auto worst = WorstUpdateError(start, want, got);
  EXPECT_LE(worst.error, 1e-9) << worst.name << ", " << task.optimizer << ", " << num_ranks
                               << " ranks, tp " << options.tp_size << ", sp " << options.sp_size
                               << " " << Name(options.sp_mode) << ", zero " << options.stage;
}

HybridTask Gpt2Task(double dropout = 0, bool recompute = false, bool tied = true) {
  return TaskOf([=] {
    return std::make_unique<nn::Gpt2>(nn::Gpt2Config{.vocab_size = kVocab,
                                                     .n_positions = 24,
                                                     .n_embd = 24,
                                                     .n_layer = 2,
                                                     .n_head = 12,
                                                     .dropout = dropout,
                                                     .tie_word_embeddings = tied,
                                                     .recompute = recompute});
  });
}

HybridTask LlamaTask(bool recompute = false) {
  return TaskOf([=] {
    return std::make_unique<nn::Llama>(nn::LlamaConfig{.vocab_size = kVocab,
                                                       .hidden_size = 32,
                                                       .intermediate_size = 24,
                                                       .num_hidden_layers = 2,
                                                       .num_attention_heads = 8,
                                                       .num_key_value_heads = 4,
                                                       .max_position_embeddings = 24,
                                                       .recompute = recompute});
  });
}

// What ranks a test runs: products of the axes.
struct Ranks {
  int count, tp, sp;
  SequenceMode mode;
};
constexpr Ranks kRanks[] = {
    {2, 2, 1, kSplitGather},   {4, 4, 4, kSplitGather},   {4, 2, 2, kSplitGather},
    {2, 1, 2, kAllToAll},      {4, 1, 4, kAllToAll},      {4, 1, 2, kAllToAll},
    {8, 2, 2, kAllToAll},      {2, 1, 2, kRingAttention}, {4, 1, 4, kRingAttention},
    {4, 1, 2, kRingAttention}, {8, 2, 2, kRingAttention}, {8, 2, 4, kRingAttention},
};

HybridParallelOptions OptionsOf(const Ranks& ranks, int zero) {
  return {.tp_size = ranks.tp, .sp_size = ranks.sp, .sp_mode = ranks.mode, .stage = zero};
}

TEST(HybridSequenceTest, Gpt2EqualsOneRank) {
  for (const Ranks& ranks : kRanks) {
    for (const int zero : {0, 1, 2, 3}) {
      ExpectEqualSequenceRuns(Gpt2Task(), ranks.count, OptionsOf(ranks, zero));
    }
  }
}

TEST(HybridSequenceTest, LlamaEqualsOneRank) {
  for (const Ranks& ranks : kRanks) {
    for (const int zero : {0, 2, 3}) {
      ExpectEqualSequenceRuns(LlamaTask(), ranks.count, OptionsOf(ranks, zero));
    }
  }
}

TEST(HybridSequenceTest, ThreeRanks) {
  HybridTask task = Gpt2Task();
  task.tokens = TokensOf(18);
  ExpectEqualSequenceRuns(task, 3, {.sp_size = 3, .sp_mode = kRingAttention});
  ExpectEqualSequenceRuns(task, 3, {.sp_size = 3, .sp_mode = kAllToAll, .stage = 2});
  ExpectEqualSequenceRuns(task, 3, {.tp_size = 3, .sp_mode = kSplitGather, .stage = 1});
  ExpectEqualSequenceRuns(task, 6, {.sp_size = 3, .sp_mode = kRingAttention, .stage = 1});
}

TEST(HybridSequenceTest, EveryKindOfOptimizer) {
  for (const char* optimizer : {"sgd", "lion", "lars", "lamb", "adafactor", "came", "scaled_adam",
                                "galore_adamw", "lomo", "adalomo", "adamw8bit"}) {
    HybridTask task = Gpt2Task();
    task.optimizer = optimizer;
    const std::string name = optimizer;
    if (name == "lomo" || name == "adalomo") task.max_norm = 0;
    if (name == "adafactor") task.options["relative_step"] = "false";
    if (name == "galore_adamw") task.options = {{"lr", "0.01"}, {"rank", "2"}};
    if (name == "adamw8bit") task.options = {{"lr", "0.01"}, {"min_8bit_size", "0"}};
    ExpectEqualSequenceRuns(task, 4, {.sp_size = 2, .sp_mode = kRingAttention});
    ExpectEqualSequenceRuns(task, 2, {.tp_size = 2, .sp_mode = kSplitGather});
    if (name == "lomo" || name == "adalomo") continue;  // take no means of shards
    ExpectEqualSequenceRuns(task, 4, {.tp_size = 2, .sp_mode = kSplitGather, .stage = 2});
    ExpectEqualSequenceRuns(task, 4, {.sp_size = 2, .sp_mode = kAllToAll, .stage = 2});
  }
}

TEST(HybridSequenceTest, MicroBatchesAddUp) {
  for (const Ranks& ranks : kRanks) {
    if (ranks.count > 4) continue;
    for (const bool no_sync : {false, true}) {
      ExpectEqualSequenceRuns(Gpt2Task(), ranks.count, OptionsOf(ranks, no_sync ? 0 : 1),
                              {.accumulate = 2, .no_sync = no_sync});
    }
  }
}

// What a loop adds to after a step are the addends again, not their sum.
TEST(HybridSequenceTest, GradientsMayStayAfterAStep) {
  for (const int zero : {0, 1, 2}) {
    ExpectEqualSequenceRuns(Gpt2Task(), 4, {.tp_size = 2, .sp_mode = kSplitGather, .stage = zero},
                            {.keep = true});
    ExpectEqualSequenceRuns(Gpt2Task(), 2, {.sp_size = 2, .sp_mode = kRingAttention, .stage = zero},
                            {.keep = true});
  }
}

// Masks are those of one rank, which draws them for whole sequences; a second time in backward.
TEST(HybridSequenceTest, MasksAreThoseOfOneRank) {
  const auto expect_equal = [](const Ranks& ranks) {
    if (testing::TooManyRanks(ranks.count)) GTEST_SKIP() << "needs " << ranks.count << " processes";
    HybridTask task = Gpt2Task(0.2, /*recompute=*/ranks.count == 4);
    // One backward per step: a plain run of several would draw other masks.
    task.tokens = TokensOf(kTokens, /*ignore=*/false);
    const HybridParallelOptions options = OptionsOf(ranks, 1);
    Weights start;
    const Weights want = PlainRun(task, {}, start);
    const Weights got =
        BoostedRun(task, ranks.count, options, {.data_size = DataSize(ranks.count, options)});
    EXPECT_LE(WorstUpdateError(start, want, got).error, 1e-9)
        << Name(ranks.mode) << " " << ranks.count << " " << ranks.tp << " " << ranks.sp;
  };
  for (const Ranks& ranks : kRanks) expect_equal(ranks);
}

TEST(HybridSequenceTest, RecomputedBlocks) {
  for (const Ranks& ranks : kRanks) {
    if (ranks.count == 4) ExpectEqualSequenceRuns(LlamaTask(true), 4, OptionsOf(ranks, 3));
  }
}

// Any function of whole logits, which is what criteria that the plugin does not know get.
TEST(HybridSequenceTest, OtherCriteriaGetWholeLogits) {
  HybridTask task = Gpt2Task();
  const auto half = [](const Tensor& logits, const Tensor& targets) {
    EXPECT_EQ(logits.size(1), kTokens);
    EXPECT_EQ(logits.size(2), kVocab);
    return autograd::Scale(autograd::CrossEntropy(logits, targets, kIgnored), 0.5);
  };
  task.criterion = nn::MeanLoss{
      .mean = half, .count = [](const Tensor& t) { return nn::CountTargets(t, kIgnored); }};
  for (const Ranks& ranks : kRanks) ExpectEqualSequenceRuns(task, ranks.count, OptionsOf(ranks, 2));
}

// A model around the language model, whose own parameters see whole sequences.
class Wrapped : public nn::Module {
 public:
  explicit Wrapped(std::shared_ptr<nn::Module> lm)
      : lm_(Register("lm", std::move(lm))),
        bias_(RegisterParameter("bias", {kVocab}, nn::Init::Normal(0, 1))) {}
  Tensor Forward(const Tensor& tokens) override {
    return autograd::Add((*lm_)(tokens), bias_->value());
  }

 private:
  std::shared_ptr<nn::Module> lm_;
  autograd::ParameterPtr bias_;
};

TEST(HybridSequenceTest, AModelInsideAnother) {
  HybridTask task = Gpt2Task();
  task.make = [inner = task.make] { return std::make_unique<Wrapped>(inner()); };
  for (const Ranks& ranks : kRanks) ExpectEqualSequenceRuns(task, ranks.count, OptionsOf(ranks, 0));
}

// The loss and, in evaluation, the logits are those of one rank.
TEST(HybridSequenceTest, LossAndEvaluation) {
  const HybridTask task = LlamaTask();
  const ContextPtr context = CpuContext();
  const auto plain = Initialized(task, context, 11);
  const Tensor want = (*plain)(task.tokens(0, 0, 2, context, false));
  const double want_loss = task.criterion(want, task.tokens(0, 0, 2, context, true)).Item();
  for (const Ranks& ranks : kRanks) {
    RunRanks(ranks.count, [&](comm::World& world) {
      const auto model = Initialized(task, world.context(), 11);
      const auto optimizer = OptimizerOf(task, *model);
      HybridParallelPlugin plugin(world, {.precision = Precision::kF64}, OptionsOf(ranks, 0));
      Booster booster(plugin);
      Boosted boosted = booster.boost(*model, *optimizer, {.criterion = task.criterion});
      const Tensor inputs = task.tokens(0, 0, 2, world.context(), false);
      const Tensor targets = task.tokens(0, 0, 2, world.context(), true);
      const Tensor own = boosted.model(inputs);
      const bool gathered = plugin.sequence_parallel()->mode() == kSplitGather;
      EXPECT_EQ(own.size(1), gathered ? kTokens : kTokens / ranks.sp);
      EXPECT_NEAR(boosted.criterion(own, targets).Item(), want_loss, 1e-13);
      boosted.model.Train(false);
      const Tensor logits = boosted.model(inputs);
      ASSERT_EQ(logits.shape(), want.shape());
      const std::vector<double> got = logits.ToVector<double>(), whole = want.ToVector<double>();
      for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], whole[i], 1e-13);
      EXPECT_NEAR(boosted.criterion(logits, targets).Item(), want_loss, 1e-13);
    });
  }
}

// One packed all-reduce per step carries what is partial, regardless of the number of layers.
TEST(HybridSequenceTest, PartialGradientsAreSummedTogether) {
  const auto calls = [](int64_t layers) {
    int64_t result = 0;
    RunRanks(2, [&](comm::World& world) {
      nn::Gpt2 model(
          {.vocab_size = kVocab, .n_positions = 16, .n_embd = 8, .n_layer = layers, .n_head = 2});
      model.Initialize(world.context(), {.seed = 1});
      const auto optimizer =
          ValueOrThrow(optim::MakeOptimizer("sgd", model.Parameters(), {{"lr", "0.1"}}));
      HybridParallelPlugin plugin(world, {}, {.tp_size = 2, .sp_mode = kSplitGather});
      Booster booster(plugin);
      Boosted boosted = booster.boost(model, *optimizer, {.criterion = nn::CrossEntropyLoss()});
      const auto tokens = TokensOf(kTokens);
      for (int step = 0; step < 2; ++step) {
        const Tensor loss =
            boosted.criterion(boosted.model(tokens(step, 0, 2, world.context(), false)),
                              tokens(step + 1, 0, 2, world.context(), false));
        booster.backward(loss, boosted.optimizer);
        const comm::Group& tp = *plugin.mesh().group(comm::Axis::kTp);
        const comm::Traffic before = tp.traffic();
        boosted.optimizer.step();
        const comm::Traffic moved = tp.traffic() - before;
        boosted.optimizer.zero_grad();
        if (step == 0) continue;
        // LayerNorms, biases of row layers and positions, and a flag for each of them.
        const int64_t numel = layers * (4 * 8 + 2 * 8) + 2 * 8 + 16 * 8;
        const int64_t tensors = layers * 6 + 3;
        // And the statistics of every step, two f64 a parameter and five of the options' digest.
        const int64_t statistics = (12 * layers + 4) * 16 + 5 * 8;
        EXPECT_EQ(moved.bytes(comm::CollectiveKind::kAllReduce),
                  4 * (numel + tensors) + statistics);
        if (world.rank() == 0) result = moved.total_calls();
      }
    });
    testing::ShareFromFirst(result);
    return result;
  };
  EXPECT_EQ(calls(1), 2);
  EXPECT_EQ(calls(3), 2);
}

// Forward and backward move what hybrid_parallel.h says; layers share what is gathered.
TEST(HybridSequenceTest, ActivationTrafficOfSplitGather) {
  constexpr int64_t kLayers = 2, kWidth = 32, kSamples = 2;
  const HybridTask gpt2 = TaskOf([] {
    return std::make_unique<nn::Gpt2>(nn::Gpt2Config{.vocab_size = kVocab,
                                                     .n_positions = kTokens,
                                                     .n_embd = kWidth,
                                                     .n_layer = kLayers,
                                                     .n_head = 2});
  });
  for (const HybridTask& task : {gpt2, LlamaTask()}) {
    RunRanks(2, [&](comm::World& world) {
      const auto model = Initialized(task, world.context(), 1);
      const auto optimizer = OptimizerOf(task, *model);
      HybridParallelPlugin plugin(world, {.precision = Precision::kF64},
                                  {.tp_size = 2, .sp_mode = kSplitGather});
      Booster booster(plugin);
      Boosted boosted = booster.boost(*model, *optimizer, {.criterion = nn::CrossEntropyLoss()});
      const comm::Group& tp = *plugin.mesh().group(comm::Axis::kTp);
      const comm::Traffic before = tp.traffic();
      const Tensor tokens = task.tokens(0, 0, kSamples, world.context(), false);
      booster.backward(boosted.criterion(boosted.model(tokens), tokens), boosted.optimizer);
      const comm::Traffic moved = tp.traffic() - before;
      const int64_t hidden = kSamples * kTokens * kWidth * 8;
      EXPECT_EQ(moved.bytes(comm::CollectiveKind::kAllGather),
                kSamples * kTokens * 8 + 2 * (2 * kLayers + 1) * hidden);
      EXPECT_EQ(moved.bytes(comm::CollectiveKind::kReduceScatter), 2 * (2 * kLayers + 1) * hidden);
    });
  }
}

// What is saved under a mode goes on alone.
TEST(HybridSequenceTest, CheckpointsKnowNoSequences) {
  for (const Ranks& ranks : {kRanks[2], kRanks[5], kRanks[9]}) {
    const testing::SharedTempDir dir;
    const HybridTask task = Gpt2Task();
    Weights start;
    const Weights want = PlainRun(task, {}, start);
    // The mean over data-parallel ranks that all take the whole batch is one rank's.
    const auto step = [&](Boosted& boosted, Booster& booster, int64_t index,
                          const ContextPtr& context) {
      const Tensor loss = boosted.criterion(boosted.model(task.tokens(index, 0, 4, context, false)),
                                            task.tokens(index, 0, 4, context, true));
      booster.backward(loss, boosted.optimizer);
      boosted.optimizer.step();
      boosted.optimizer.zero_grad();
    };
    RunRanks(ranks.count, [&](comm::World& world) {
      const auto model = Initialized(task, world.context(), 11);
      const auto optimizer = OptimizerOf(task, *model);
      const TrainingOptions training{.precision = Precision::kF64, .max_norm = task.max_norm};
      HybridParallelPlugin plugin(world, training, OptionsOf(ranks, 1));
      Booster booster(plugin);
      Boosted boosted = booster.boost(*model, *optimizer, {.criterion = task.criterion});
      for (int64_t i = 0; i < 3; ++i) step(boosted, booster, i, world.context());
      ASSERT_TRUE(booster.save_training_state(dir / "run", {.step = 3}).ok());
    });
    const ContextPtr context = CpuContext();
    const auto model = Initialized(task, context, 12);
    const auto optimizer = OptimizerOf(task, *model);
    SingleRankPlugin plugin({.precision = Precision::kF64, .max_norm = task.max_norm});
    Booster booster(plugin);
    Boosted boosted = booster.boost(*model, *optimizer, {.criterion = task.criterion});
    ASSERT_TRUE(booster.resume(dir / "run").ok());
    for (int64_t i = 3; i < kSteps; ++i) step(boosted, booster, i, context);
    const auto worst = WorstUpdateError(start, want, WeightsOf(*model));
    EXPECT_LE(worst.error, 1e-9) << Name(ranks.mode) << " " << worst.name;
  }
}

}  // namespace hybrid_sequence_test
}  // namespace apogee
