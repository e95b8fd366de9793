// SPDX-License-Identifier: Apache-2.0

// A folder loads under every plugin, before boost (at once or lazily) and after it, and computes
// what it computes on one rank. Saves with f32 masters are the same under every plugin.
#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include "apogee/nn/losses.h"
#include "apogee/optim/adam/adam.h"
#include "apogee/plugins/ddp.h"
#include "apogee/plugins/gemini.h"
#include "apogee/plugins/hybrid_parallel.h"
#include "apogee/plugins/low_level_zero.h"
#include "apogee/tests/booster/pretrained/folders.h"
#include "apogee/tests/support/files/shared_temp_dir.h"
#include "apogee/tests/support/run_ranks.h"

namespace apogee::pretrained {
namespace plugins_test {

using apogee::testing::ReadFile;
using apogee::testing::RunRanks;
using apogee::testing::SharedTempDir;
using ::testing::Each;
using ::testing::HasSubstr;

struct Spread {
  std::string name;
  int ranks;
  std::function<std::unique_ptr<Plugin>(const comm::World&, Precision)> make;
};

HybridParallelOptions Hybrid(int tp, int pp, int stage) {
  HybridParallelOptions options{.tp_size = tp, .pp_size = pp, .stage = stage};
  if (pp > 1) options.num_microbatches = 2;
  return options;
}

std::function<std::unique_ptr<Plugin>(const comm::World&, Precision)> MakeHybrid(int tp, int pp,
                                                                                 int stage) {
  return [=](const comm::World& world, Precision precision) {
    return std::make_unique<HybridParallelPlugin>(world, TrainingOptions{.precision = precision},
                                                  Hybrid(tp, pp, stage));
  };
}

const std::vector<Spread>& Spreads() {
  static const auto& spreads = *new std::vector<Spread>{
      {"single", 1,
       [](const comm::World&, Precision precision) {
         return std::make_unique<SingleRankPlugin>(TrainingOptions{.precision = precision});
       }},
      {"ddp", 2,
       [](const comm::World& world, Precision precision) {
         return std::make_unique<DdpPlugin>(world.group(), TrainingOptions{.precision = precision});
       }},
      {"zero2", 3,
       [](const comm::World& world, Precision precision) {
         return std::make_unique<LowLevelZeroPlugin>(world.group(),
                                                     TrainingOptions{.precision = precision},
                                                     LowLevelZeroOptions{.stage = 2});
       }},
      {"gemini", 3,
       [](const comm::World& world, Precision precision) {
         return std::make_unique<GeminiPlugin>(
             world.group(), TrainingOptions{.precision = precision, .bucket_bytes = 700});
       }},
      {"tp2", 2, MakeHybrid(2, 1, 0)},
      {"tp2_zero3", 4, MakeHybrid(2, 1, 3)},
      {"pp2", 2, MakeHybrid(1, 2, 0)},
      {"tp2_pp2_zero1", 8, MakeHybrid(2, 2, 1)}};
  return spreads;
}

// A boosted model.
struct BoostedRun {
  BoostedRun(nn::HfModel model, const Spread& spread, Precision precision, const comm::World& world)
      : hf(std::move(model)),
        optimizer(hf.module->Parameters(), {.lr = 0.1}),
        plugin(spread.make(world, precision)),
        booster(*plugin),
        boosted(booster.boost(*hf.module, optimizer, {.criterion = nn::CrossEntropyLoss()})) {}

  void Step(const ContextPtr& context) {
    const Tensor tokens = TinyTokens(context);
    booster.execute_pipeline({tokens, tokens}, boosted.model, boosted.criterion,
                             &boosted.optimizer);
    boosted.optimizer.step();
    boosted.optimizer.zero_grad();
  }

  nn::HfModel hf;
  optim::AdamW optimizer;
  std::unique_ptr<Plugin> plugin;
  Booster booster;
  Boosted boosted;
};

enum class When { kBefore, kLazily, kAfter };

std::vector<double> LogitsUnder(const Spread& spread, When when, const std::string& folder,
                                const comm::World& world) {
  const bool after = when == When::kAfter;
  nn::HfModel hf;
  if (after) {
    hf = ValueOrThrow(nn::MakeHfModel(ReadFile(folder + "/config.json"), "c", Ignore));
    hf.module->Initialize(world.context(), {.seed = 5, .dtype = DType::kF64});
  } else {
    hf = ValueOrThrow(
        LoadPretrained(folder, world.context(),
                       {.dtype = DType::kF64, .lazy = when == When::kLazily, .notice = Ignore}));
  }
  BoostedRun run(std::move(hf), spread, Precision::kF64, world);
  if (after) OkOrThrow(run.booster.load_model(folder).status());
  run.hf.module->Train(false);
  return run.plugin->Evaluate(run.boosted.model, TinyTokens(world.context()))
      .Detach()
      .ToVector<double>();
}

class PretrainedPluginTest : public ::testing::TestWithParam<const char*> {};

TEST_P(PretrainedPluginTest, ComputesWhatOneRankComputes) {
  const SharedTempDir dir;
  const std::string config = TinyConfig(GetParam()), folder = dir / "out";
  RunRanks(1, [&](comm::World&) { SaveFolder(folder, config); });
  const nn::HfModel plain = RandomModel(config);
  plain.module->To(DType::kF64);
  plain.module->Train(false);
  const std::vector<double> want =
      (*plain.module)(TinyTokens(CpuContext())).Detach().ToVector<double>();
  for (const Spread& spread : Spreads()) {
    for (const When when : {When::kBefore, When::kLazily, When::kAfter}) {
      RunRanks(spread.ranks, [&](comm::World& world) {
        const std::vector<double> got = LogitsUnder(spread, when, folder, world);
        ASSERT_EQ(got.size(), want.size());
        for (size_t i = 0; i < want.size(); ++i) {
          ASSERT_NEAR(got[i], want[i], 1e-12)
              << spread.name << ", way " << static_cast<int>(when) << ", logit " << i;
        }
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, PretrainedPluginTest,
                         ::testing::Values("gpt2", "llama", "gemma2", "gpt_neox"));

std::string Saved(BoostedRun& run, const std::string& path, bool f32_masters) {
  OkOrThrow(run.booster.save_model(
      path, {.config_json = run.hf.config_json, .f32_masters = f32_masters}));
  return path;
}

std::vector<std::string> DTypesOf(const std::string& folder) {
  const auto file =
      ValueOrThrow(checkpoint::SafetensorsReader::Open(folder + "/model.safetensors"));
  std::vector<std::string> dtypes;
  for (const auto& [name, entry] : file.entries()) dtypes.push_back(entry.dtype);
  return dtypes;
}

bool AreRoundings(const Tensors& narrow, const Tensors& wide, bool* are_equal) {
  *are_equal = true;
  for (const auto& [name, tensor] : narrow) {
    const FileTensor& exact = wide.at(name);
    const Shape shape{static_cast<int64_t>(exact.values.size())};
    const std::vector<float> rounded = Tensor::FromVector<float>(exact.values, shape, CpuContext())
                                           .To(DType::kBF16)
                                           .ToVector<float>();
    if (rounded != tensor.values) return false;
    *are_equal = *are_equal && exact.values == tensor.values;
  }
  return narrow.size() == wide.size();
}

// The values of the folder before the first step, bit for bit. Afterwards those that the 16-bit
// weights are rounded from; loaded into another run they are its masters.
TEST(F32MastersTest, AreSavedUnderEveryPlugin) {
  const SharedTempDir dir;
  for (const char* family : {"gpt2", "llama"}) {
    const std::string config = TinyConfig(family), folder = dir / family;
    RunRanks(1, [&](comm::World&) { SaveFolder(folder, config); });
    const std::string want = ReadFile(folder + "/model.safetensors");
    for (const Spread& spread : Spreads()) {
      const std::string at = folder + "_" + spread.name;
      RunRanks(spread.ranks, [&](comm::World& world) {
        BoostedRun run(ValueOrThrow(LoadPretrained(folder, world.context(), {.notice = Ignore})),
                       spread, Precision::kBf16, world);
        Saved(run, at + "_first", true);
        run.Step(world.context());
        Saved(run, at + "_wide", true);
        Saved(run, at + "_narrow", false);
        BoostedRun other(RandomModel(config, 2), spread, Precision::kBf16, world);
        OkOrThrow(other.booster.load_model(at + "_wide").status());
        Saved(other, at + "_again", true);
      });
      EXPECT_EQ(ReadFile(at + "_first/model.safetensors"), want) << spread.name;
      EXPECT_EQ(ReadFile(at + "_first/config.json"), config);
      EXPECT_THAT(DTypesOf(at + "_wide"), Each("F32")) << spread.name;
      EXPECT_THAT(DTypesOf(at + "_narrow"), Each("BF16")) << spread.name;
      EXPECT_THAT(ReadFile(at + "_narrow/config.json"), HasSubstr("\"bfloat16\""));
      bool are_equal = true;
      EXPECT_TRUE(AreRoundings(ReadTensors(at + "_narrow/model.safetensors"),
                               ReadTensors(at + "_wide/model.safetensors"), &are_equal))
          << spread.name;
      EXPECT_FALSE(are_equal) << spread.name << ": no value needed rounding";
      EXPECT_EQ(ReadFile(at + "_again/model.safetensors"), ReadFile(at + "_wide/model.safetensors"))
          << spread.name;
    }
  }
}

// Frozen parameters have no master, and the config has the dtype that holds all.
TEST(F32MastersTest, ParametersWithoutOneStayAsTheyAre) {
  const SharedTempDir dir;
  const std::string config = TinyConfig("llama"), frozen = "model.norm.weight";
  for (const Spread& spread : Spreads()) {
    const std::string at = dir / spread.name;
    RunRanks(spread.ranks, [&](comm::World& world) {
      nn::HfModel hf = RandomModel(config);
      hf.module->FindParameter(frozen)->set_requires_grad(false);
      BoostedRun run(std::move(hf), spread, Precision::kBf16, world);
      Saved(run, at, true);
    });
    const auto file = ValueOrThrow(checkpoint::SafetensorsReader::Open(at + "/model.safetensors"));
    for (const auto& [name, entry] : file.entries()) {
      EXPECT_EQ(entry.dtype, name == frozen ? "BF16" : "F32") << spread.name << ", " << name;
    }
    EXPECT_EQ(ReadFile(at + "/config.json"), config) << "float32";
  }
}

// Training goes on while they are written.
TEST(F32MastersTest, AreSavedInTheBackground) {
  const SharedTempDir dir;
  for (const Spread& spread : Spreads()) {
    const std::string at = dir / spread.name;
    RunRanks(spread.ranks, [&](comm::World& world) {
      BoostedRun run(RandomModel(TinyConfig("llama")), spread, Precision::kBf16, world);
      run.Step(world.context());
      Saved(run, at, true);
      OkOrThrow(run.booster.save_model(at + "_late", {.f32_masters = true, .use_async = true}));
      run.Step(world.context());
      OkOrThrow(run.booster.wait_for_saves());
    });
    EXPECT_EQ(ReadFile(at + "_late/model.safetensors"), ReadFile(at + "/model.safetensors"))
        << spread.name;
  }
}

// In f32 the weights are their own masters.
TEST(F32MastersTest, HasNoEffectInF32) {
  const SharedTempDir dir;
  RunRanks(2, [&](comm::World& world) {
    BoostedRun run(RandomModel(TinyConfig("llama")), Spreads()[1], Precision::kF32, world);
    run.Step(world.context());
    Saved(run, dir / "wide", true);
    Saved(run, dir / "plain", false);
  });
  EXPECT_EQ(ReadFile(dir / "wide/model.safetensors"), ReadFile(dir / "plain/model.safetensors"));
}

}  // namespace plugins_test
}  // namespace apogee::pretrained
