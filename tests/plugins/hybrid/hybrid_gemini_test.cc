// SPDX-License-Identifier: Apache-2.0

// ZeRO stage 3 × tensor parallelism: the parts that tensor parallelism leaves a rank, sharded over
// the copies. (hybrid_parallel_test and hybrid_parallel_parts_test compare it with one rank in f64,
// the matrix with every optimizer; here: the bits of stage 2, placement, traffic, memory,
// checkpoints.)
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <tuple>

#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/booster/booster.h"
#include "apogee/nn/losses.h"
#include "apogee/nn/models/gpt2.h"
#include "apogee/nn/models/llama.h"
#include "apogee/nn/parallel/tensor_parallel.h"
#include "apogee/optim/registry.h"
#include "apogee/plugins/ddp.h"
#include "apogee/plugins/hybrid_parallel.h"
#include "apogee/tests/support/exactness.h"
#include "apogee/tests/support/files/shared_temp_dir.h"
#include "apogee/tests/support/run_ranks.h"

namespace apogee {
namespace hybrid_gemini_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Property;
using testing::RunRanks;
using ::testing::Throws;
using testing::Weights;

constexpr int64_t kBatch = 12, kTokens = 6, kVocab = 19;

std::unique_ptr<nn::Module> MakeModel(bool llama) {
  if (llama) {
    return std::make_unique<nn::Llama>(nn::LlamaConfig{.vocab_size = kVocab,
                                                       .hidden_size = 32,
                                                       .intermediate_size = 24,
                                                       .num_hidden_layers = 2,
                                                       .num_attention_heads = 8,
                                                       .num_key_value_heads = 4,
                                                       .max_position_embeddings = kTokens});
  }
  return std::make_unique<nn::Gpt2>(nn::Gpt2Config{.vocab_size = kVocab,
                                                   .n_positions = kTokens,
                                                   .n_embd = 16,
                                                   .n_layer = 2,
                                                   .n_head = 4,
                                                   .dropout = 0.1});
}

struct RunSetup {
  TrainingOptions training = {.bucket_bytes = 1500};
  HybridParallelOptions options = {.tp_size = 2};
  int num_ranks = 4;
  bool llama = false;  // or a GPT-2 with tied embeddings
  std::string optimizer = "adamw";
  optim::OptionMap optimizer_options = {{"lr", "0.01"}};
  int64_t accumulate = 1;
  bool no_sync = false;
  int64_t steps = 4;
};

// A rank's run.
struct Training {
  Training(const RunSetup& setup_in, const comm::World& world_in, Plugin& plugin)
      : setup(setup_in), world(world_in), model(MakeModel(setup.llama)), booster(plugin) {
    const bool wide = setup.training.precision == Precision::kF64;
    model->Initialize(world.context(), {.seed = world.rank() == 0 ? 4u : 99u,
                                        .dtype = wide ? DType::kF64 : DType::kF32});
    optimizer = ValueOrThrow(
        optim::MakeOptimizer(setup.optimizer, model->Parameters(), setup.optimizer_options));
    boosted.emplace(booster.boost(*model, *optimizer, {.criterion = nn::CrossEntropyLoss()}));
  }

  Tensor Tokens(int64_t step, int64_t first, int64_t count, int64_t shift) const {
    std::vector<int64_t> values;
    for (int64_t sample = first; sample < first + count; ++sample) {
      for (int64_t t = shift; t < kTokens + shift; ++t) {
        const auto place = static_cast<uint64_t>((step * kBatch + sample) * 16 + t);
        values.push_back(static_cast<int64_t>(Philox(MakeKey(5, "tokens"), place)[0] % kVocab));
      }
    }
    return Tensor::FromVector<int64_t>(values, {count, kTokens}, world.context());
  }

  void Step(int64_t step, int data_rank, int data_size) {
    const int64_t count = kBatch / data_size / setup.accumulate;
    for (int64_t micro = 0; micro < setup.accumulate; ++micro) {
      const int64_t first = (data_rank * setup.accumulate + micro) * count;
      const Tensor loss = boosted->criterion(boosted->model(Tokens(step, first, count, 0)),
                                             Tokens(step, first, count, 1));
      std::shared_ptr<void> hold;
      if (setup.no_sync && micro + 1 < setup.accumulate) hold = booster.no_sync();
      booster.backward(autograd::Scale(loss, 1.0 / static_cast<double>(setup.accumulate)),
                       boosted->optimizer);
    }
    boosted->optimizer.step();
    boosted->optimizer.zero_grad();
  }

  const RunSetup& setup;
  const comm::World& world;
  std::unique_ptr<nn::Module> model;
  std::unique_ptr<optim::Optimizer> optimizer;
  Booster booster;
  std::optional<Boosted> boosted;
};

Weights WholeWeightsOf(const nn::Module& model, const HybridParallelPlugin& plugin) {
  Weights weights;
  for (const auto& p : model.Parameters()) {
    weights[p->name()] = plugin.WholeValue(*p).ToVector<double>();
  }
  return weights;
}

struct Result {
  Weights weights;
  int64_t peak_bytes = 0;      // of model data on any rank's device, after boost
  int64_t tp_all_reduces = 0;  // in a step
  int64_t tp_bytes = 0;
};

Result Train(const RunSetup& setup) {
  std::vector<Result> results(static_cast<size_t>(setup.num_ranks));
  RunRanks(setup.num_ranks, [&](comm::World& world) {
    HybridParallelPlugin plugin(world, setup.training, setup.options);
    Training run(setup, world, plugin);
    MemoryLedger& ledger = world.context()->ledger();
    ledger.ResetPeaks();
    Result& result = results[static_cast<size_t>(world.rank())];
    const comm::GroupPtr tp = plugin.mesh().group(comm::Axis::kTp);
    const auto traffic = [&] { return tp != nullptr ? tp->traffic() : comm::Traffic(); };
    for (int64_t step = 0; step < setup.steps; ++step) {
      const comm::Traffic before = traffic();
      run.Step(step, plugin.data_rank(), plugin.data_size());
      const comm::Traffic moved = traffic() - before;
      result.tp_all_reduces = moved.calls(comm::CollectiveKind::kAllReduce);
      result.tp_bytes = moved.total_bytes();
    }
    result.peak_bytes = ledger.peak_model_data_bytes();
    for (const auto& p : run.model->Parameters()) {
      EXPECT_EQ(p->is_local(), setup.options.stage != 3) << p->name();
    }
    result.weights = WholeWeightsOf(*run.model, plugin);
  });
  std::vector<Weights> weights;
  std::vector<int64_t> peaks;
  for (const Result& result : results) {
    weights.push_back(result.weights);
    peaks.push_back(result.peak_bytes);
  }
  testing::ShareByRank(weights);
  testing::ShareByRank(peaks);
  for (size_t r = 0; r < results.size(); ++r) {
    results[r].weights = weights[r];
    results[r].peak_bytes = peaks[r];
  }
  testing::ShareFromFirst(results[0].tp_all_reduces);
  testing::ShareFromFirst(results[0].tp_bytes);
  Result all = results[0];
  for (const Result& other : results) {
    EXPECT_EQ(other.weights, all.weights) << "ranks differ";
    all.peak_bytes = std::max(all.peak_bytes, other.peak_bytes);
  }
  return all;
}

TrainingOptions TrainingOf(Precision precision, double max_norm = 0) {
  return {.precision = precision, .max_norm = max_norm, .bucket_bytes = 1500};
}

HybridParallelOptions Stage(int stage) { return {.tp_size = 2, .stage = stage}; }

// Sums over copies are the same sums, wherever chunks are cut, and layers that share their input
// still share its gradient's sum.
TEST(HybridGeminiTest, HasTheBitsOfStageTwo) {
  for (const Precision precision :
       {Precision::kF64, Precision::kF32, Precision::kBf16, Precision::kFp16}) {
    for (const int num_ranks : {2, 4, 6}) {
      for (const bool llama : {false, true}) {
        RunSetup setup{.training = TrainingOf(precision),
                       .options = Stage(2),
                       .num_ranks = num_ranks,
                       .llama = llama};
        setup.accumulate = num_ranks == 4 ? 3 : 1;
        setup.no_sync = llama;
        const Result want = Train(setup);
        setup.options.stage = 3;
        const Result got = Train(setup);
        const std::string what = std::string(Name(precision)) + ", " + std::to_string(num_ranks) +
                                 " ranks, " + (llama ? "llama" : "gpt2");
        EXPECT_EQ(got.weights, want.weights) << what;
        EXPECT_EQ(got.tp_all_reduces, want.tp_all_reduces) << what;
        EXPECT_EQ(got.tp_bytes, want.tp_bytes) << what;
      }
    }
  }
}

// Parameters, gradients and AdamW's states of a rank that keeps all of its part.
int64_t UnshardedBytes(const RunSetup& setup) {
  const Precision precision = setup.training.precision;
  const int64_t per_element = precision == Precision::kF64   ? 32
                              : precision == Precision::kF32 ? 16
                                                             : 18;
  return MakeModel(setup.llama)->num_parameters() / setup.options.tp_size * per_element;
}

// Gradients of tables and of layers that share an input keep several chunks open at a time, which
// must all find room.
TEST(HybridGeminiTest, BudgetsChangeNoBitAndAreKept) {
  for (const Precision precision :
       {Precision::kF64, Precision::kF32, Precision::kBf16, Precision::kFp16}) {
    for (const auto& [num_ranks, tp, llama] :
         {std::tuple{2, 2, false}, {4, 2, true}, {4, 2, false}, {3, 1, true}}) {
      RunSetup setup{.training = TrainingOf(precision, 0.5),
                     .options = Stage(3),
                     .num_ranks = num_ranks,
                     .llama = llama,
                     .accumulate = num_ranks == 4 ? 3 : 1,
                     .no_sync = precision == Precision::kF32};
      setup.options.tp_size = tp;
      setup.training.bucket_bytes = llama ? 6000 : 1500;
      const Result want = Train(setup);
      for (const int percent : {100, 60}) {
        setup.options.placement = {.placement_policy = PlacementPolicy::kAuto,
                                   .device_budget_bytes = UnshardedBytes(setup) * percent / 100};
        const Result got = Train(setup);
        const std::string what = std::string(Name(precision)) + ", " + std::to_string(num_ranks) +
                                 " ranks, tp " + std::to_string(tp) + ", " +
                                 std::to_string(percent);
        EXPECT_EQ(got.weights, want.weights) << what;
        EXPECT_LE(got.peak_bytes, setup.options.placement.device_budget_bytes) << what;
      }
      setup.options.placement = {
          .shard_param_frac = 0.5, .offload_optim_frac = 0.6, .offload_param_frac = 0.3};
      EXPECT_EQ(Train(setup).weights, want.weights) << Name(precision);
    }
  }
}

// Statistics of whole tensors, and the norm that is clipped, add up in another order when chunks
// are cut elsewhere: what needs none has the bits of stage 2, too.
TEST(HybridGeminiTest, ElementwiseOptimizersHaveTheBitsOfStageTwo) {
  for (const std::string name : {"sgd", "adam", "lion", "adamw8bit"}) {
    RunSetup setup{.training = TrainingOf(Precision::kBf16),
                   .options = Stage(2),
                   .llama = true,
                   .optimizer = name};
    setup.optimizer_options = {{"lr", "0.001"}};
    const Result want = Train(setup);
    setup.options.stage = 3;
    EXPECT_EQ(Train(setup).weights, want.weights) << name;
  }
}

// What a rank keeps is its shard of its part.
TEST(HybridGeminiTest, EveryElementHasItsOwner) {
  RunRanks(6, [](comm::World& world) {
    const RunSetup setup{.options = Stage(3)};
    HybridParallelPlugin plugin(world, setup.training, setup.options);
    Training run(setup, world, plugin);
    for (const auto& p : run.model->Parameters()) {
      const Layout layout = plugin.LayoutOf(*p);
      const bool cut = plugin.tensor_parallel()->ShardOf(*p) != nullptr;
      EXPECT_EQ(layout.logical_shape(), plugin.tensor_parallel()->LogicalShape(*p)) << p->name();
      EXPECT_EQ(layout.num_replicas(), cut ? 1 : 2) << p->name();
      EXPECT_GE(p->data().numel(), layout.local_numel()) << p->name();
      const std::vector<double> whole = plugin.WholeValue(*p).ToVector<double>();
      const std::vector<double> mine = p->data().ToVector<double>();
      const Tensor held =
          Tensor::Zeros({static_cast<int64_t>(whole.size())}, DType::kF32, world.context());
      size_t at = 0;
      for (const Segment& segment : layout.segments()) {
        for (int64_t i = segment.begin; i < segment.begin + segment.length; ++i) {
          EXPECT_EQ(mine[at++], whole[static_cast<size_t>(i)]) << p->name();
          held.data<float>()[i] = 1;
        }
      }
      world.group()->AllReduce(held);
      for (const double count : held.ToVector<double>()) ASSERT_EQ(count, cut ? 1 : 2);
    }
  });
}

TEST(HybridGeminiTest, SettingsThatHaveNoEffectAreRefused) {
  RunRanks(2, [](comm::World& world) {
    const auto says = [](const auto& matcher) {
      return Throws<Error>(Property(&Error::what, matcher));
    };
    EXPECT_THAT(
        [&] {
          HybridParallelPlugin(world, {.overlap = false},
                               {.stage = 3,
                                .communication_dtype = Precision::kF64,
                                .overlap_gather = false,
                                .master_weights = false,
                                .offload_states = true,
                                .placement = {.offload_optim_frac = 2}});
        },
        says(AllOf(HasSubstr("offload_optim_frac must be between 0 and 1, got 2"),
                   HasSubstr("overlap = false needs stage 0 to 2, got 3"),
                   HasSubstr("communication_dtype needs stage 1 or 2, got 3"),
                   HasSubstr("overlap_gather = false needs stage 1 or 2, got 3"),
                   HasSubstr("master_weights = false needs stage 1 or 2, got 3"),
                   HasSubstr("offload_states needs stage 1 or 2, got 3"))));
    for (const int stage : {0, 1, 2}) {
      EXPECT_THAT(
          [&] {
            HybridParallelPlugin(world, {},
                                 {.stage = stage, .placement = {.offload_optim_frac = 1}});
          },
          says(HasSubstr("placement needs stage 3, got " + std::to_string(stage))));
    }
    // A budget in which nothing can be trained says what it would take.
    const RunSetup setup{.options = {.tp_size = 2,
                                     .stage = 3,
                                     .placement = {.placement_policy = PlacementPolicy::kAuto,
                                                   .device_budget_bytes = 100}}};
    HybridParallelPlugin plugin(world, setup.training, setup.options);
    EXPECT_THAT([&] { Training(setup, world, plugin); },
                says(HasSubstr("but this model needs at least")));
  });
}

// A step under `plugin`, from what another one has saved.
std::unique_ptr<Plugin> MakePlugin(const std::string& name, const RunSetup& setup,
                                   const comm::World& world) {
  if (name == "ddp") {
    return std::make_unique<DdpPlugin>(world.group(), setup.training);
  }
  return std::make_unique<HybridParallelPlugin>(world, setup.training, setup.options);
}

// What is in a checkpoint of tp 2 × stage 3 goes into ddp's run and back, to the bit.
TEST(HybridGeminiTest, CheckpointsComeFromAndGoToOtherPlugins) {
  for (const Precision precision : {Precision::kF32, Precision::kBf16}) {
    for (const bool from_hybrid : {true, false}) {
      const RunSetup setup{.training = TrainingOf(precision), .options = Stage(3)};
      const std::string saver = from_hybrid ? "hybrid" : "ddp";
      const std::string loader = from_hybrid ? "ddp" : "hybrid";
      const testing::SharedTempDir folder;
      const auto with = [&](const std::string& name, const auto& use) {
        RunRanks(name == "ddp" ? 2 : 4, [&](comm::World& world) {
          const std::unique_ptr<Plugin> plugin = MakePlugin(name, setup, world);
          Training run(setup, world, *plugin);
          const auto* hybrid = dynamic_cast<const HybridParallelPlugin*>(plugin.get());
          const int rank = hybrid != nullptr ? hybrid->data_rank() : world.rank();
          use(run, world.rank(), [&](int64_t step) { run.Step(step, rank, 2); });
        });
      };
      with(saver, [&](Training& run, int, const auto& step) {
        for (int64_t i = 0; i < 2; ++i) step(i);
        ASSERT_EQ(run.booster.save_training_state(folder / "state", {.step = 2}), absl::OkStatus());
        ASSERT_EQ(run.booster.save_model(folder / "weights"), absl::OkStatus());
      });
      // Through the other plugin, and back into the first: nothing was lost on the way.
      with(loader, [&](Training& run, int, const auto&) {
        ASSERT_TRUE(run.booster.resume(folder / "state").ok());
        ASSERT_EQ(run.booster.save_training_state(folder / "through", {.step = 2}),
                  absl::OkStatus());
        ASSERT_EQ(run.booster.save_model(folder / "weights_through"), absl::OkStatus());
      });
      const std::string file = "/model.safetensors";
      EXPECT_EQ(testing::ReadFile(folder / ("weights_through" + file)),
                testing::ReadFile(folder / ("weights" + file)));
      std::map<std::string, std::string> after;
      for (const std::string source : {"state", "through"}) {
        with(saver, [&](Training& run, int, const auto& step) {
          ASSERT_TRUE(run.booster.resume(folder / source).ok());
          step(2);
          ASSERT_EQ(run.booster.save_model(folder / ("after_" + source)), absl::OkStatus());
        });
        after[source] = testing::ReadFile(folder / ("after_" + source + file));
      }
      EXPECT_EQ(after["through"], after["state"]) << saver << " to " << loader;
      // Weights alone, too.
      with(loader, [&](Training& run, int, const auto&) {
        ASSERT_TRUE(run.booster.load_model(folder / "weights").ok());
        ASSERT_EQ(run.booster.save_model(folder / "loaded"), absl::OkStatus());
      });
      EXPECT_EQ(testing::ReadFile(folder / ("loaded" + file)),
                testing::ReadFile(folder / ("weights" + file)));
    }
  }
}

}  // namespace hybrid_gemini_test
}  // namespace apogee
