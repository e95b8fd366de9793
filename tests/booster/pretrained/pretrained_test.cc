// SPDX-License-Identifier: Apache-2.0

// LoadPretrained: a folder of any family becomes its model, whichever way the folder has its files.
#include "apogee/booster/pretrained.h"

#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "apogee/nn/models/bert.h"
#include "apogee/nn/models/decoder.h"
#include "apogee/nn/models/vit.h"
#include "apogee/tests/booster/pretrained/folders.h"
#include "apogee/tests/support/message_of.h"

namespace apogee::pretrained {
namespace pretrained_test {

using apogee::testing::MessageOf;
using apogee::testing::ReadFile;
using apogee::testing::TempDir;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const PretrainedOptions kQuiet{.notice = Ignore};

nn::HfModel Loaded(const std::string& folder, const PretrainedOptions& options = kQuiet) {
  return ValueOrThrow(LoadPretrained(folder, CpuContext(), options));
}

// f32 rounded to bf16, ties to even.
double Bf16(double value) {
  const auto bits = std::bit_cast<uint32_t>(static_cast<float>(value));
  const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000;
  return std::bit_cast<float>(rounded);
}

Values Rounded(Values values) {
  for (auto& [name, elements] : values) {
    for (double& element : elements) element = Bf16(element);
  }
  return values;
}

class PretrainedFamilyTest : public ::testing::TestWithParam<const char*> {};

TEST_P(PretrainedFamilyTest, TheModelTypeFindsTheClass) {
  const std::string family = GetParam(), config = TinyConfig(family);
  const TempDir dir;
  const std::string folder = SaveFolder(dir / "out", config);
  const nn::HfModel want = RandomModel(config), got = Loaded(folder);
  EXPECT_EQ(got.model_type, family);
  EXPECT_EQ(got.config_json, config);
  EXPECT_EQ(ValuesOf(*got.module), ValuesOf(*want.module));
  const nn::Module* module = got.module.get();
  if (family == "bert") {
    EXPECT_NE(dynamic_cast<const nn::Bert*>(module), nullptr);
    EXPECT_EQ(got.task, nn::HfTask::kMaskedLm);
  } else if (family == "vit") {
    EXPECT_NE(dynamic_cast<const nn::Vit*>(module), nullptr);
    EXPECT_EQ(got.task, nn::HfTask::kImageClassification);
    EXPECT_EQ(got.vocab_size, 0);
    return;
  } else {
    EXPECT_NE(dynamic_cast<const nn::Decoder*>(module), nullptr);
    EXPECT_EQ(got.task, nn::HfTask::kCausalLm);
  }
  EXPECT_EQ(got.vocab_size, 19);
  EXPECT_EQ(got.max_tokens, 8);
  EXPECT_THAT(got.token_ids.at("eos_token_id"), ElementsAre(2, 3));
  const Tensor tokens = TinyTokens(CpuContext());
  for (const nn::HfModel* model : {&want, &got}) model->module->Train(false);
  const std::vector<float> logits = (*want.module)(tokens).Detach().ToVector<float>();
  EXPECT_EQ((*got.module)(tokens).Detach().ToVector<float>(), logits);

  const nn::HfModel lazy = Loaded(folder, {.lazy = true, .notice = Ignore});
  for (const auto& parameter : lazy.module->Parameters()) EXPECT_TRUE(parameter->is_lazy());
  lazy.module->Train(false);
  EXPECT_EQ((*lazy.module)(tokens).Detach().ToVector<float>(), logits);

  const nn::HfModel wide = Loaded(folder, {.dtype = DType::kF64, .notice = Ignore});
  EXPECT_EQ(wide.module->Parameters()[0]->dtype(), DType::kF64);
  EXPECT_EQ(ValuesOf(*wide.module), ValuesOf(*want.module));
}

INSTANTIATE_TEST_SUITE_P(Families, PretrainedFamilyTest,
                         ::testing::Values("gpt2", "llama", "gemma2", "qwen3", "gpt_neox", "opt",
                                           "bert", "vit"));

// What transformers reads beside the weights comes back byte by byte; only the dtype follows them.
TEST(PretrainedTest, TheConfigSurvives) {
  const TempDir dir;
  const std::string config = TinyConfig("llama");
  const std::string folder = SaveFolder(dir / "out", config);
  EXPECT_EQ(ReadFile(folder + "/config.json"), config);
  for (const Precision precision : {Precision::kF32, Precision::kBf16}) {
    std::vector<std::string> notices;
    const nn::HfModel hf =
        Loaded(folder, {.notice = [&](const std::string& text) { notices.push_back(text); }});
    EXPECT_THAT(notices, ElementsAre(HasSubstr("\"favourite_colour\"")));
    optim::Sgd optimizer(hf.module->Parameters(), {.lr = 0.1});
    SingleRankPlugin plugin({.precision = precision});
    Booster booster(plugin);
    const Boosted boosted = booster.boost(*hf.module, optimizer);
    const std::string again = dir / Name(precision);
    OkOrThrow(booster.save_model(again, {.config_json = hf.config_json}));
    EXPECT_EQ(
        ReadFile(again + "/config.json"),
        precision == Precision::kF32 ? config : Replaced(config, "\"float32\"", "\"bfloat16\""));
    EXPECT_EQ(Loaded(again).token_ids, hf.token_ids);
  }
}

TEST(PretrainedTest, Bf16Files) {
  const TempDir dir;
  const std::string config = TinyConfig("qwen3");
  const std::string folder = SaveFolder(dir / "out", config, {.precision = Precision::kBf16});
  const auto file =
      ValueOrThrow(checkpoint::SafetensorsReader::Open(folder + "/model.safetensors"));
  for (const auto& [name, entry] : file.entries()) EXPECT_EQ(entry.dtype, "BF16") << name;
  const Values want = Rounded(ValuesOf(*RandomModel(config).module));
  EXPECT_EQ(ValuesOf(*Loaded(folder).module), want);
  EXPECT_EQ(ValuesOf(*Loaded(folder, {.dtype = DType::kBF16, .notice = Ignore}).module), want);
}

// A vocabulary with which the tables are more than 1 MiB each.
std::string LargeConfig() { return Replaced(TinyConfig("llama"), ": 19", ": 17001"); }

TEST(PretrainedTest, SeveralFilesWithAnIndex) {
  const TempDir dir;
  const std::string folder = SaveFolder(dir / "out", LargeConfig(), {.size_per_shard_mb = 1});
  EXPECT_TRUE(std::filesystem::exists(folder + "/model-00003-of-00003.safetensors"));
  EXPECT_FALSE(std::filesystem::exists(folder + "/model.safetensors"));
  const Values want = ValuesOf(*RandomModel(LargeConfig()).module);
  EXPECT_EQ(ValuesOf(*Loaded(folder).module), want);
  const nn::HfModel lazy = Loaded(folder, {.lazy = true, .notice = Ignore});
  EXPECT_EQ(ValuesOf(*lazy.module), want);
}

// snapshots/REVISION/NAME is a link to ../../blobs/DIGEST.
TEST(PretrainedTest, LinksAsInTheHubsCache) {
  const TempDir dir;
  const std::string folder = SaveFolder(dir / "out", LargeConfig(), {.size_per_shard_mb = 1});
  const std::string snapshot = dir / "models--a--b/snapshots/0a1b2c";
  std::filesystem::create_directories(snapshot);
  std::filesystem::create_directory(dir / "models--a--b/blobs");
  int digest = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string blob = "blobs/d16e57" + std::to_string(digest++);
    std::filesystem::copy(entry.path(), dir / ("models--a--b/" + blob));
    std::filesystem::create_symlink("../../" + blob,
                                    snapshot + "/" + entry.path().filename().string());
  }
  EXPECT_EQ(digest, 5) << "three files, the index, and the config";
  EXPECT_EQ(ValuesOf(*Loaded(snapshot).module), ValuesOf(*RandomModel(LargeConfig()).module));
}

// The head of a model that ties it may be in the file a second time.
TEST(PretrainedTest, ADuplicateOfATiedWeight) {
  const std::vector<std::array<std::string, 3>> ties = {
      {"gpt2", "lm_head.weight", "transformer.wte.weight"},
      {"gemma2", "lm_head.weight", "model.embed_tokens.weight"},
      {"opt", "lm_head.weight", "model.decoder.embed_tokens.weight"},
      {"bert", "cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"}};
  for (const auto& [family, head, table] : ties) {
    const TempDir dir;
    const std::string folder = SaveFolder(dir / "out", TinyConfig(family));
    EditTensors(folder, [&](Tensors& tensors) { tensors[head] = tensors.at(table); });
    const nn::HfModel want = RandomModel(TinyConfig(family));
    EXPECT_EQ(ValuesOf(*Loaded(folder).module), ValuesOf(*want.module)) << family;
    nn::HfModel other = RandomModel(TinyConfig(family), 2);
    const Values before = ValuesOf(*other.module);
    EXPECT_THAT(ValueOrThrow(LoadPretrained(*other.module, folder)).tied, ElementsAre(head));

    other = RandomModel(TinyConfig(family), 2);
    EditTensors(folder, [&](Tensors& tensors) { tensors.at(head).values[17] += 1; });
    for (const absl::Status& status : {LoadPretrained(folder, CpuContext(), kQuiet).status(),
                                       LoadPretrained(*other.module, folder).status()}) {
      EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
      EXPECT_THAT(Message(status), HasSubstr("\"" + head + "\" is not \"" + table +
                                             "\", to which this model ties it (element 17 "
                                             "differs): make the model with"));
    }
    EXPECT_EQ(ValuesOf(*other.module), before) << family;
    EXPECT_EQ(ValuesOf(*Loaded(folder, {.strict = false, .notice = Ignore}).module),
              ValuesOf(*want.module));
  }
}

TEST(PretrainedTest, WithinAModuleOfTheUsers) {
  const TempDir dir;
  const std::string config = TinyConfig("gpt2"), folder = SaveFolder(dir / "out", config);
  const Values want = ValuesOf(*RandomModel(config).module);
  const auto initialized = [&](bool lazily) {
    auto holder = std::make_unique<Holder>(config);
    lazily ? holder->InitializeLazily(CpuContext(), {.seed = 4})
           : holder->Initialize(CpuContext(), {.seed = 4});
    return holder;
  };
  const Values first = ValuesOf(*initialized(false));
  for (const std::string given : {"", "gpt."}) {
    for (const bool lazily : {false, true}) {
      const auto holder = initialized(lazily);
      const auto report = LoadPretrained(*holder, folder, {.model_prefix = given});
      ASSERT_TRUE(report.ok()) << report.status();
      EXPECT_EQ(report->model_prefix, given.empty() ? "gpt." : given);
      EXPECT_EQ(holder->Parameters()[0]->is_lazy(), lazily);
      for (const auto& [name, values] : ValuesOf(*holder)) {
        EXPECT_EQ(values, name.starts_with("score.") ? first.at(name) : want.at(name.substr(4)))
            << name;
      }
    }
  }
  // With another prefix nothing fits.
  const auto holder = initialized(false);
  const auto long_one = LoadPretrained(*holder, folder, {.model_prefix = "gpt.transformer."});
  EXPECT_THAT(Message(long_one.status()), HasSubstr("load with model_prefix = \"gpt.\""));
  const auto wrong = LoadPretrained(*holder, folder, {.model_prefix = "score."});
  EXPECT_THAT(Message(wrong.status()), AllOf(HasSubstr("with model_prefix = \"score.\""),
                                             HasSubstr("missing \"score.weight\"")));
  EXPECT_EQ(ValuesOf(*holder), first);
}

// A save of the whole module holds the model under a prefix, and what the module adds.
TEST(PretrainedTest, TheFilesOfAModuleOfTheUsers) {
  const TempDir dir;
  const std::string config = TinyConfig("gpt2"), folder = SaveFolder(dir / "out", config);
  EditTensors(folder, [](Tensors& tensors) {
    Tensors inside;
    for (auto& [name, tensor] : tensors) inside["gpt." + name] = std::move(tensor);
    tensors = std::move(inside);
  });
  const Values want = ValuesOf(*RandomModel(config).module);
  EXPECT_EQ(ValuesOf(*Loaded(folder).module), want) << "the prefix is found";
  EXPECT_EQ(ValuesOf(*Loaded(folder, {.file_prefix = "gpt.", .notice = Ignore}).module), want);
  EditTensors(folder, [](Tensors& tensors) { tensors["score.bias"] = {{3}, {1, 2, 3}}; });
  EXPECT_THAT(
      Message(LoadPretrained(folder, CpuContext(), kQuiet).status()),
      AllOf(HasSubstr("load with file_prefix = \"gpt.\""), HasSubstr("unexpected \"score.bias\"")));
  std::vector<std::string> notices;
  const nn::HfModel part = Loaded(
      folder, {.strict = false, .file_prefix = "gpt.", .notice = [&](const std::string& text) {
                 notices.push_back(text);
               }});
  EXPECT_EQ(ValuesOf(*part.module), want);
  EXPECT_THAT(notices.back(), HasSubstr("1 tensors are not used (\"score.bias\" is one)"));
}

TEST(PretrainedTest, Misuse) {
  const TempDir dir;
  const std::string config = TinyConfig("llama"), folder = SaveFolder(dir / "out", config);
  const auto load = [&](nn::Module& model, const PretrainedOptions& options = {}) {
    return MessageOf([&] { LoadPretrained(model, folder, options).IgnoreError(); });
  };
  const nn::HfModel bare = ValueOrThrow(nn::MakeHfModel(config, "c", Ignore));
  EXPECT_THAT(load(*bare.module), HasSubstr("has no value; call Initialize or InitializeLazily"));
  const nn::HfModel hf = RandomModel(config, 2);
  EXPECT_THAT(load(*hf.module, {.lazy = true}), HasSubstr("leave out the options dtype and lazy"));
  EXPECT_THAT(load(*hf.module, {.dtype = DType::kF64}), HasSubstr("keeps its dtype"));
  EXPECT_THAT(MessageOf([&] {
                LoadPretrained(folder, CpuContext(), {.model_prefix = "a."}).IgnoreError();
              }),
              HasSubstr("model_prefix is for weights into a model of your own"));

  // The values would come back to the old ones with the first step, from the masters.
  optim::Sgd optimizer(hf.module->Parameters(), {.lr = 0.1});
  SingleRankPlugin plugin({.precision = Precision::kBf16});
  Booster booster(plugin);
  const Boosted boosted = booster.boost(*hf.module, optimizer);
  EXPECT_THAT(load(*hf.module),
              AllOf(HasSubstr("the model has been boosted"),
                    HasSubstr("call booster.load_model(\"" + folder + "\") instead")));
  EXPECT_EQ(ValuesOf(*hf.module), Rounded(ValuesOf(*RandomModel(config, 2).module)));
}

}  // namespace pretrained_test
}  // namespace apogee::pretrained
