// SPDX-License-Identifier: Apache-2.0

// Booster::enable_lora, save_adapter and load_adapter: the same files under every plugin, a frozen
// base, states of the adapter alone, and what does not fit.
#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "apogee/booster/lora/adapter_config.h"
#include "apogee/checkpoint/checkpoint_reader.h"
#include "apogee/checkpoint/format/safetensors_reader.h"
#include "apogee/tests/booster/lora/tuned.h"
#include "apogee/tests/support/files/shared_temp_dir.h"
#include "apogee/tests/support/says.h"

namespace apogee {
namespace adapter_test {

using apogee::testing::ReadFile;
using apogee::testing::RunRanks;
using apogee::testing::Says;
using apogee::testing::SharedTempDir;
using ::testing::AllOf;
using ::testing::HasSubstr;

using namespace testing::adapters;  // NOLINT(google-build-using-namespace)

TEST(AdapterTest, TheSameFilesUnderEveryPlugin) {
  for (const bool gpt2 : {false, true}) {
    const SharedTempDir folder;
    RunRanks(1, [&](comm::World& world) {
      Tuned run(gpt2, world, "single");
      for (int i = 0; i < 3; ++i) run.Step(world);
      OkOrThrow(run.booster.save_adapter(folder / "first", {.base_model = "the/base"}));
    });
    const std::string want = ReadFile(folder / "first/adapter_model.safetensors");
    const std::string config = ReadFile(folder / "first/adapter_config.json");
    ASSERT_FALSE(want.empty());
    for (const auto& [plugin, ranks] : kSpreads) {
      const std::string loaded = folder / (std::string("loaded_") + plugin);
      const std::string began = folder / (std::string("began_") + plugin);
      RunRanks(ranks, [&](comm::World& world) {
        Tuned other(gpt2, world, plugin, "", /*seed=*/2);
        OkOrThrow(other.booster.load_adapter(folder / "first"));
        OkOrThrow(other.booster.save_adapter(loaded, {.base_model = "the/base"}));
        Tuned same(gpt2, world, plugin, folder / "first");
        OkOrThrow(same.booster.save_adapter(began, {.base_model = "the/base"}));
      });
      EXPECT_EQ(ReadFile(loaded + "/adapter_model.safetensors"), want) << plugin;
      EXPECT_EQ(ReadFile(loaded + "/adapter_config.json"), config) << plugin;
      EXPECT_EQ(ReadFile(began + "/adapter_model.safetensors"), want) << plugin;
      EXPECT_EQ(ReadFile(began + "/adapter_config.json"), config) << plugin;
    }
    const auto file =
        checkpoint::SafetensorsReader::Open(folder / "first/adapter_model.safetensors");
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_TRUE(file->contains(gpt2 ? "base_model.model.transformer.h.1.attn.c_proj.lora_A.weight"
                                    : "base_model.model.model.embed_tokens.lora_embedding_B"));
    EXPECT_EQ(file->entries().size(), gpt2 ? 12U : 11U);
  }
}

// Also in bf16, where trained parameters have masters.
TEST(AdapterTest, TheBaseStaysAndTakesNoStates) {
  for (const Precision precision : {Precision::kF32, Precision::kBf16}) {
    for (const auto& [plugin, ranks] : kSpreads) {
      RunRanks(ranks, [&, name = std::string(plugin)](comm::World& world) {
        Tuned run(/*gpt2=*/false, world, name, "", 1, precision);
        const auto values = [&] {
          std::map<std::string, std::vector<double>> all;
          for (const auto& parameter : run.model->Parameters()) {
            all[parameter->name()] = run.plugin->WholeValue(*parameter).ToVector<double>();
          }
          return all;
        };
        const auto before = values();
        for (int i = 0; i < 2; ++i) run.Step(world);
        const auto after = values();
        int64_t trained = 0, here = 0;
        for (const auto& parameter : run.model->Parameters()) {
          const std::string& of = parameter->name();
          EXPECT_EQ(after.at(of) != before.at(of), parameter->requires_grad()) << of;
        }
        for (const optim::ParamView& view : run.boosted->optimizer.views()) {
          if (view.trainable()) {
            trained += view.layout().local_numel();
          } else {
            EXPECT_TRUE(view.states().empty() && !view.own_master().defined()) << view.name();
          }
          for (const optim::NamedState& state : view.states()) here += state.value.numel();
        }
        EXPECT_EQ(here, 2 * trained) << name;  // two moments of AdamW
      });
    }
  }
}

TEST(AdapterTest, ResumesBitForBitAndKnowsItsScale) {
  const SharedTempDir shared;  // resumed under other plugins, too
  for (const auto& [plugin, ranks] : kSpreads) {
    const SharedTempDir folder;
    RunRanks(ranks, [&, name = std::string(plugin)](comm::World& world) {
      if (name != "single") {
        Tuned other(/*gpt2=*/true, world, name);
        OkOrThrow(other.booster.resume(shared / "single").status());
      }
      const auto values = [](Tuned& run) {
        std::vector<double> all;
        for (const auto& parameter : run.model->Parameters()) {
          const std::vector<double> own = run.plugin->WholeValue(*parameter).ToVector<double>();
          all.insert(all.end(), own.begin(), own.end());
        }
        return all;
      };
      Tuned whole(/*gpt2=*/true, world, name), first(/*gpt2=*/true, world, name);
      for (int i = 0; i < 4; ++i) whole.Step(world);
      for (int i = 0; i < 2; ++i) first.Step(world);
      OkOrThrow(first.booster.save_training_state(folder / "run", {.step = 2}));
      const auto saved = ValueOrThrow(checkpoint::CheckpointReader::Open(
          checkpoint::RealFileSystem(), folder / "run/step-00000002"));
      for (const auto& parameter : first.model->Parameters()) {
        EXPECT_EQ(saved.manifest().tensors.contains("model/" + parameter->name()),
                  parameter->requires_grad())
            << parameter->name();
      }
      Tuned next(/*gpt2=*/true, world, name, "", /*seed=*/7);
      OkOrThrow(next.booster.resume(folder / "run").status());
      for (int i = 0; i < 2; ++i) next.Step(world);
      EXPECT_EQ(values(next), values(whole)) << name;
      if (name != "single") return;
      OkOrThrow(first.booster.save_training_state(shared / "single", {.step = 2}));
      const auto resumed = [&](uint64_t base_seed, double alpha) {
        SingleRankPlugin other_plugin;
        Booster other(other_plugin);
        const std::unique_ptr<nn::Module> model = MakeModel(/*gpt2=*/true);
        model->Initialize(world.context(), {.seed = base_seed});
        nn::LoraOptions options = OptionsOf(/*gpt2=*/true);
        options.alpha = alpha;
        other.enable_lora(*model, options);
        optim::AdamW optimizer(model->Parameters(), optim::AdamWOptions{.lr = 0.1});
        std::ignore = other.boost(*model, optimizer, {.criterion = nn::CrossEntropyLoss()});
        return Message(other.resume(folder / "run").status());
      };
      EXPECT_EQ(resumed(1, 3), "");
      EXPECT_THAT(resumed(1, 5), HasSubstr("scales of adapter default"));
      EXPECT_THAT(resumed(2, 3), HasSubstr("the frozen weights below the adapters are others"));
    });
  }
}

// Under every plugin the bits of nn::MergedAdapter on one rank, and the old ones afterwards.
TEST(AdapterTest, MergesTheSameBitsUnderEveryPlugin) {
  for (const bool dora : {false, true}) {
    for (const Precision precision : {Precision::kF32, Precision::kBf16}) {
      const SharedTempDir folder;
      for (const auto& [plugin, ranks] : kSpreads) {
        RunRanks(ranks, [&, name = std::string(plugin)](comm::World& world) {
          const auto tuned = [&](const std::string& which) {
            return std::make_unique<Tuned>(/*gpt2=*/dora, world, which, "", /*seed=*/1, precision,
                                           std::nullopt, dora);
          };
          const auto alone = tuned("single"), run = tuned(name);
          for (const auto* each : {&alone, &run}) {  // B is not zero
            for (const auto& [layer_name, layer] : nn::AdaptedLayers(*(*each)->model)) {
              for (const nn::LoraFactors& factors : layer->adapters()) {
                for (const auto& factor : {factors.a, factors.b}) {
                  if (factor->is_here()) factor->data().Fill(0.03125);
                }
              }
            }
          }
          const auto values = [](Tuned& of) {
            std::map<std::string, std::vector<double>> all;
            for (const auto& parameter : of.model->Parameters()) {
              all[parameter->name()] = of.plugin->WholeValue(*parameter).ToVector<double>();
            }
            return all;
          };
          const auto before = values(*run);
          run->booster.merge_adapter();
          const auto merged = values(*run);
          EXPECT_THAT([&] { run->booster.merge_adapter(); }, Says(HasSubstr("is merged already")));
          OkOrThrow(run->booster.save_model(folder / name));
          run->booster.unmerge_adapter();
          EXPECT_TRUE(values(*run) == before) << name;
          const nn::MergedAdapter by_hand(*alone->model, "default");
          EXPECT_TRUE(values(*alone) == merged) << name;
          EXPECT_FALSE(merged == before);
        });
        const auto file =
            checkpoint::SafetensorsReader::Open(folder / plugin + "/model.safetensors");
        ASSERT_TRUE(file.ok()) << file.status();
        for (const auto& [entry, place] : file->entries()) {
          EXPECT_EQ(entry.find("lora"), std::string::npos) << entry;
        }
      }
    }
  }
}

TEST(AdapterTest, WhatDoesNotFit) {
  const SharedTempDir folder;
  RunRanks(2, [&](comm::World& world) {
    Tuned run(/*gpt2=*/false, world, "ddp");
    OkOrThrow(run.booster.save_adapter(folder / "llama"));
    EXPECT_THAT([&] { run.booster.enable_lora(*run.model, {.rank = 2}); },
                Says(HasSubstr("call it before boost")));
    EXPECT_THAT(
        [&] { run.booster.save_adapter(folder / "x", {.adapter = "defualt"}).IgnoreError(); },
        Says(HasSubstr("did you mean \"default\"?")));
    EXPECT_THAT(Message(run.booster.save_adapter(folder / "llama")),
                HasSubstr("there is a folder already"));
    EXPECT_THAT(Message(run.booster.load_adapter(folder / "nothing")), HasSubstr("nothing"));
    Tuned other(/*gpt2=*/true, world, "ddp");
    EXPECT_THAT(Message(other.booster.load_adapter(folder / "llama")),
                AllOf(HasSubstr("this adapter is of another base"), HasSubstr("is missing"),
                      HasSubstr("has no place in this model")));
    // Before boost, with the model unchanged.
    const std::unique_ptr<nn::Module> model = MakeModel(/*gpt2=*/true);
    model->Initialize(world.context());
    const size_t count = model->Parameters().size();
    SingleRankPlugin plugin;
    Booster booster(plugin);
    EXPECT_THAT(Message(booster.enable_lora_from(*model, folder / "llama")),
                HasSubstr("unknown layer \"down_proj\""));
    EXPECT_EQ(model->Parameters().size(), count);
    EXPECT_THAT([&] { booster.enable_lora(*model, {.targets = {"q_proj"}}); },
                Says(HasSubstr("unknown layer \"q_proj\"")));
    EXPECT_EQ(model->Parameters().size(), count);
    for (const auto& parameter : model->Parameters()) EXPECT_TRUE(parameter->requires_grad());
  });
}

TEST(AdapterConfigTest, WhatIsReadIsWritten) {
  const nn::LoraOptions lora{.rank = 5,
                             .alpha = 2.5,
                             .targets = {"v_proj", "q_proj"},
                             .dropout = 0.125,
                             .use_rslora = true,
                             .use_dora = true,
                             .rank_pattern = {{"layers.1.q_proj", 3}},
                             .alpha_pattern = {{"v_proj", 7}},
                             .modules_to_save = {"lm_head"},
                             .bias = nn::LoraBias::kAll};
  const std::string text = FormatAdapterConfig({.lora = lora, .base_model = "a \"b\""}, true);
  const auto read = ParseAdapterConfig(text, "a.json");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->base_model, "a \"b\"");
  EXPECT_EQ(FormatAdapterConfig(*read, true), text);
  EXPECT_EQ(read->lora.rank_pattern.at("layers.1.q_proj"), 3);
  EXPECT_EQ(read->lora.bias, nn::LoraBias::kAll);
  const auto defaults = ParseAdapterConfig("{\"target_modules\": \"all-linear\"}", "a.json");
  ASSERT_TRUE(defaults.ok()) << defaults.status();
  EXPECT_EQ(defaults->lora.rank, 8);
  EXPECT_EQ(defaults->lora.alpha, 8);
}

TEST(AdapterConfigTest, WhatIsRefused) {
  const auto problem = [](const std::string& json) {
    return Message(ParseAdapterConfig(json, "a.json").status());
  };
  EXPECT_THAT(problem("[]"), HasSubstr("must be one object"));
  EXPECT_THAT(problem("{\"r\": 4"), HasSubstr("a.json: byte"));
  EXPECT_THAT(problem("{\"r\": 4, \"r\": 5}"), HasSubstr("\"r\" is given twice"));
  EXPECT_THAT(problem("{\"r\": 4.5}"), HasSubstr("\"r\" must be a whole number, got 4.5"));
  EXPECT_THAT(problem("{\"r\": \"4\"}"), HasSubstr("\"r\" must be a number"));
  EXPECT_THAT(problem("{\"peft_type\": \"IA3\"}"), HasSubstr("peft_type is \"IA3\""));
  EXPECT_THAT(problem("{\"target_modules\": \".*proj\"}"),
              HasSubstr("is the regular expression \".*proj\""));
  EXPECT_THAT(problem("{\"rank_pattern\": {\"^q\": 3}}"),
              HasSubstr("\"^q\" is a regular expression"));
  EXPECT_THAT(problem("{\"layers_to_transform\": [0]}"),
              HasSubstr("field \"layers_to_transform\" is not known here"));
  EXPECT_THAT(problem("{\"use_qalora\": true, \"new\": 1}"),
              AllOf(HasSubstr("\"use_qalora\""), HasSubstr("\"new\"")));
  EXPECT_THAT(problem("{\"init_lora_weights\": \"pissa\"}"), HasSubstr("may change the base"));
  EXPECT_THAT(problem("{\"bias\": \"some\"}"), HasSubstr("none, all or lora_only"));
  EXPECT_TRUE(
      ParseAdapterConfig("{\"layers_to_transform\": null, \"loftq_config\": {}}", "a").ok());
}

}  // namespace adapter_test
}  // namespace apogee
