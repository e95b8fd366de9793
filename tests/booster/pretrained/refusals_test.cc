// SPDX-License-Identifier: Apache-2.0

// Folders that do not fit: the message says what is wrong and what would be right, and nothing has
// been loaded, before boost or after it.
#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "apogee/nn/losses.h"
#include "apogee/optim/adam/adam.h"
#include "apogee/plugins/low_level_zero.h"
#include "apogee/tests/booster/pretrained/folders.h"
#include "apogee/tests/support/message_of.h"
#include "apogee/tests/support/run_ranks.h"

namespace apogee::pretrained {
namespace refusals_test {

using apogee::testing::MessageOf;
using apogee::testing::ReadFile;
using apogee::testing::RunRanks;
using apogee::testing::TempDir;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

size_t Count(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

// The error of a new model from the folder.
absl::Status MadeFrom(const std::string& folder) {
  return LoadPretrained(folder, CpuContext(), {.notice = Ignore}).status();
}

// The error of loading into a model that `config` describes. Its values and, under a plugin that
// shards masters, those of the saved run stay bit for bit.
absl::Status LoadedInto(const std::string& config, const std::string& folder) {
  const nn::HfModel hf = RandomModel(config, 2);
  const Values before = ValuesOf(*hf.module);
  const absl::Status status = LoadPretrained(*hf.module, folder).status();
  EXPECT_EQ(ValuesOf(*hf.module), before) << status;

  const nn::HfModel lazy = ValueOrThrow(nn::MakeHfModel(config, "c", Ignore));
  const nn::HfModel untouched = ValueOrThrow(nn::MakeHfModel(config, "c", Ignore));
  for (const nn::HfModel* model : {&lazy, &untouched}) {
    model->module->InitializeLazily(CpuContext(), {.seed = 3});
  }
  EXPECT_EQ(LoadPretrained(*lazy.module, folder).status(), status);
  EXPECT_EQ(ValuesOf(*lazy.module), ValuesOf(*untouched.module)) << status;

  RunRanks(2, [&](comm::World& world) {
    const TempDir saves;
    const nn::HfModel boosted_hf = RandomModel(config, 2);
    optim::AdamW optimizer(boosted_hf.module->Parameters(), {.lr = 0.1});
    LowLevelZeroPlugin plugin(world.group(), {.precision = Precision::kBf16}, {.stage = 1});
    Booster booster(plugin);
    const Boosted boosted = booster.boost(*boosted_hf.module, optimizer);
    const Values weights = ValuesOf(*boosted_hf.module);
    std::vector<std::vector<double>> masters;
    const auto now = [&] {
      std::vector<std::vector<double>> values;
      for (const optim::ParamView& view : boosted.optimizer.views()) {
        values.push_back(view.own_master().ToVector<double>());
      }
      return values;
    };
    masters = now();
    EXPECT_FALSE(booster.load_model(folder).ok());
    EXPECT_EQ(ValuesOf(*boosted_hf.module), weights) << status;
    EXPECT_EQ(now(), masters) << status;
  });
  return status;
}

class RefusalsTest : public ::testing::Test {
 protected:
  // Writes the config again, with `from` replaced.
  void Reword(const std::string& from, const std::string& to) {
    dir_.Write("out/config.json", Replaced(ReadFile(folder_ + "/config.json"), from, to));
  }

  const TempDir dir_;
  const std::string config_ = TinyConfig("llama");
  const std::string folder_ = SaveFolder(dir_ / "out", config_);
};

TEST_F(RefusalsTest, AnUnknownModelType) {
  Reword("\"llama\"", "\"lama\"");
  EXPECT_THAT(
      Message(MadeFrom(folder_)),
      HasSubstr(folder_ + "/config.json: unknown model_type \"lama\" (did you mean "
                          "\"llama\"?); known: bert, gemma, gemma2, gpt2, gpt_neox, "
                          "llama, mistral, mixtral, olmo2, opt, phi3, qwen2, qwen2_moe, qwen3, "
                          "qwen3_moe, vit"));
  Reword("\"lama\"", "\"mamba_of_another_kind\"");
  EXPECT_THAT(Message(MadeFrom(folder_)),
              AllOf(HasSubstr("unknown model_type \"mamba_of_another_kind\"; known: bert"),
                    Not(HasSubstr("did you mean"))));
}

TEST_F(RefusalsTest, NoFolderNoConfigNoWeights) {
  EXPECT_TRUE(absl::IsNotFound(MadeFrom(dir_ / "none"))) << MadeFrom(dir_ / "none");
  EXPECT_THAT(Message(MadeFrom(dir_ / "none")), HasSubstr(dir_ / "none/config.json"));
  std::filesystem::remove(folder_ + "/model.safetensors");
  EXPECT_TRUE(absl::IsNotFound(MadeFrom(folder_)));
  EXPECT_THAT(Message(LoadedInto(config_, folder_)),
              HasSubstr("has neither model.safetensors nor model.safetensors.index.json"));
}

TEST_F(RefusalsTest, AnotherHead) {
  const std::string bert = SaveFolder(dir_ / "bert", TinyConfig("bert"));
  EditTensors(bert, [](Tensors& tensors) {
    std::erase_if(tensors, [](const auto& entry) { return entry.first.starts_with("cls."); });
    tensors["classifier.weight"] = {{2, 16}, std::vector<float>(32)};
    tensors["dropout_rate"] = {{1}, {0}};
  });
  const size_t inside = ReadTensors(bert + "/model.safetensors").size() - 2;
  dir_.Write("bert/config.json",
             Replaced(TinyConfig("bert"), "{",
                      "{\"architectures\": [\"BertForSequenceClassification\"],"));
  EXPECT_THAT(
      Message(MadeFrom(bert)),
      AllOf(HasSubstr("\"architectures\" is [\"BertForSequenceClassification\"], must be a list "
                      "with \"BertForMaskedLM\""),
            HasSubstr("; the weights there are bert.* (" + std::to_string(inside) +
                      " tensors), classifier.weight, dropout_rate")));
  // Without weights the first part remains.
  std::filesystem::remove(bert + "/model.safetensors");
  EXPECT_THAT(Message(MadeFrom(bert)), AllOf(HasSubstr("must be a list with \"BertForMaskedLM\""),
                                             Not(HasSubstr("the weights there"))));
}

TEST_F(RefusalsTest, ShapesThatContradictTheConfig) {
  const std::string wide =
      Replaced(config_, "\"intermediate_size\": 24", "\"intermediate_size\": 28");
  Reword("\"intermediate_size\": 24", "\"intermediate_size\": 28");
  const std::string message = Message(MadeFrom(folder_));
  EXPECT_EQ(message, Message(LoadedInto(wide, folder_)));
  EXPECT_THAT(message, HasSubstr(folder_ + ": the weights do not fit this model:\n"));
  for (const std::string layer : {"0", "1"}) {
    for (const std::string name : {"gate", "up", "down"}) {
      const std::string shapes = name == "down" ? "is F32 [16, 24], wanted F32 [16, 28]"
                                                : "is F32 [24, 16], wanted F32 [28, 16]";
      EXPECT_EQ(Count(message, "shape of \"model.layers." + layer + ".mlp." + name +
                                   "_proj.weight\": " + shapes),
                1U)
          << message;
    }
  }
  EXPECT_EQ(std::ranges::count(message, '\n'), 6) << message;

  // All tensors of a model, however many they are.
  Reword("\"hidden_size\": 16", "\"hidden_size\": 32");
  const std::string all = Message(MadeFrom(folder_));
  for (const auto& [name, tensor] : ReadTensors(folder_ + "/model.safetensors")) {
    EXPECT_EQ(Count(all, "\"" + name + "\""), 1U) << all;
  }
}

TEST_F(RefusalsTest, MissingTensors) {
  EditTensors(folder_, [](Tensors& tensors) {
    tensors.erase("model.norm.weight");
    tensors.erase("model.layers.1.mlp.up_proj.weight");
  });
  const std::string message = Message(MadeFrom(folder_));
  EXPECT_EQ(message, Message(LoadedInto(config_, folder_)));
  EXPECT_THAT(message, AllOf(HasSubstr("missing \"model.norm.weight\""),
                             HasSubstr("missing \"model.layers.1.mlp.up_proj.weight\"")));
  EXPECT_EQ(std::ranges::count(message, '\n'), 2) << message;
  std::vector<std::string> notices;
  const nn::HfModel hf = ValueOrThrow(LoadPretrained(
      folder_, CpuContext(),
      {.strict = false, .notice = [&](const std::string& text) { notices.push_back(text); }}));
  EXPECT_THAT(notices.back(), HasSubstr("2 tensors are missing, which keep their first values"));
  EXPECT_EQ(hf.module->FindParameter("model.norm.weight")->value().ToVector<double>(),
            std::vector<double>(16, 1));
}

TEST_F(RefusalsTest, ExtraTensors) {
  EditTensors(folder_, [](Tensors& tensors) {
    tensors["model.layers.2.mlp.up_proj.weight"] = {{2}, {1, 2}};
    tensors["value_head.weight"] = {{1}, {1}};
  });
  const std::string message = Message(MadeFrom(folder_));
  EXPECT_EQ(message, Message(LoadedInto(config_, folder_)));
  EXPECT_THAT(message, AllOf(HasSubstr("unexpected \"model.layers.2.mlp.up_proj.weight\""),
                             HasSubstr("unexpected \"value_head.weight\"")));
  EXPECT_EQ(std::ranges::count(message, '\n'), 2) << message;
}

// The prefix that would make most names fit is told, and its names are not listed again.
TEST_F(RefusalsTest, ExtraTensorsWithAPrefix) {
  EditTensors(folder_, [](Tensors& tensors) {
    Tensors inside = {{"value_head.weight", {{1}, {1}}}};
    for (auto& [name, tensor] : tensors) inside["policy." + name] = std::move(tensor);
    tensors = std::move(inside);
  });
  const std::string message = Message(MadeFrom(folder_));
  EXPECT_EQ(message, Message(LoadedInto(config_, folder_)));
  EXPECT_THAT(message, AllOf(HasSubstr("names in the files begin with \"policy.\", those of the "
                                       "model do not"),
                             HasSubstr("load with file_prefix = \"policy.\""),
                             HasSubstr("unexpected \"value_head.weight\"")));
  EXPECT_EQ(std::ranges::count(message, '\n'), 2) << message;
}

TEST_F(RefusalsTest, OfTwoModelsInAModuleNoneIsChosen) {
  class Two : public nn::Module {
   public:
    explicit Two(const std::string& config) {
      for (const char* name : {"student", "teacher"}) {
        std::shared_ptr<nn::Module> model =
            ValueOrThrow(nn::MakeHfModel(config, "c", Ignore)).module;
        Register(name, model);
      }
    }
  };
  Two two(config_);
  two.Initialize(CpuContext(), {.seed = 3});
  const Values before = ValuesOf(two);
  EXPECT_THAT(Message(LoadPretrained(two, folder_).status()),
              HasSubstr("the files fit several parts of the model: load with model_prefix = "
                        "\"student.\" or with model_prefix = \"teacher.\""));
  EXPECT_EQ(ValuesOf(two), before);
  ASSERT_TRUE(LoadPretrained(two, folder_, {.model_prefix = "teacher."}).ok());
  const Values want = ValuesOf(*RandomModel(config_).module);
  for (const auto& [name, values] : ValuesOf(two)) {
    EXPECT_EQ(values, name.starts_with("teacher.") ? want.at(name.substr(8)) : before.at(name));
  }
}

TEST_F(RefusalsTest, AHalfDownloadedFolder) {
  const std::string large = Replaced(config_, ": 19", ": 17001");
  const std::string folder = SaveFolder(dir_ / "large", large, {.size_per_shard_mb = 1});
  const std::string shard = folder + "/model-00002-of-00003.safetensors";
  const std::string whole = ReadFile(shard);
  for (const size_t bytes : {size_t{0}, size_t{100}, whole.size() / 2, whole.size() - 1}) {
    dir_.Write("large/model-00002-of-00003.safetensors", whole.substr(0, bytes));
    EXPECT_TRUE(absl::IsDataLoss(MadeFrom(folder))) << MadeFrom(folder);
    EXPECT_THAT(Message(MadeFrom(folder)),
                AllOf(HasSubstr(shard + ": "), HasSubstr("has not finished: download it again")));
  }
  EXPECT_TRUE(absl::IsDataLoss(LoadedInto(large, folder)));
  std::filesystem::remove(shard);
  EXPECT_TRUE(absl::IsNotFound(MadeFrom(folder)));
  EXPECT_THAT(Message(LoadedInto(large, folder)),
              HasSubstr("of the 3 files in model.safetensors.index.json these are missing: "
                        "model-00002-of-00003.safetensors; download them again"));
  dir_.Write("large/model-00002-of-00003.safetensors.incomplete", whole.substr(0, 1000));
  EXPECT_THAT(Message(MadeFrom(folder)),
              HasSubstr("(\"model-00002-of-00003.safetensors.incomplete\" is there: its download "
                        "has not finished)"));
}

TEST_F(RefusalsTest, ASequenceLongerThanThePositions) {
  for (const char* family : {"llama", "gpt2", "opt", "bert"}) {
    const std::string folder = SaveFolder(dir_ / family, TinyConfig(family));
    const nn::HfModel hf = ValueOrThrow(LoadPretrained(folder, CpuContext(), {.notice = Ignore}));
    const Tensor tokens = Tensor::Zeros({2, 9}, DType::kI64, CpuContext());
    EXPECT_THAT(MessageOf([&] { (*hf.module)(tokens); }),
                HasSubstr(": needs tokens [batch, up to 8], got [2, 9]"))
        << family;
    const Tensor outside = Tensor::Full({2, 8}, DType::kI64, 19, CpuContext());
    EXPECT_THAT(MessageOf([&] { (*hf.module)(outside); }), HasSubstr("19")) << family;
  }
}

}  // namespace refusals_test
}  // namespace apogee::pretrained
