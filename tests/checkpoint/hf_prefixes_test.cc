// SPDX-License-Identifier: Apache-2.0

// Weights of a model within a module, and of a module in the files; lists of what does not fit.
#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "apogee/checkpoint/hf/hf_names.h"
#include "apogee/checkpoint/hf/hf_weights.h"
#include "apogee/nn/models/gpt2.h"
#include "apogee/nn/models/llama.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tests/checkpoint/hub_file.h"
#include "apogee/tests/support/files/safetensors_file.h"
#include "apogee/tests/support/files/temp_dir.h"

namespace apogee::checkpoint {
namespace hf_prefixes_test {

using apogee::testing::TempDir;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// A module of one's own around the model: the prefix is found, or an option gives it.
TEST(HfPrefixesTest, AModelWithinAModule) {
  for (const std::string bare : {"", "transformer."}) {
    const TempDir folder;
    HubFile file;
    file.AddGpt2(bare);
    file.Write(folder.path());
    // All of what the files lack, too.
    const std::string whole = bare.empty() ? "gpt.transformer." : "gpt.";
    for (const std::string& given : {std::string(), std::string("gpt."), whole}) {
      TinyGpt2 model;
      const auto report = Load(model, folder.path(), {.model_prefix = given}, "gpt.");
      ASSERT_TRUE(report.ok()) << report.status();
      EXPECT_EQ(report->model_prefix, given.empty() ? "gpt." : given);
      EXPECT_EQ(report->model_prefix + report->prefix, whole);
      EXPECT_THAT(report->missing, IsEmpty());
      EXPECT_THAT(report->buffers, ElementsAre(bare + "h.0.attn.bias", bare + "h.1.attn.bias"));
      EXPECT_EQ(model.Parameters()[0]->data().ToVector<float>(), file.Of(bare + "wte.weight"));
    }
  }
}

// If a tensor of the files remains, the prefix is not used but named.
TEST(HfPrefixesTest, APrefixThatDoesNotFitAll) {
  const TempDir folder;
  HubFile file;
  file.AddGpt2("transformer.");
  file.Add("score.weight", {2});
  file.Write(folder.path());
  TinyGpt2 model;
  const std::string message = Message(Load(model, folder.path(), {}, "gpt.").status());
  EXPECT_THAT(message, HasSubstr("28 names of the model begin with \"gpt.\", those in the files do "
                                 "not (\"gpt.transformer.h.0."));
  EXPECT_THAT(message, HasSubstr("load with model_prefix = \"gpt.\""));
  EXPECT_THAT(message, HasSubstr("unexpected \"score.weight\""));
  EXPECT_THAT(message, Not(HasSubstr("missing")));
}

TEST(HfPrefixesTest, TwoModelsWithinAModule) {
  const TempDir folder;
  HubFile file;
  file.AddGpt2("transformer.");
  file.Write(folder.path());
  TinyGpt2 student, teacher;
  std::vector<TensorPart> parts;
  for (const auto& [name, model] :
       {std::pair<std::string, nn::Module&>{"student.", student}, {"teacher.", teacher}}) {
    for (const auto& parameter : model.Parameters()) {
      parts.push_back({name + parameter->name(), parameter->data(), Layout(parameter->shape())});
    }
  }
  const auto load = [&](const LoadWeightsOptions& options) {
    return LoadModelWeights({RealFileSystem(), folder.path()}, parts, options, nullptr);
  };
  const auto before = student.Parameters()[0]->data().ToVector<float>();
  EXPECT_THAT(Message(load({}).status()),
              HasSubstr("the files fit several parts of the model: load with model_prefix = "
                        "\"student.\" or with model_prefix = \"teacher.\""));
  const auto report = load({.model_prefix = "teacher."});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(teacher.Parameters()[0]->data().ToVector<float>(), file.Of("transformer.wte.weight"));
  EXPECT_EQ(student.Parameters()[0]->data().ToVector<float>(), before);
}

TEST(HfPrefixesTest, FilesOfAModelWithinAModule) {
  const TempDir folder;
  HubFile file;
  file.AddGpt2("gpt.transformer.");
  file.Write(folder.path());
  {
    TinyGpt2 model;
    const auto report = Load(model, folder.path());
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_EQ(report->file_prefix, "gpt.");
    EXPECT_THAT(report->buffers,
                ElementsAre("gpt.transformer.h.0.attn.bias", "gpt.transformer.h.1.attn.bias"));
    EXPECT_EQ(model.Parameters()[0]->data().ToVector<float>(),
              file.Of("gpt.transformer.wte.weight"));
  }
  file.Add("gpt.extra", {1});
  file.Write(folder.path());
  TinyGpt2 model;
  const std::string message = Message(Load(model, folder.path()).status());
  EXPECT_THAT(message, HasSubstr("28 names in the files begin with \"gpt.\", those of the model do "
                                 "not (\"transformer.h.0."));
  EXPECT_THAT(message, HasSubstr("load with file_prefix = \"gpt.\"\n  unexpected \"gpt.extra\""));
  EXPECT_THAT(message, Not(HasSubstr("missing")));
  const auto report = Load(model, folder.path(), {.strict = false, .file_prefix = "gpt."});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(report->unexpected, ElementsAre("gpt.extra"));
  EXPECT_THAT(report->missing, IsEmpty());
  EXPECT_EQ(model.Parameters()[0]->data().ToVector<float>(), file.Of("gpt.transformer.wte.weight"));
}

// What a module adds to the model is not in the model's files, even under a name that is. This is
// no error.
TEST(HfPrefixesTest, NamesWithoutTheGivenPrefixAreMissing) {
  const TempDir folder;
  HubFile file;
  file.Add("w", {1});
  file.Add("v", {1});
  file.Write(folder.path());
  const auto part = [](const std::string& name) {
    return TensorPart{name, Tensor::Zeros({1}, DType::kF32, CpuContext()), Layout(Shape{1})};
  };
  const std::vector<TensorPart> parts = {part("in.w"), part("in.v"), part("w")};
  const LoadWeightsOptions options{.model_prefix = "in."};
  const auto report = LoadModelWeights({RealFileSystem(), folder.path()}, parts, options, nullptr);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(report->missing, ElementsAre("w"));
  EXPECT_EQ(parts[0].value.Item(), file.Of("w")[0]);
  EXPECT_EQ(parts[2].value.Item(), 0);
}

TEST(HfPrefixesTest, LongListsAreCut) {
  const TempDir folder;
  HubFile file;
  for (int i = 0; i < 20; ++i) file.Add("other" + std::to_string(i), {1});
  file.Write(folder.path());
  TinyGpt2 model;
  const std::string message = Message(Load(model, folder.path()).status());
  EXPECT_THAT(message, HasSubstr("missing \"transformer.wte.weight\""));
  EXPECT_THAT(message, HasSubstr("\n  ... and 20 more missing"));
  EXPECT_THAT(message, HasSubstr("\n  ... and 12 more unexpected"));
  EXPECT_EQ(std::ranges::count(message, '\n'), 18);
}

TEST(HfPrefixesTest, EveryWrongShapeOnce) {
  const TempDir folder;
  SafetensorsFile file;
  std::vector<TensorPart> parts;
  for (int i = 0; i < 40; ++i) {
    const std::string name = "layers." + std::to_string(i) + ".w";
    file.Add<float>(name, "F32", {2}, {0, 0});
    const TensorPart part{"own." + name, Tensor::Zeros({3}, DType::kF32, CpuContext()),
                          Layout(Shape{3})};
    parts.push_back(part);
    parts.push_back(part);  // as a master weight beside the value
  }
  file.Write(folder / "model.safetensors");
  const std::string message =
      Message(LoadModelWeights({RealFileSystem(), folder.path()}, parts, {}, nullptr).status());
  EXPECT_THAT(message, HasSubstr("do not fit this model with model_prefix = \"own.\":\n"));
  EXPECT_EQ(std::ranges::count(message, '\n'), 40);
  for (int i = 0; i < 40; ++i) {
    EXPECT_THAT(message, HasSubstr("shape of \"own.layers." + std::to_string(i) +
                                   ".w\": is F32 [2], wanted F32 [3]"));
  }
}

}  // namespace hf_prefixes_test
}  // namespace apogee::checkpoint
