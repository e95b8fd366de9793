// SPDX-License-Identifier: Apache-2.0

// The loss, and so the update, is that of one rank with the whole batch, however unevenly samples
// and targets that count are spread over ranks, micro-batches and pipeline stages.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/functions/loss.h"
#include "apogee/booster/booster.h"
#include "apogee/optim/registry.h"
#include "apogee/plugins/hybrid_parallel.h"
#include "apogee/plugins/single_rank.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tests/support/exactness.h"
#include "apogee/tests/support/run_ranks.h"

namespace apogee {
namespace uneven_targets_test {

using ::testing::HasSubstr;
using testing::RunRanks;
using testing::Weights;
using testing::WeightsOf;
using testing::WorstUpdateError;

constexpr int64_t kTokens = 4, kVocab = 19, kSteps = 4, kIgnored = -100;
constexpr double kTolerance = 1e-9;

// Of each rank's micro-batches: samples, and how many targets of each sample count.
struct Part {
  int64_t samples = 2;
  int64_t counted = kTokens;
};
// [data rank][micro-batch]
using Spread = std::vector<std::vector<Part>>;

data::Batch BatchOf(int64_t step, size_t rank, size_t micro, const Part& part,
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

Tensor Join(const std::vector<Tensor>& parts) {
  std::vector<int64_t> values;
  for (const Tensor& part : parts) {
    for (const int64_t value : part.ToVector<int64_t>()) values.push_back(value);
  }
  return Tensor::FromVector<int64_t>(
      values, {static_cast<int64_t>(values.size()) / kTokens, kTokens}, parts[0].context());
}

// Micro-batch `micro` of all ranks.
data::Batch GlobalBatch(int64_t step, const Spread& spread, size_t micro,
                        const ContextPtr& context) {
  std::vector<Tensor> inputs, targets;
  for (size_t rank = 0; rank < spread.size(); ++rank) {
    const data::Batch batch = BatchOf(step, rank, micro, spread[rank][micro], context);
    inputs.push_back(batch.inputs);
    targets.push_back(batch.targets);
  }
  return {Join(inputs), Join(targets)};
}

std::unique_ptr<nn::Gpt2> Model(const ContextPtr& context) {
  auto model = std::make_unique<nn::Gpt2>(nn::Gpt2Config{
      .vocab_size = kVocab, .n_positions = kTokens, .n_embd = 8, .n_layer = 2, .n_head = 2});
  model->Initialize(context, {.seed = 11, .dtype = DType::kF64});
  for (const auto& p : model->Parameters()) {
    // Its gradient is rounding, which AdamW blows up.
    if (p->name().ends_with("c_attn.bias")) p->set_requires_grad(false);
  }
  return model;
}

std::unique_ptr<optim::Optimizer> AdamW(const nn::Module& model) {
  return ValueOrThrow(
      optim::MakeOptimizer("adamw", model.Parameters(), {{"lr", "0.01"}, {"weight_decay", "0.1"}}));
}

struct Result {
  Weights start, end;
  std::vector<double> losses;  // of each step
};

// One rank, no booster. `over_window`: the mean over all targets of a step, else of micro-batches'
// means.
Result PlainRun(const Spread& spread, bool over_window, const Criterion& criterion) {
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

HybridParallelOptions Cut(int tp, int pp, int zero, const std::string& sp_mode = "") {
  HybridParallelOptions options{.tp_size = tp, .pp_size = pp, .zero_stage = zero};
  if (!sp_mode.empty()) options.sp_size = 2, options.sp_mode = sp_mode;
  if (pp > 1) options.num_microbatches = 2;
  return options;
}

std::vector<Case> Cases(int data_size) {
  const int n = data_size;
  return {
      {"ddp", n},
      {"zero1", n},
      {"zero2", n},
      {"gemini", n},
      {"tp2 zero0", 2 * n, [] { return Cut(2, 1, 0); }},
      {"tp2 zero3", 2 * n, [] { return Cut(2, 1, 3); }},
      {"all_to_all", 2 * n, [] { return Cut(1, 1, 1, "all_to_all"); }},
      {"pp2 zero0", 2 * n, [] { return Cut(1, 2, 0); }, true},
      {"pp2 zero2", 2 * n, [] { return Cut(1, 2, 2); }, true},
  };
}

std::unique_ptr<Plugin> MakePlugin(const Case& run, const comm::World& world) {
  if (run.hybrid) {
    HybridParallelOptions options = run.hybrid();
    options.precision = "f64";
    options.max_norm = 0.5;
    return std::make_unique<HybridParallelPlugin>(world, options);
  }
  if (run.name == "single") {
    return std::make_unique<SingleRankPlugin>(
        SingleRankOptions{.precision = "f64", .max_norm = 0.5});
  }
  if (run.name == "ddp") {
    return std::make_unique<DdpPlugin>(world.group(),
                                       DdpOptions{.precision = "f64", .max_norm = 0.5});
  }
  if (run.name == "gemini") {
    return std::make_unique<GeminiPlugin>(world.group(),
                                          GeminiOptions{.precision = "f64", .max_norm = 0.5});
  }
  return std::make_unique<LowLevelZeroPlugin>(
      world.group(),
      LowLevelZeroOptions{
          .stage = run.name == "zero1" ? 1 : 2, .precision = "f64", .max_norm = 0.5});
}

Tensor WholeValue(Plugin& plugin, const autograd::Parameter& parameter) {
  if (auto* hybrid = dynamic_cast<HybridParallelPlugin*>(&plugin)) {
    return hybrid->WholeValue(parameter);
  }
  if (auto* gemini = dynamic_cast<GeminiPlugin*>(&plugin)) return gemini->WholeValue(parameter);
  return parameter.data();
}

// Of this rank, in a step.
std::vector<data::Batch> BatchesOf(int64_t step, const Spread& spread, Plugin& plugin,
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
double RunStep(Booster& booster, Boosted& boosted, const Criterion& criterion, const Case& run,
               const std::vector<data::Batch>& batches, Loop loop) {
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

Result BoostedRun(const Case& run, const Spread& spread, Loop loop, const Criterion& criterion) {
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

void ExpectSame(const Result& want, const Result& got, const std::string& name) {
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

void ExpectExact(const Spread& spread, Loop loop = Loop::kMeanOfMicros,
                 const Criterion& criterion = nn::CrossEntropyLoss()) {
  const Result want = PlainRun(spread, loop == Loop::kWindow, criterion);
  for (const Case& run : Cases(static_cast<int>(spread.size()))) {
    ExpectSame(want, BoostedRun(run, spread, loop, criterion), run.name);
  }
}

TEST(UnevenTargetsTest, RanksWithDifferentNumbersOfTargets) { ExpectExact({{{2, 4}}, {{2, 1}}}); }

TEST(UnevenTargetsTest, ARankWithoutTargets) { ExpectExact({{{2, 3}}, {{2, 0}}}); }

TEST(UnevenTargetsTest, RanksWithDifferentNumbersOfSamples) { ExpectExact({{{3, 4}}, {{2, 4}}}); }

TEST(UnevenTargetsTest, MicroBatchesCountAlikeHoweverManyTargetsTheyHave) {
  ExpectExact({{{2, 4}, {2, 1}}, {{2, 2}, {2, 3}}});
}

TEST(UnevenTargetsTest, AWindowIsTheMeanOverAllItsTargets) {
  ExpectExact({{{2, 4}, {2, 1}}, {{2, 2}, {2, 0}}}, Loop::kWindow);
}

TEST(UnevenTargetsTest, AMicroBatchOfAWindowWithoutTargets) {
  ExpectExact({{{2, 4}, {2, 0}}, {{2, 1}, {2, 0}}}, Loop::kWindow);
}

TEST(UnevenTargetsTest, AWindowOnOneRank) {
  const Spread spread = {{{2, 4}, {2, 1}, {2, 0}}};
  const Criterion criterion = nn::CrossEntropyLoss();
  ExpectSame(PlainRun(spread, true, criterion),
             BoostedRun({"single", 1}, spread, Loop::kWindow, criterion), "single");
}

// The loss is NaN, as on one rank, and the gradient zero.
TEST(UnevenTargetsTest, NoTargetsAnywhere) { ExpectExact({{{2, 0}}, {{2, 0}}}); }

Tensor OwnLoss(const Tensor& output, const Tensor& targets) {
  return autograd::CrossEntropy(output, targets);
}

TEST(UnevenTargetsTest, ALossOfOnesOwnSaysHowManyTargetsCount) {
  ExpectExact(
      {{{2, 4}}, {{2, 1}}}, Loop::kMeanOfMicros,
      nn::MeanLoss{.mean = OwnLoss, .count = [](const Tensor& t) { return nn::CountTargets(t); }});
}

TEST(UnevenTargetsTest, AFunctionWeighsByItsTargets) {
  ExpectExact({{{3, 4}}, {{2, 4}}}, Loop::kMeanOfMicros, OwnLoss);
}

TEST(UnevenTargetsTest, EqualSharesKeepTheirBits) {
  const Spread spread = {{{2, 3}}, {{2, 3}}};
  for (const Case& run : Cases(2)) {
    if (run.hybrid) continue;  // cut logits and tokens need boosted.criterion
    SCOPED_TRACE(run.name);
    const Result raw = BoostedRun(run, spread, Loop::kRaw, nn::CrossEntropyLoss());
    const Result got = BoostedRun(run, spread, Loop::kMeanOfMicros, nn::CrossEntropyLoss());
    EXPECT_EQ(got.end, raw.end);
    EXPECT_EQ(got.losses, raw.losses);
  }
}

// The message of the error that every rank throws in `steps`.
std::string ErrorOf(const Case& run, const Spread& spread, Loop loop, const Criterion& criterion) {
  std::vector<std::string> messages(static_cast<size_t>(run.ranks));
  RunRanks(run.ranks, [&](comm::World& world) {
    const auto model = Model(world.context());
    const auto optimizer = AdamW(*model);
    const auto plugin = MakePlugin(run, world);
    Booster booster(*plugin);
    Boosted boosted = booster.boost(*model, *optimizer, {.criterion = criterion});
    const std::vector<data::Batch> batches = BatchesOf(0, spread, *plugin, world);
    const Weights before = WeightsOf(*model);
    try {
      RunStep(booster, boosted, loop == Loop::kRaw ? criterion : boosted.criterion, run, batches,
              loop);
    } catch (const Error& error) {
      messages[static_cast<size_t>(world.rank())] = error.what();
      EXPECT_EQ(WeightsOf(*model), before);
    }
  });
  for (const std::string& message : messages) EXPECT_EQ(message, messages[0]);
  return messages[0];
}

TEST(UnevenTargetsTest, ALossThatIsNotTheBoostedOneIsRefusedWhereRanksDiffer) {
  for (const std::string name : {"ddp", "zero1", "zero2"}) {
    SCOPED_TRACE(name);
    const Criterion criterion = nn::CrossEntropyLoss();
    EXPECT_THAT(ErrorOf({name, 2}, {{{3, 4}}, {{2, 4}}}, Loop::kRaw, criterion),
                HasSubstr("rank 0: 3 samples, 12 targets, rank 1: 2 samples, 8 targets"));
    EXPECT_THAT(ErrorOf({name, 2}, {{{2, 4}}, {{2, 1}}}, Loop::kRaw, criterion),
                HasSubstr("call the criterion that boost returned"));
    EXPECT_EQ(ErrorOf({name, 2}, {{{2, 4}}, {{2, 4}}}, Loop::kRaw, criterion), "");
  }
}

// Losses belong to their backward, in every order in which a loop makes them.
TEST(UnevenTargetsTest, SeveralLossesOfAStep) {
  RunRanks(2, [](comm::World& world) {
    const auto model = Model(world.context());
    const auto optimizer = AdamW(*model);
    DdpPlugin plugin(world.group(), {.precision = "f64"});
    Booster booster(plugin);
    const nn::CrossEntropyLoss criterion;
    Boosted boosted = booster.boost(*model, *optimizer, {.criterion = criterion});
    const data::Batch batch = BatchOf(0, 0, 0, {2, world.rank() == 0 ? 4 : 1}, world.context());
    const auto loss = [&](const Criterion& used) {
      return used(boosted.model(batch.inputs), batch.targets);
    };
    const Tensor first = loss(boosted.criterion), second = loss(boosted.criterion);
    booster.backward(first, boosted.optimizer);
    booster.backward(autograd::Scale(second, 0.5), boosted.optimizer);
    boosted.optimizer.step();
    boosted.optimizer.zero_grad();
    // One that is only looked at does not speak for the other.
    loss(boosted.criterion).Item();
    booster.backward(loss(criterion), boosted.optimizer);
    EXPECT_THROW(boosted.optimizer.step(), Error);
  });
}

TEST(UnevenTargetsTest, APipelinesCriterionKeepsItsTargets) {
  const Case pipeline{"pp2", 2, [] { return Cut(1, 2, 0); }, true};
  RunRanks(2, [&](comm::World& world) {
    const auto model = Model(world.context());
    const auto optimizer = AdamW(*model);
    const auto plugin = MakePlugin(pipeline, world);
    Booster booster(*plugin);
    Boosted boosted = booster.boost(*model, *optimizer, {.criterion = nn::CrossEntropyLoss()});
    const data::Batch batch = BatchOf(0, 0, 0, {4, 4}, world.context());
    const Criterion half = [&](const Tensor& output, const Tensor& targets) {
      std::vector<int64_t> less = targets.ToVector<int64_t>();
      for (size_t i = 0; i < less.size(); i += 2) less[i] = kIgnored;
      return boosted.criterion(
          output, Tensor::FromVector<int64_t>(less, targets.shape(), targets.context()));
    };
    try {
      booster.execute_pipeline(batch, boosted.model, half, &boosted.optimizer);
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      // The other stage hears that this one has failed.
      if (world.rank() == 0) return;
      EXPECT_THAT(error.what(), HasSubstr("has 8 targets that count, the criterion gave 4"));
    }
  });
}

TEST(UnevenTargetsTest, AFunctionThatMayIgnoreTargetsIsRefused) {
  EXPECT_THAT(ErrorOf({"ddp", 2}, {{{2, 4}}, {{2, 1}}}, Loop::kMeanOfMicros, OwnLoss),
              HasSubstr("give boost an nn::MeanLoss with a count"));
  // Whichever way it counts.
  EXPECT_EQ(ErrorOf({"ddp", 2}, {{{2, 3}}, {{2, 3}}}, Loop::kMeanOfMicros, OwnLoss), "");
}

TEST(UnevenTargetsTest, AWindowIsToldTheRightNumber) {
  RunRanks(2, [](comm::World& world) {
    const auto model = Model(world.context());
    const auto optimizer = AdamW(*model);
    DdpPlugin plugin(world.group(), {.precision = "f64"});
    Booster booster(plugin);
    Boosted boosted = booster.boost(*model, *optimizer, {.criterion = nn::CrossEntropyLoss()});
    const data::Batch batch = BatchOf(0, 0, 0, {2, 4}, world.context());
    const auto window = booster.accumulation_window(world.rank() == 0 ? 8 : 9);
    booster.backward(boosted.criterion(boosted.model(batch.inputs), batch.targets),
                     boosted.optimizer);
    try {
      boosted.optimizer.step();
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("rank 1: 9 announced, 8 seen"));
    }
    EXPECT_THROW((void)booster.accumulation_window(3), Error);
  });
}

TEST(UnevenTargetsTest, EvaluationOnOneRankAloneIsItsOwnMean) {
  RunRanks(2, [](comm::World& world) {
    const auto model = Model(world.context());
    const auto optimizer = AdamW(*model);
    DdpPlugin plugin(world.group(), {.precision = "f64"});
    Booster booster(plugin);
    Boosted boosted = booster.boost(*model, *optimizer, {.criterion = nn::CrossEntropyLoss()});
    if (world.rank() == 1) return;
    model->Train(false);
    const data::Batch batch = BatchOf(0, 0, 0, {2, 1}, world.context());
    const Tensor output = boosted.model(batch.inputs);
    EXPECT_EQ(boosted.criterion(output, batch.targets).Item(),
              nn::CrossEntropyLoss()(output, batch.targets).Item());
  });
}

}  // namespace uneven_targets_test
}  // namespace apogee
