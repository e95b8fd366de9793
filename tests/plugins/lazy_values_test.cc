// SPDX-License-Identifier: Apache-2.0

// A run from lazily made values is the run from Initialize, bit for bit, under every plugin, and
// rank 0's values win, whichever ranks have made theirs.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <tuple>

#include "apogee/booster/booster.h"
#include "apogee/nn/losses.h"
#include "apogee/nn/models/gpt2.h"
#include "apogee/optim/registry.h"
#include "apogee/plugins/ddp.h"
#include "apogee/plugins/gemini.h"
#include "apogee/plugins/hybrid_parallel.h"
#include "apogee/plugins/low_level_zero.h"
#include "apogee/plugins/single_rank.h"
#include "apogee/tests/support/files/temp_dir.h"
#include "apogee/tests/support/run_ranks.h"
#include "apogee/tests/support/runs/gemini_run.h"
#include "apogee/tests/support/runs/tiny_run.h"

namespace apogee {
namespace lazy_values_test {

using ::apogee::testing::TempDir;
using testing::kTinyBatch;
using testing::RunRanks;
using testing::TinyModel;
using testing::Weights;
using testing::WeightsOf;
using testing::WholeWeightsOf;

enum class Start { kEager, kLazy, kFirstRankLazy, kOthersLazy };
const std::vector<Start> kLazyStarts = {Start::kLazy, Start::kFirstRankLazy, Start::kOthersLazy};

struct RunSetup {
  std::string plugin = "gemini";
  int num_ranks = 2;
  Precision precision = Precision::kF32;
  DType dtype = DType::kF32;
  std::string optimizer = "adamw";
  Start start = Start::kEager;
  uint64_t seed = 11;  // of rank 0
  uint64_t other_seed = 99;
  bool is_auto = false;
  bool is_half_held = false;  // by the optimizer; the rest is another's
  int64_t steps = 3;
};

std::string Describe(const RunSetup& setup) {
  return setup.plugin + ", " + std::to_string(setup.num_ranks) + " ranks, " +
         Name(setup.precision) + " of " + DTypeName(setup.dtype) + ", " + setup.optimizer +
         ", start " + std::to_string(static_cast<int>(setup.start)) +
         (setup.is_auto ? ", auto" : "");
}

std::unique_ptr<Plugin> MakePlugin(const RunSetup& setup, const comm::World& world) {
  if (setup.plugin == "single") {
    return std::make_unique<SingleRankPlugin>(TrainingOptions{.precision = setup.precision});
  }
  if (setup.plugin == "ddp") {
    return std::make_unique<DdpPlugin>(world.group(),
                                       TrainingOptions{.precision = setup.precision});
  }
  if (setup.plugin == "hybrid") {
    return std::make_unique<HybridParallelPlugin>(world,
                                                  TrainingOptions{.precision = setup.precision},
                                                  HybridParallelOptions{.tp_size = 2, .stage = 1});
  }
  if (setup.plugin == "gemini") {
    GeminiOptions options;
    if (setup.is_auto) {
      options.placement.placement_policy = PlacementPolicy::kAuto;
      options.placement.device_budget_bytes = 100000;
    }
    return std::make_unique<GeminiPlugin>(
        world.group(), TrainingOptions{.precision = setup.precision, .bucket_bytes = 1000},
        options);
  }
  return std::make_unique<LowLevelZeroPlugin>(
      world.group(), TrainingOptions{.precision = setup.precision},
      LowLevelZeroOptions{.stage = setup.plugin == "zero1" ? 1 : 2});
}

// Hybrid parallelism needs a model that it has a plan of.
std::unique_ptr<nn::Module> MakeModel(const RunSetup& setup) {
  if (setup.plugin != "hybrid") return std::make_unique<TinyModel>(testing::TinyRunOptions{});
  return std::make_unique<nn::Gpt2>(nn::Gpt2Config{.vocab_size = testing::kTinyVocab,
                                                   .n_positions = 8,
                                                   .n_embd = 16,
                                                   .n_layer = 2,
                                                   .n_head = 4});
}

void InitializeAs(const RunSetup& setup, const comm::World& world, nn::Module& model) {
  const bool first = world.rank() == 0;
  const nn::InitOptions options{.seed = first ? setup.seed : setup.other_seed,
                                .dtype = setup.dtype};
  const bool lazy = setup.start == Start::kLazy ||
                    setup.start == (first ? Start::kFirstRankLazy : Start::kOthersLazy);
  if (lazy) {
    model.InitializeLazily(world.context(), options);
  } else {
    model.Initialize(world.context(), options);
  }
}

Weights WeightsAfter(const nn::Module& model, const Plugin& plugin) {
  const auto* gemini = dynamic_cast<const GeminiPlugin*>(&plugin);
  return gemini != nullptr ? WholeWeightsOf(model, *gemini) : WeightsOf(model);
}

void Steps(const RunSetup& setup, const comm::World& world, const Plugin& plugin, Boosted& boosted,
           Booster& booster) {
  // Ranks of a tensor-parallel group take the same samples.
  const auto* hybrid = dynamic_cast<const HybridParallelPlugin*>(&plugin);
  const int part = hybrid != nullptr ? hybrid->data_rank() : world.rank();
  const int64_t rows = kTinyBatch / (hybrid != nullptr ? hybrid->data_size() : world.size());
  for (int64_t step = 0; step < setup.steps; ++step) {
    const matrix::SampleRange range{.step = step, .first = part * rows, .count = rows};
    const Tensor logits = boosted.model(matrix::TinyTokens(world.context(), range, 0));
    const Tensor loss = boosted.criterion(logits, matrix::TinyTokens(world.context(), range, 1));
    booster.backward(loss, boosted.optimizer);
    boosted.optimizer.step();
    boosted.optimizer.zero_grad();
  }
}

// Runs after boost, before the steps, or after them.
using Extra = std::function<void(Booster&)>;

// What each rank has in the end.
std::vector<Weights> Train(const RunSetup& setup, const Extra& before = nullptr,
                           const Extra& after = nullptr) {
  std::vector<Weights> results(static_cast<size_t>(setup.num_ranks));
  RunRanks(setup.num_ranks, [&](comm::World& world) {
    const std::unique_ptr<nn::Module> model = MakeModel(setup);
    InitializeAs(setup, world, *model);
    std::vector<autograd::ParameterPtr> held = model->Parameters();
    if (setup.is_half_held) held.resize(held.size() / 2);
    const auto optimizer = ValueOrThrow(optim::MakeOptimizer(setup.optimizer, held));
    const std::unique_ptr<Plugin> plugin = MakePlugin(setup, world);
    Booster booster(*plugin);
    Boosted boosted = booster.boost(*model, *optimizer, {.criterion = nn::CrossEntropyLoss()});
    if (before) before(booster);
    Steps(setup, world, *plugin, boosted, booster);
    if (after) after(booster);
    results[static_cast<size_t>(world.rank())] = WeightsAfter(*model, *plugin);
  });
  return results;
}

void ExpectLazyRunsAreTheRun(RunSetup setup) {
  setup.start = Start::kEager;
  setup.other_seed = 11;
  const std::vector<Weights> want = Train(setup);
  setup.other_seed = 99;
  for (const Start start : kLazyStarts) {
    setup.start = start;
    EXPECT_TRUE(Train(setup) == want) << Describe(setup);
  }
}

TEST(LazyValuesTest, GeminiRunsAreTheRun) {
  for (const int num_ranks : {1, 2, 3, 4}) {
    for (const std::string optimizer : {"adamw", "adafactor"}) {
      for (const bool is_auto : {false, true}) {
        ExpectLazyRunsAreTheRun(
            {.num_ranks = num_ranks, .optimizer = optimizer, .is_auto = is_auto});
        ExpectLazyRunsAreTheRun({.num_ranks = num_ranks,
                                 .precision = Precision::kF64,
                                 .dtype = DType::kF64,
                                 .optimizer = optimizer,
                                 .is_auto = is_auto});
        // With masters from values before rounding, and from rounded ones.
        for (const DType dtype : {DType::kF32, DType::kBF16}) {
          ExpectLazyRunsAreTheRun({.num_ranks = num_ranks,
                                   .precision = Precision::kBf16,
                                   .dtype = dtype,
                                   .optimizer = optimizer,
                                   .is_auto = is_auto});
        }
      }
    }
  }
}

// Parameters that stay whole, for another optimizer, come from rank 0 too.
TEST(LazyValuesTest, UnheldParametersAreTheRuns) {
  for (const int num_ranks : {1, 3}) {
    for (const Precision precision : {Precision::kF32, Precision::kBf16, Precision::kFp16}) {
      ExpectLazyRunsAreTheRun(
          {.num_ranks = num_ranks, .precision = precision, .is_half_held = true});
      ExpectLazyRunsAreTheRun({.num_ranks = num_ranks, .precision = precision});
    }
  }
}

// Masters of bf16 weights keep what rounding drops; a run from rounded values is another.
TEST(LazyValuesTest, MastersComeFromValuesBeforeRounding) {
  RunSetup setup{.precision = Precision::kBf16, .start = Start::kLazy};
  const std::vector<Weights> want = Train(setup);
  setup.dtype = DType::kBF16;
  EXPECT_FALSE(Train(setup) == want);
}

TEST(LazyValuesTest, RunsOfOtherPluginsAreTheRun) {
  ExpectLazyRunsAreTheRun({.plugin = "single", .num_ranks = 1, .precision = Precision::kBf16});
  for (const std::string plugin : {"ddp", "zero1", "zero2"}) {
    for (const Precision precision : {Precision::kF32, Precision::kBf16}) {
      ExpectLazyRunsAreTheRun({.plugin = plugin, .num_ranks = 3, .precision = precision});
    }
  }
  ExpectLazyRunsAreTheRun({.plugin = "hybrid", .num_ranks = 2, .precision = Precision::kBf16});
  ExpectLazyRunsAreTheRun({.plugin = "hybrid", .num_ranks = 4});
}

TEST(LazyValuesTest, OptimizersAreMadeWithoutValues) {
  for (const std::string& name : optim::OptimizerNames()) {
    const ContextPtr context = CpuContext();
    TinyModel model(testing::TinyRunOptions{});
    model.InitializeLazily(context, {.seed = 11});
    const int64_t before = context->ledger().live_total_bytes();
    optim::OptionMap options;
    if (name.starts_with("galore")) options["rank"] = "1";
    const auto optimizer = ValueOrThrow(optim::MakeOptimizer(name, model.Parameters(), options));
    optimizer->states().PlannedBytes();
    optimizer->zero_grad();
    EXPECT_EQ(context->ledger().live_total_bytes(), before) << name;
    for (const auto& p : model.Parameters()) EXPECT_TRUE(p->is_lazy()) << name;
  }
}

// Weights of another seed, and a run, are loaded into shards that were cut from lazy values.
TEST(LazyValuesTest, LoadsAfterBoost) {
  for (const Precision precision : {Precision::kF32, Precision::kBf16}) {
    const TempDir dir;
    RunSetup setup{.num_ranks = 3, .precision = precision, .seed = 5};
    const std::vector<Weights> other = Train(setup, nullptr, [&](Booster& booster) {
      OkOrThrow(booster.save_model(dir / "weights"));
      OkOrThrow(booster.save_training_state(dir / "run", {.step = 3}));
    });
    setup.seed = 11;
    const auto load = [&](Booster& booster) { ValueOrThrow(booster.load_model(dir / "weights")); };
    const auto resume = [&](Booster& booster) {
      EXPECT_EQ(ValueOrThrow(booster.resume(dir / "run")).position.step, 3);
    };
    for (const Extra& before : {Extra(load), Extra(resume)}) {
      setup.start = Start::kEager;
      setup.steps = 3;
      const std::vector<Weights> want = Train(setup, before);
      setup.start = Start::kLazy;
      EXPECT_TRUE(Train(setup, before) == want) << Name(precision);
      setup.steps = 0;
      EXPECT_TRUE(Train(setup, before) == other) << Name(precision);
    }
  }
}

// Values that boost has not made are those of its time: a value that was set before counts.
TEST(LazyValuesTest, SetValuesCount) {
  for (const Start start : {Start::kEager, Start::kLazy}) {
    RunRanks(2, [&](comm::World& world) {
      const RunSetup setup{.start = start};
      const std::unique_ptr<nn::Module> model = MakeModel(setup);
      InitializeAs(setup, world, *model);
      const autograd::ParameterPtr parameter = model->Parameters()[0];
      parameter->set_value(Tensor::Full(parameter->shape(), DType::kF32, 7 + world.rank(),
                                        world.context(), MemoryCategory::kParameter));
      const auto optimizer = ValueOrThrow(optim::MakeOptimizer("adamw", model->Parameters()));
      GeminiPlugin plugin(world.group());
      Booster booster(plugin);
      std::ignore = booster.boost(*model, *optimizer);
      const std::vector<double> values = plugin.WholeValue(*parameter).ToVector<double>();
      EXPECT_EQ(values, std::vector<double>(values.size(), 7.0));
    });
  }
}

TEST(LazyValuesTest, RanksWithOtherDTypesAreRefused) {
  const absl::Status status =
      comm::launch({.num_ranks = 2, .threads_per_rank = 1}, [](comm::World& world) {
        const std::unique_ptr<nn::Module> model = MakeModel({});
        model->InitializeLazily(world.context(),
                                {.dtype = world.rank() == 0 ? DType::kF32 : DType::kBF16});
        const auto optimizer = ValueOrThrow(optim::MakeOptimizer("adamw", model->Parameters()));
        GeminiPlugin plugin(world.group());
        Booster booster(plugin);
        std::ignore = booster.boost(*model, *optimizer);
      });
  EXPECT_FALSE(status.ok());
  EXPECT_NE(Message(status).find("differ"), std::string::npos) << Message(status);
}

}  // namespace lazy_values_test
}  // namespace apogee
