// SPDX-License-Identifier: Apache-2.0

// A pipeline computes what one rank computes, under every schedule and with every other axis. (The
// matrix runs the products with every optimizer.)
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/booster/booster.h"
#include "apogee/nn/losses.h"
#include "apogee/nn/parallel/tensor_parallel.h"
#include "apogee/optim/registry.h"
#include "apogee/plugins/hybrid_parallel.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tests/support/exactness.h"
#include "apogee/tests/support/run_ranks.h"

namespace apogee {
namespace pipeline_test {

using pipeline::ScheduleKind;
using testing::RunRanks;
using testing::Weights;
using testing::WeightsOf;
using testing::WorstUpdateError;

constexpr int64_t kBatch = 24, kTokens = 5, kVocab = 19, kSteps = 6;

struct Task {
  std::function<std::unique_ptr<nn::Module>()> make;
  std::string optimizer = "adamw";
  optim::OptionMap options = {{"lr", "0.01"}, {"weight_decay", "0.1"}};
  double max_norm = 0.5;
  std::vector<std::string> frozen = {};
};

Task Gpt2Task(double dropout = 0, bool tied = true, bool recompute = false) {
  return {.make = [=] {
    return std::make_unique<nn::Gpt2>(nn::Gpt2Config{.vocab_size = kVocab,
                                                     .n_positions = kTokens,
                                                     .n_embd = 16,
                                                     .n_layer = 6,
                                                     .n_head = 4,
                                                     .dropout = dropout,
                                                     .tie_word_embeddings = tied,
                                                     .recompute = recompute});
  }};
}

Task LlamaTask() {
  return {.make = [] {
    return std::make_unique<nn::Llama>(nn::LlamaConfig{.vocab_size = kVocab,
                                                       .hidden_size = 16,
                                                       .intermediate_size = 20,
                                                       .num_hidden_layers = 6,
                                                       .num_attention_heads = 4,
                                                       .num_key_value_heads = 2,
                                                       .max_position_embeddings = 8,
                                                       .tie_word_embeddings = true});
  }};
}

data::Batch BatchOf(int64_t step, int64_t first, int64_t count, const ContextPtr& context) {
  std::vector<int64_t> inputs, targets;
  for (int64_t sample = first; sample < first + count; ++sample) {
    for (int64_t t = 0; t < kTokens; ++t) {
      const auto token = [&](int64_t at) {
        const auto place = static_cast<uint64_t>((step * kBatch + sample) * 16 + at);
        return static_cast<int64_t>(Philox(MakeKey(5, "tokens"), place)[0] % kVocab);
      };
      inputs.push_back(token(t));
      targets.push_back(token(t + 1));
    }
  }
  return {Tensor::FromVector<int64_t>(inputs, {count, kTokens}, context),
          Tensor::FromVector<int64_t>(targets, {count, kTokens}, context)};
}

// A key's bias has gradient zero: what remains is rounding, which normalising optimizers blow up.
std::unique_ptr<nn::Module> Initialized(const Task& task, const ContextPtr& context,
                                        uint64_t seed) {
  std::unique_ptr<nn::Module> model = task.make();
  model->Initialize(context, {.seed = seed, .dtype = DType::kF64});
  for (const auto& p : model->Parameters()) {
    const bool frozen = std::ranges::find(task.frozen, p->name()) != task.frozen.end();
    if (frozen || p->name().ends_with("c_attn.bias")) p->set_requires_grad(false);
  }
  return model;
}

std::unique_ptr<optim::Optimizer> Make(const Task& task, const nn::Module& model) {
  return ValueOrThrow(optim::MakeOptimizer(task.optimizer, model.Parameters(), task.options));
}

// By step.
struct Losses {
  std::vector<double> training, evaluation;
};

Weights PlainRun(const Task& task, Weights& start, Losses& losses) {
  const ContextPtr context = CpuContext();
  const auto model = Initialized(task, context, 11);
  const auto optimizer = Make(task, *model);
  optimizer->set_step_options({.max_norm = task.max_norm});
  start = WeightsOf(*model);
  for (int64_t step = 0; step < kSteps; ++step) {
    const data::Batch batch = BatchOf(step, 0, kBatch, context);
    const Tensor loss = nn::CrossEntropyLoss()((*model)(batch.inputs), batch.targets);
    losses.training.push_back(loss.Item());
    autograd::Backward(loss);
    optimizer->step();
    optimizer->zero_grad();
    model->Train(false);
    losses.evaluation.push_back(
        nn::CrossEntropyLoss()((*model)(batch.inputs), batch.targets).Item());
    model->Train();
  }
  return WeightsOf(*model);
}

// `accumulate` calls of execute_pipeline per step, all but the last under no_sync if `hold`.
struct Window {
  int64_t accumulate = 1;
  bool hold = true;
};

void ShareLosses(std::vector<Losses>& all) {
  std::vector<std::vector<double>> training, evaluation;
  for (const Losses& losses : all) {
    training.push_back(losses.training);
    evaluation.push_back(losses.evaluation);
  }
  testing::ShareByRank(training);
  testing::ShareByRank(evaluation);
  for (size_t r = 0; r < all.size(); ++r) all[r] = {training[r], evaluation[r]};
}

Weights BoostedRun(const Task& task, int num_ranks, const HybridParallelOptions& options,
                   Losses& losses, const Window& window) {
  std::vector<Weights> results(static_cast<size_t>(num_ranks));
  std::vector<Losses> all(static_cast<size_t>(num_ranks));
  int copies = 1;
  const TrainingOptions training{
      .precision = Precision::kF64, .max_norm = task.max_norm, .bucket_bytes = 3000};
  RunRanks(num_ranks, [&](comm::World& world) {
    const auto model = Initialized(task, world.context(), world.rank() == 0 ? 11 : 99);
    const auto optimizer = Make(task, *model);
    HybridParallelPlugin plugin(world, training, options);
    Booster booster(plugin);
    const auto scale = 1.0 / static_cast<double>(window.accumulate);
    Boosted boosted = booster.boost(*model, *optimizer, {.criterion = nn::CrossEntropyLoss()});
    const Criterion scaled = [&](const Tensor& output, const Tensor& target) {
      return autograd::Scale(boosted.criterion(output, target), scale);
    };
    const int64_t count = kBatch / plugin.data_size() / window.accumulate;
    const auto rank = static_cast<size_t>(world.rank());
    if (rank == 0) copies = plugin.data_size();
    for (int64_t step = 0; step < kSteps; ++step) {
      double loss = 0;
      for (int64_t i = 0; i < window.accumulate; ++i) {
        const int64_t first = (plugin.data_rank() * window.accumulate + i) * count;
        const data::Batch batch = BatchOf(step, first, count, world.context());
        const bool hold = window.hold && i + 1 < window.accumulate;
        const auto handle = hold ? booster.no_sync() : nullptr;
        loss += booster.execute_pipeline(batch, *model, scaled, &boosted.optimizer).loss.Item();
      }
      boosted.optimizer.step();
      boosted.optimizer.zero_grad();
      all[rank].training.push_back(loss);
      model->Train(false);
      const data::Batch batch = BatchOf(step, 0, kBatch, world.context());
      all[rank].evaluation.push_back(
          booster.execute_pipeline(batch, *model, boosted.criterion, nullptr).loss.Item());
      model->Train();
    }
    for (const auto& p : model->Parameters()) {
      results[rank][p->name()] = plugin.WholeValue(*p).ToVector<double>();
    }
  });
  testing::ShareByRank(results);
  for (const Weights& other : results) EXPECT_EQ(other, results[0]) << "ranks differ";
  ShareLosses(all);
  losses.evaluation = all[0].evaluation;
  losses.training.assign(kSteps, 0);
  for (const Losses& rank : all) {
    EXPECT_EQ(rank.evaluation, all[0].evaluation);
    for (size_t i = 0; i < kSteps; ++i) {
      losses.training[i] += rank.training[i] / num_ranks;
    }
  }
  return results[0];
}

void ExpectEqualRuns(const Task& task, int num_ranks, const HybridParallelOptions& options,
                     const Window& window = {}) {
  if (testing::TooManyRanks(num_ranks)) GTEST_SKIP() << "needs " << num_ranks << " processes";
  const std::string what = std::string(Name(options.schedule)) + ", " + std::to_string(num_ranks) +
                           " ranks, pp " + std::to_string(options.pp_size) + ", tp " +
                           std::to_string(options.tp_size) + ", zero " +
                           std::to_string(options.stage) + ", " + task.optimizer;
  Weights start;
  Losses plain, boosted;
  const Weights want = PlainRun(task, start, plain);
  const Weights got = BoostedRun(task, num_ranks, options, boosted, window);
  ASSERT_EQ(got.size(), want.size());
  const auto worst = WorstUpdateError(start, want, got);
  EXPECT_LE(worst.error, 1e-9) << worst.name << ": " << what;
  EXPECT_THAT(boosted.training, ::testing::Pointwise(::testing::DoubleNear(1e-9), plain.training))
      << what;
  EXPECT_THAT(boosted.evaluation,
              ::testing::Pointwise(::testing::DoubleNear(1e-9), plain.evaluation))
      << what;
}

HybridParallelOptions Options(ScheduleKind schedule, int pp, int micros) {
  return {.pp_size = pp, .schedule = schedule, .num_microbatches = micros};
}

constexpr ScheduleKind kSchedules[] = {ScheduleKind::k1F1B, ScheduleKind::kInterleaved,
                                       ScheduleKind::kZbv};

TEST(PipelineTest, EverySchedule) {
  for (const ScheduleKind schedule : kSchedules) {
    for (const int pp : {2, 3, 4}) ExpectEqualRuns(Gpt2Task(), pp, Options(schedule, pp, 6));
  }
}

TEST(PipelineTest, UntiedAndRotary) {
  for (const ScheduleKind schedule : kSchedules) {
    ExpectEqualRuns(LlamaTask(), 2, Options(schedule, 2, 4));
    ExpectEqualRuns(Gpt2Task(0, /*tied=*/false), 2, Options(schedule, 2, 4));
  }
}

TEST(PipelineTest, ZeroAndDataParallel) {
  for (const ScheduleKind schedule : kSchedules) {
    for (const int zero : {0, 1, 2}) {
      HybridParallelOptions options = Options(schedule, 2, 3);
      options.stage = zero;
      ExpectEqualRuns(Gpt2Task(), 4, options);
    }
  }
}

TEST(PipelineTest, TensorParallel) {
  for (const ScheduleKind schedule : kSchedules) {
    for (const int zero : {0, 2}) {
      HybridParallelOptions options = Options(schedule, 2, 2);
      options.tp_size = 2;
      options.stage = zero;
      ExpectEqualRuns(zero == 0 ? LlamaTask() : Gpt2Task(), 8, options);
    }
  }
}

TEST(PipelineTest, StatisticsOfWholeTensors) {
  for (const std::string optimizer : {"adafactor", "came", "lamb", "galore_adamw", "scaled_adam"}) {
    Task task = Gpt2Task();
    task.optimizer = optimizer;
    task.options = {};
    if (optimizer != "adafactor") task.options["lr"] = "0.01";
    if (optimizer == "galore_adamw") {
      task.options["rank"] = "4";
      task.options["update_proj_gap"] = "3";
    }
    task.max_norm = 0;
    for (const int zero : {0, 1}) {
      HybridParallelOptions options = Options(ScheduleKind::kZbv, 2, 2);
      options.stage = zero;
      ExpectEqualRuns(task, 4, options);
    }
  }
}

// Micro-batches of two sizes.
TEST(PipelineTest, BatchesThatDoNotDivide) {
  for (const ScheduleKind schedule : kSchedules)
    ExpectEqualRuns(Gpt2Task(), 3, Options(schedule, 3, 7));
}

TEST(PipelineTest, DropoutMasksAreThoseOfOneForward) {
  for (const ScheduleKind schedule : kSchedules) {
    for (const bool recompute : {false, true}) {
      // On two ranks evaluation, which draws nothing, has micro-batches of the same shapes.
      for (const int num_ranks : {2, 4}) {
        ExpectEqualRuns(Gpt2Task(0.3, true, recompute), num_ranks, Options(schedule, 2, 5));
      }
    }
  }
}

TEST(PipelineTest, Accumulation) {
  for (const ScheduleKind schedule : kSchedules) {
    for (const int zero : {0, 2}) {
      for (const bool hold : {false, true}) {
        HybridParallelOptions options = Options(schedule, 2, 2);
        options.stage = zero;
        ExpectEqualRuns(Gpt2Task(), 4, options, {.accumulate = 3, .hold = hold});
      }
    }
  }
}

TEST(PipelineTest, FrozenEmbeddingsAndWholeStages) {
  Task task = Gpt2Task(0, /*tied=*/false);
  task.frozen = {"transformer.wte.weight", "transformer.wpe.weight"};
  for (const ScheduleKind schedule : kSchedules) {
    HybridParallelOptions options = Options(schedule, 2, 2);
    ExpectEqualRuns(task, 2, options);
    // A first stage in which nothing is trained.
    options.pieces_per_part =
        schedule == kSchedules[0] ? std::vector<int>{1, 7} : std::vector<int>{1, 3, 2, 2};
    ExpectEqualRuns(task, 2, options);
  }
}

// The loss scale at the end, and how many steps overflowed, of training in fp16.
std::pair<double, int64_t> ScaleAndSkips(const Task& task, int num_ranks,
                                         const HybridParallelOptions& options) {
  std::vector<double> scales(static_cast<size_t>(num_ranks));
  std::vector<int64_t> skips(static_cast<size_t>(num_ranks));
  const TrainingOptions training{.precision = Precision::kFp16,
                                 .loss_scaler = {.initial_scale = 0x1p22, .growth_interval = 2}};
  RunRanks(num_ranks, [&](comm::World& world) {
    const auto model = task.make();
    model->Initialize(world.context(), {.seed = 11});
    const auto optimizer = Make(task, *model);
    HybridParallelPlugin plugin(world, training, options);
    Booster booster(plugin);
    Boosted boosted = booster.boost(*model, *optimizer, {.criterion = nn::CrossEntropyLoss()});
    for (int64_t step = 0; step < 12; ++step) {
      booster.execute_pipeline(BatchOf(step, 0, kBatch, world.context()), *model, boosted.criterion,
                               &boosted.optimizer);
      boosted.optimizer.step();
      boosted.optimizer.zero_grad();
    }
    scales[static_cast<size_t>(world.rank())] = plugin.loss_scale();
    skips[static_cast<size_t>(world.rank())] = boosted.optimizer.num_skipped_steps();
  });
  testing::ShareByRank(scales);
  testing::ShareByRank(skips);
  EXPECT_EQ(scales, std::vector<double>(scales.size(), scales[0]));
  EXPECT_EQ(skips, std::vector<int64_t>(skips.size(), skips[0]));
  return {scales[0], skips[0]};
}

TEST(PipelineTest, EveryStageSkipsWhenOneOverflows) {
  const auto want = ScaleAndSkips(Gpt2Task(), 1, {});
  EXPECT_GT(want.second, 1);
  EXPECT_LT(want.second, 11);
  for (const ScheduleKind schedule : kSchedules) {
    HybridParallelOptions options = Options(schedule, 2, 4);
    EXPECT_EQ(ScaleAndSkips(Gpt2Task(), 2, options), want);
    options.tp_size = 2;
    EXPECT_EQ(ScaleAndSkips(Gpt2Task(), 4, options), want);
  }
}

}  // namespace pipeline_test
}  // namespace apogee
