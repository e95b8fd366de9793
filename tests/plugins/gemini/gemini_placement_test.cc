// SPDX-License-Identifier: Apache-2.0

// Where chunks live changes no bit of what is computed, and the device keeps to its budget.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>
#include <tuple>

#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/grad_mode.h"
#include "apogee/booster/booster.h"
#include "apogee/chunk/sharded_parameters.h"
#include "apogee/nn/losses.h"
#include "apogee/nn/models/gpt2.h"
#include "apogee/optim/registry.h"
#include "apogee/pictures/maps.h"
#include "apogee/plugins/gemini/chunk_homes.h"
#include "apogee/tests/support/files/temp_dir.h"
#include "apogee/tests/support/run_ranks.h"
#include "apogee/tests/support/runs/gemini_run.h"
#include "apogee/tests/support/runs/tiny_run.h"

namespace apogee {
namespace gemini_placement_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Property;
using testing::RunRanks;
using ::testing::Throws;
using testing::TinyAdamW;
using testing::Weights;
using testing::WholeWeightsOf;

constexpr int64_t kVocab = 61, kPositions = 8;

nn::Gpt2Config Config(double dropout = 0) {
  return {.vocab_size = kVocab,
          .n_positions = kPositions,
          .n_embd = 32,
          .n_layer = 4,
          .n_head = 4,
          .dropout = dropout};
}

struct RunSetup {
  TrainingOptions training = {.bucket_bytes = 6000};
  GeminiOptions options = {};
  int num_ranks = 2;
  std::string optimizer = "adamw";
  optim::OptionMap optimizer_options = {};
  int64_t accumulate = 1;
  bool no_sync = false;
  int64_t steps = 3;
  DType dtype = DType::kF32;
};

struct Result {
  Weights weights;
  int64_t peak_bytes = 0;    // of model data on the first rank's device, after boost
  int64_t device_bytes = 0;  // at the end
  int64_t host_bytes = 0;
  int64_t disk_bytes = 0;
  std::string map;  // of chunks
};

Tensor Loss(nn::Module& model, comm::World& world, int64_t step) {
  std::vector<int64_t> tokens;
  for (int64_t i = 0; i < 2 * kPositions; ++i) {
    tokens.push_back((i * 7 + step * 13 + world.rank() * 5) % kVocab);
  }
  const Tensor batch = Tensor::FromVector<int64_t>(tokens, {2, kPositions}, world.context());
  return nn::CrossEntropyLoss()(model(batch), batch);
}

void Step(Booster& booster, optim::Optimizer& optimizer, nn::Module& model, comm::World& world,
          const RunSetup& setup, int64_t step) {
  for (int64_t micro = 0; micro < setup.accumulate; ++micro) {
    std::shared_ptr<void> hold;
    if (setup.no_sync && micro + 1 < setup.accumulate) hold = booster.no_sync();
    booster.backward(autograd::Scale(Loss(model, world, step * setup.accumulate + micro),
                                     1.0 / static_cast<double>(setup.accumulate)),
                     optimizer);
  }
  optimizer.step();
  optimizer.zero_grad();
}

Result Train(const RunSetup& setup) {
  Result result;
  RunRanks(setup.num_ranks, [&](comm::World& world) {
    nn::Gpt2 model(Config(0.1));
    model.Initialize(world.context(), {.seed = 4, .dtype = setup.dtype});
    const auto optimizer = ValueOrThrow(
        optim::MakeOptimizer(setup.optimizer, model.Parameters(), setup.optimizer_options));
    GeminiPlugin plugin(world.group(), setup.training, setup.options);
    Booster booster(plugin);
    std::ignore = booster.boost(model, *optimizer);
    MemoryLedger& ledger = world.context()->ledger();
    ledger.ResetPeaks();
    for (int64_t step = 0; step < setup.steps; ++step) {
      Step(booster, *optimizer, model, world, setup, step);
    }
    const int64_t peak = ledger.peak_model_data_bytes();
    const int64_t device = ledger.model_data_bytes();
    const Weights weights = WholeWeightsOf(model, plugin);
    if (world.rank() != 0) return;
    const ContextPtr& host = plugin.homes().host();
    const ContextPtr& disk = plugin.homes().disk();
    result = {weights,
              peak,
              device,
              host == nullptr ? 0 : host->ledger().model_data_bytes(),
              disk == nullptr ? 0 : disk->ledger().model_data_bytes(),
              ChunkMapSvg(plugin, "map")};
  });
  return result;
}

// Parameters, gradients and AdamW's states of one rank that keeps all of them.
int64_t UnshardedBytes(Precision precision) {
  const int64_t per_element = precision == Precision::kF64   ? 32
                              : precision == Precision::kF32 ? 16
                                                             : 18;
  return nn::Gpt2(Config()).num_parameters() * per_element;
}

DType ModelDType(Precision precision) {
  return precision == Precision::kF64 ? DType::kF64 : DType::kF32;
}

TEST(GeminiPlacementTest, BudgetsChangeNoBitAndAreKept) {
  for (const Precision precision :
       {Precision::kF64, Precision::kF32, Precision::kBf16, Precision::kFp16}) {
    for (const int num_ranks : {1, 2, 3, 4}) {
      RunSetup setup{.training = {.precision = precision, .max_norm = 0.5, .bucket_bytes = 6000},
                     .num_ranks = num_ranks,
                     .accumulate = num_ranks % 2 == 0 ? 3 : 1,
                     .no_sync = num_ranks == 4,
                     .dtype = ModelDType(precision)};
      const Result want = Train(setup);
      EXPECT_EQ(want.host_bytes, 0);
      for (const int percent : {100, 50, 25}) {
        setup.options.placement.placement_policy = PlacementPolicy::kAuto;
        setup.options.placement.device_budget_bytes = UnshardedBytes(precision) * percent / 100;
        const Result got = Train(setup);
        const std::string what = std::string(Name(precision)) + ", " + std::to_string(num_ranks) +
                                 " ranks, " + std::to_string(percent);
        EXPECT_EQ(got.weights, want.weights) << what;
        EXPECT_LE(got.peak_bytes, setup.options.placement.device_budget_bytes) << what;
        // What fits is there.
        EXPECT_GE(got.device_bytes,
                  std::min(want.device_bytes, setup.options.placement.device_budget_bytes / 4))
            << what;
        if (percent == 25 && num_ranks == 1) EXPECT_GT(got.host_bytes, got.device_bytes) << what;
        if (percent == 100 && num_ranks > 1) EXPECT_EQ(got.host_bytes, 0) << what;
      }
    }
  }
}

// Gathered ahead and dropped in the background, into the room that is left.
TEST(GeminiPlacementTest, GatheringAheadChangesNoBit) {
  for (const int num_ranks : {1, 2, 4}) {
    RunSetup setup{.num_ranks = num_ranks, .accumulate = 2};
    const Result want = Train(setup);
    for (const int64_t kib : {1, 20, 40, 80, 1000}) {
      setup.options.placement.max_gathered_bytes = kib << 10;
      EXPECT_EQ(Train(setup).weights, want.weights) << num_ranks << " ranks, " << kib << " KiB";
    }
  }
}

TEST(GeminiPlacementTest, FractionsChangeNoBit) {
  for (const int num_ranks : {1, 2, 3}) {
    RunSetup setup{.training = {.precision = Precision::kBf16, .bucket_bytes = 6000},
                   .num_ranks = num_ranks};
    const Result want = Train(setup);
    for (const double shard : {0.0, 0.5, 1.0}) {
      for (const double optim : {0.0, 0.5, 1.0}) {
        for (const double param : {0.0, 0.5, 1.0}) {
          if (param > shard) continue;
          setup.options.placement.shard_param_frac = shard;
          setup.options.placement.offload_optim_frac = optim;
          setup.options.placement.offload_param_frac = param;
          const Result got = Train(setup);
          EXPECT_EQ(got.weights, want.weights)
              << num_ranks << " ranks, " << shard << " " << optim << " " << param;
          // AdamW's masters and moments are 12 of 14 bytes.
          const double all = static_cast<double>(want.device_bytes);
          EXPECT_NEAR(static_cast<double>(got.host_bytes) / all, (optim * 12 + param * 2) / 14,
                      0.08)
              << num_ranks << " ranks, " << shard << " " << optim << " " << param;
        }
      }
    }
  }
}

TEST(GeminiPlacementTest, EveryOptimizerUnderABudget) {
  for (const std::string& name : optim::OptimizerNames()) {
    if (optim::TakesLocalGradients(name)) continue;
    RunSetup setup{.optimizer = name, .steps = 4};
    if (name.starts_with("galore")) setup.optimizer_options = {{"rank", "4"}};
    const Result want = Train(setup);
    setup.options.placement.placement_policy = PlacementPolicy::kAuto;
    setup.options.placement.device_budget_bytes = UnshardedBytes(Precision::kF32) / 4;
    const Result got = Train(setup);
    EXPECT_EQ(got.weights, want.weights) << name;
    EXPECT_LE(got.peak_bytes, setup.options.placement.device_budget_bytes) << name;
  }
}

TEST(GeminiPlacementTest, StatesOnDiskChangeNoBit) {
  for (const Precision precision : {Precision::kF32, Precision::kBf16}) {
    for (const bool is_auto : {false, true}) {
      RunSetup setup{.training = {.precision = precision, .bucket_bytes = 6000}, .steps = 4};
      const Result want = Train(setup);
      setup.options.placement.nvme_dir = ::testing::TempDir();
      if (is_auto) {
        setup.options.placement.placement_policy = PlacementPolicy::kAuto;
        setup.options.placement.device_budget_bytes = UnshardedBytes(precision) / 4;
      } else {
        setup.options.placement.offload_optim_frac = 1;
      }
      const Result got = Train(setup);
      EXPECT_EQ(got.weights, want.weights) << Name(precision);
      EXPECT_GT(got.disk_bytes, UnshardedBytes(precision) / 8) << Name(precision);
      EXPECT_THAT(got.map, HasSubstr("optimizer data on the disk"));
      EXPECT_THAT(want.map, Not(HasSubstr("on the disk")));
    }
  }
}

// Where a state lies is nothing that a checkpoint knows: what was saved under a budget, with states
// on disk, goes on with everything on the device, and the other way round.
TEST(GeminiPlacementTest, CheckpointsKnowNoHomes) {
  const apogee::testing::TempDir folder;
  const GeminiOptions device;
  GeminiOptions away = device;
  away.placement.placement_policy = PlacementPolicy::kAuto;
  away.placement.device_budget_bytes = UnshardedBytes(Precision::kF32) / 4;
  away.placement.nvme_dir = folder.path();
  std::map<std::string, Weights> results;
  const auto train = [&](const std::string& name, const GeminiOptions& options, int64_t first,
                         int64_t last) {
    RunRanks(2, [&](comm::World& world) {
      nn::Gpt2 model(Config(0.1));
      model.Initialize(world.context(), {.seed = 4});
      optim::AdamW optimizer(model.Parameters(), TinyAdamW());
      GeminiPlugin plugin(world.group(), {.bucket_bytes = 6000}, options);
      Booster booster(plugin);
      std::ignore = booster.boost(model, optimizer);
      if (first > 0) OkOrThrow(booster.resume(folder / name).status());
      for (int64_t step = first; step < last; ++step) {
        Step(booster, optimizer, model, world, {}, step);
      }
      if (first == 0) OkOrThrow(booster.save_training_state(folder / name, {.step = last}));
      const Weights weights = WholeWeightsOf(model, plugin);
      if (world.rank() == 0) results[name + std::to_string(last)] = weights;
    });
  };
  train("whole", device, 0, 6);
  train("device", device, 0, 3);
  train("away", away, 0, 3);
  train("device", away, 3, 6);
  train("away", device, 3, 6);
  EXPECT_EQ(results["device6"], results["whole6"]);
  EXPECT_EQ(results["away6"], results["whole6"]);
}

// Every value is gathered once per step instead of twice, as at stage 2.
TEST(GeminiPlacementTest, RoomSavesGathers) {
  std::map<std::string, int64_t> bytes;
  for (const std::string roomy : {"", "auto", "static"}) {
    RunRanks(2, [&](comm::World& world) {
      nn::Gpt2 model(Config());
      model.Initialize(world.context(), {.seed = 4});
      optim::AdamW optimizer(model.Parameters(), TinyAdamW());
      TrainingOptions training = {.bucket_bytes = 6000};
      GeminiOptions options = {};
      if (roomy == "static") options.placement.max_gathered_bytes = UnshardedBytes(Precision::kF32);
      if (roomy == "auto") {
        options.placement.placement_policy = PlacementPolicy::kAuto;
        options.placement.device_budget_bytes = UnshardedBytes(Precision::kF32);
      }
      GeminiPlugin plugin(world.group(), {.bucket_bytes = 6000}, options);
      Booster booster(plugin);
      std::ignore = booster.boost(model, optimizer);
      const comm::Traffic& traffic = plugin.chunks().group()->traffic();
      int64_t before = 0;
      for (int64_t step = 0; step < 4; ++step) {
        before = traffic.bytes(comm::CollectiveKind::kAllGather);
        Step(booster, optimizer, model, world, {}, step);
      }
      if (world.rank() == 0) {
        bytes[roomy] = traffic.bytes(comm::CollectiveKind::kAllGather) - before;
      }
    });
  }
  for (const std::string roomy : {"auto", "static"}) {
    EXPECT_GT(bytes[""], 1.9 * static_cast<double>(bytes[roomy])) << roomy;
    EXPECT_GT(bytes[roomy], 0) << roomy;
  }
}

// Weights that somebody writes between two forwards are seen, on whichever rank it is.
TEST(GeminiPlacementTest, KeptValuesAreNeverStale) {
  for (const int writer : {0, 1}) {
    RunRanks(2, [&](comm::World& world) {
      nn::Gpt2 model(Config());
      model.Initialize(world.context(), {.seed = 4});
      optim::AdamW optimizer(model.Parameters(), TinyAdamW());
      GeminiPlugin plugin(world.group(), {},
                          {.placement = {.placement_policy = PlacementPolicy::kAuto,
                                         .device_budget_bytes = UnshardedBytes(Precision::kF32)}});
      Booster booster(plugin);
      std::ignore = booster.boost(model, optimizer);
      for (int64_t step = 0; step < 2; ++step) Step(booster, optimizer, model, world, {}, step);
      const autograd::NoGradGuard no_grad;
      const double before = Loss(model, world, 9).Item();
      EXPECT_EQ(Loss(model, world, 9).Item(), before);
      const autograd::ParameterPtr weight =
          model.FindParameter("transformer.h.0.attn.c_attn.weight");
      if (world.rank() == writer) weight->data().Fill(0.5);
      EXPECT_NE(Loss(model, world, 9).Item(), before);
    });
  }
}

TEST(GeminiPlacementTest, BadOptions) {
  EXPECT_THAT(
      [] {
        GeminiPlugin(nullptr, {},
                     {.placement = {.shard_param_frac = -0.1,
                                    .offload_optim_frac = 1.5,
                                    .offload_param_frac = std::nan("")}});
      },
      Throws<Error>(Property(
          &Error::what, AllOf(HasSubstr("shard_param_frac must be between 0 and 1, got -0.1"),
                              HasSubstr("offload_optim_frac must be between 0 and 1, got 1.5"),
                              HasSubstr("offload_param_frac must be between 0 and 1, got nan")))));
  EXPECT_THAT(
      [] {
        GeminiPlugin(nullptr, {},
                     {.placement = {.shard_param_frac = 0.5, .offload_param_frac = 0.6}});
      },
      Throws<Error>(Property(&Error::what, HasSubstr("must not exceed shard_param_frac"))));
  EXPECT_THAT(
      [] {
        GeminiPlugin(nullptr, {}, {.placement = {.placement_policy = PlacementPolicy::kAuto}});
      },
      Throws<Error>(Property(&Error::what, HasSubstr("device_budget_bytes must be positive"))));
  EXPECT_THAT([] { GeminiPlugin(nullptr, {}, {.placement = {.device_budget_bytes = 1}}); },
              Throws<Error>(Property(&Error::what, HasSubstr("needs placement_policy \"auto\""))));
  EXPECT_THAT(
      [] {
        GeminiPlugin(nullptr, {},
                     {.placement = {.placement_policy = PlacementPolicy::kAuto,
                                    .offload_optim_frac = 1,
                                    .device_budget_bytes = 1}});
      },
      Throws<Error>(Property(&Error::what, HasSubstr("\"auto\" decides by"))));
  EXPECT_THAT([] { GeminiPlugin(nullptr, {}, {.placement = {.nvme_dir = "/tmp"}}); },
              Throws<Error>(Property(&Error::what, HasSubstr("needs offload_optim_frac above 0"))));
}

// The message gives the number that is enough.
TEST(GeminiPlacementTest, ABudgetThatIsTooSmall) {
  int64_t enough = 1000;
  for (int attempt = 0; attempt < 2; ++attempt) {
    nn::Gpt2 model(Config());
    const ContextPtr context = CpuContext();
    model.Initialize(context, {.seed = 4});
    optim::AdamW optimizer(model.Parameters(), TinyAdamW());
    GeminiPlugin plugin(
        nullptr, {},
        {.placement = {.placement_policy = PlacementPolicy::kAuto, .device_budget_bytes = enough}});
    Booster booster(plugin);
    try {
      std::ignore = booster.boost(model, optimizer);
      EXPECT_EQ(attempt, 1);
    } catch (const Error& error) {
      EXPECT_EQ(attempt, 0) << error.what();
      const std::string text = error.what(), before = "needs at least ";
      ASSERT_NE(text.find(before), std::string::npos) << text;
      enough = std::stoll(text.substr(text.find(before) + before.size()));
    }
  }
}

}  // namespace gemini_placement_test
}  // namespace apogee
