// SPDX-License-Identifier: Apache-2.0

// Weights under the names of the hub: GPT-2 without its prefix and with its masks, Llama with its
// frequencies; mixtures are refused.
#include "apogee/checkpoint/hf/hf_names.h"

#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "apogee/checkpoint/hf/hf_weights.h"
#include "apogee/nn/models/gpt2.h"
#include "apogee/nn/models/llama.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tests/support/files/safetensors_file.h"
#include "apogee/tests/support/files/temp_dir.h"

namespace apogee::checkpoint {
namespace hf_names_test {

using apogee::testing::TempDir;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr int64_t kEmbd = 8, kPositions = 4, kVocab = 5, kLayers = 2;

// What the hub's GPT-2 files hold, written down from their listing: name without prefix, shape.
// Conv1D weights are [in, out].
const std::vector<std::pair<std::string, std::vector<int64_t>>>& Gpt2Layer() {
  static const auto& layer = *new std::vector<std::pair<std::string, std::vector<int64_t>>>{
      {"ln_1.weight", {kEmbd}},
      {"ln_1.bias", {kEmbd}},
      {"attn.c_attn.weight", {kEmbd, 3 * kEmbd}},
      {"attn.c_attn.bias", {3 * kEmbd}},
      {"attn.c_proj.weight", {kEmbd, kEmbd}},
      {"attn.c_proj.bias", {kEmbd}},
      {"ln_2.weight", {kEmbd}},
      {"ln_2.bias", {kEmbd}},
      {"mlp.c_fc.weight", {kEmbd, 4 * kEmbd}},
      {"mlp.c_fc.bias", {4 * kEmbd}},
      {"mlp.c_proj.weight", {4 * kEmbd, kEmbd}},
      {"mlp.c_proj.bias", {kEmbd}}};
  return layer;
}

// Values by name, of tensors that count on.
class HubFile {
 public:
  void Add(const std::string& name, const std::vector<int64_t>& shape) {
    int64_t numel = 1;
    for (const int64_t size : shape) numel *= size;
    std::vector<float>& values = values_[name];
    for (int64_t i = 0; i < numel; ++i) values.push_back(next_ += 0.25f);
    file_.Add<float>(name, "F32", shape, values);
  }
  void AddValues(const std::string& name, const std::vector<int64_t>& shape,
                 const std::vector<float>& values) {
    file_.Add<float>(name, "F32", shape, values);
  }
  void AddGpt2(const std::string& prefix) {
    Add(prefix + "wte.weight", {kVocab, kEmbd});
    Add(prefix + "wpe.weight", {kPositions, kEmbd});
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      const std::string at = prefix + "h." + std::to_string(layer) + ".";
      for (const auto& [name, shape] : Gpt2Layer()) Add(at + name, shape);
      Add(at + "attn.bias", {1, 1, kPositions, kPositions});
    }
    Add(prefix + "ln_f.weight", {kEmbd});
    Add(prefix + "ln_f.bias", {kEmbd});
  }
  const std::vector<float>& Of(const std::string& name) const { return values_.at(name); }
  void Write(const std::string& folder) { file_.Write(folder + "/model.safetensors"); }

 private:
  SafetensorsFile file_;
  std::map<std::string, std::vector<float>> values_;
  float next_ = 0;
};

class TinyGpt2 : public nn::Gpt2 {
 public:
  TinyGpt2()
      : Gpt2({.vocab_size = kVocab,
              .n_positions = kPositions,
              .n_embd = kEmbd,
              .n_layer = kLayers,
              .n_head = 2}) {
    Initialize(CpuContext(), {.seed = 1});
  }
};

// As within a module that holds the model under the name `within`.
absl::StatusOr<LoadReport> Load(nn::Module& model, const std::string& folder,
                                const LoadWeightsOptions& options, const std::string& within = "") {
  std::vector<TensorPart> parts;
  for (const auto& parameter : model.Parameters()) {
    parts.push_back({within + parameter->name(), parameter->data(), Layout(parameter->shape())});
  }
  return LoadModelWeights({RealFileSystem(), folder}, parts, options, nullptr);
}
absl::StatusOr<LoadReport> Load(nn::Module& model, const std::string& folder, bool strict = true) {
  return Load(model, folder, {.strict = strict});
}

TEST(HfNamesTest, Gpt2WithAndWithoutPrefix) {
  for (const std::string prefix : {"", "transformer."}) {
    const TempDir folder;
    HubFile file;
    file.AddGpt2(prefix);
    file.Add(prefix + "h.1.attn.masked_bias", {});
    file.Write(folder.path());
    TinyGpt2 model;
    const auto report = Load(model, folder.path());
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_EQ(report->prefix, prefix.empty() ? "transformer." : "");
    EXPECT_THAT(report->buffers, ElementsAre(prefix + "h.0.attn.bias", prefix + "h.1.attn.bias",
                                             prefix + "h.1.attn.masked_bias"));
    EXPECT_THAT(report->missing, IsEmpty());
    EXPECT_THAT(report->unexpected, IsEmpty());
    for (const auto& parameter : model.Parameters()) {
      const std::string bare = parameter->name().substr(std::string("transformer.").size());
      EXPECT_EQ(parameter->data().ToVector<float>(), file.Of(prefix + bare)) << bare;
    }
  }
}

TEST(HfNamesTest, MixturesAreRefused) {
  for (const char* extra : {"transformer.wte.weight", "transformer.h.0.ln_1.bias"}) {
    const TempDir folder;
    HubFile file;
    file.AddGpt2("");
    file.Add(extra, {kEmbd});
    file.Write(folder.path());
    TinyGpt2 model;
    const auto before = model.Parameters()[0]->data().ToVector<float>();
    for (const bool strict : {true, false}) {
      const absl::Status status = Load(model, folder.path(), strict).status();
      EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
      EXPECT_THAT(Message(status), HasSubstr(std::string("has both \"") + extra + "\" and \""));
    }
    EXPECT_EQ(model.Parameters()[0]->data().ToVector<float>(), before);
  }
}

TEST(HfNamesTest, WhatOnlyLooksLikeABufferIsNone) {
  const TempDir folder;
  HubFile file;
  file.AddGpt2("");
  for (const char* name : {"h.x.attn.bias", "h.0.attn.bias2", "h..attn.bias", "attn.bias"}) {
    file.Add(name, {1});
  }
  file.Write(folder.path());
  TinyGpt2 model;
  const auto report = Load(model, folder.path(), /*strict=*/false);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(report->unexpected,
              ElementsAre("attn.bias", "h..attn.bias", "h.0.attn.bias2", "h.x.attn.bias"));
}

TEST(HfNamesTest, LlamaWithFrequencies) {
  nn::Llama model({.vocab_size = kVocab,
                   .hidden_size = kEmbd,
                   .intermediate_size = 12,
                   .num_hidden_layers = 1,
                   .num_attention_heads = 2,
                   .num_key_value_heads = 1,
                   .max_position_embeddings = kPositions});
  model.Initialize(CpuContext(), {.seed = 1});
  const std::string at = "model.layers.0.";
  HubFile file;
  file.Add("model.embed_tokens.weight", {kVocab, kEmbd});
  file.Add(at + "self_attn.q_proj.weight", {kEmbd, kEmbd});
  file.Add(at + "self_attn.k_proj.weight", {kEmbd / 2, kEmbd});
  file.Add(at + "self_attn.v_proj.weight", {kEmbd / 2, kEmbd});
  file.Add(at + "self_attn.o_proj.weight", {kEmbd, kEmbd});
  file.Add(at + "self_attn.rotary_emb.inv_freq", {2});
  file.Add(at + "mlp.gate_proj.weight", {12, kEmbd});
  file.Add(at + "mlp.up_proj.weight", {12, kEmbd});
  file.Add(at + "mlp.down_proj.weight", {kEmbd, 12});
  file.Add(at + "input_layernorm.weight", {kEmbd});
  file.Add(at + "post_attention_layernorm.weight", {kEmbd});
  file.Add("model.norm.weight", {kEmbd});
  file.Add("lm_head.weight", {kVocab, kEmbd});
  const TempDir folder;
  file.Write(folder.path());
  const auto report = Load(model, folder.path());
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(report->buffers, ElementsAre(at + "self_attn.rotary_emb.inv_freq"));
  EXPECT_EQ(report->prefix, "");
  for (const auto& parameter : model.Parameters()) {
    EXPECT_EQ(parameter->data().ToVector<float>(), file.Of(parameter->name()));
  }
  const auto names = MatchHfNames({"rotary_emb.inv_freq", "layers.0.mlp.inv_freq"}, {}, {}, "dir");
  ASSERT_TRUE(names.ok());
  EXPECT_THAT(names->buffers, ElementsAre("rotary_emb.inv_freq"));
}

// A module of one's own around the model: one line says so, and an option loads it.
TEST(HfNamesTest, AModelWithinAModule) {
  for (const std::string bare : {"", "transformer."}) {
    const TempDir folder;
    HubFile file;
    file.AddGpt2(bare);
    file.Write(folder.path());
    TinyGpt2 model;
    const std::string message = Message(Load(model, folder.path(), {}, "gpt.").status());
    const std::string prefix = bare.empty() ? "gpt.transformer." : "gpt.";
    EXPECT_THAT(message, HasSubstr("28 names of the model begin with \"" + prefix +
                                   "\", those in the files do not (\"gpt.transformer.h.0."));
    EXPECT_THAT(message, HasSubstr("load with model_prefix = \"" + prefix + "\""));
    EXPECT_THAT(message, Not(HasSubstr("missing")));
    EXPECT_THAT(message, Not(HasSubstr("unexpected")));
    // Shorter, too: the rest is a prefix that hub files may lack.
    for (const std::string& given : {prefix, std::string("gpt.")}) {
      const auto report = Load(model, folder.path(), {.model_prefix = given}, "gpt.");
      ASSERT_TRUE(report.ok()) << report.status();
      EXPECT_THAT(report->buffers, ElementsAre(bare + "h.0.attn.bias", bare + "h.1.attn.bias"));
      EXPECT_EQ(model.Parameters()[0]->data().ToVector<float>(), file.Of(bare + "wte.weight"));
    }
  }
}

TEST(HfNamesTest, FilesOfAModelWithinAModule) {
  const TempDir folder;
  HubFile file;
  file.AddGpt2("gpt.transformer.");
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

// What a module adds to the model is not in the model's files, even under a name that is.
TEST(HfNamesTest, NamesWithoutTheGivenPrefixAreMissing) {
  const TempDir folder;
  HubFile file;
  file.Add("w", {1});
  file.Add("v", {1});
  file.Write(folder.path());
  const auto part = [](const std::string& name) {
    return TensorPart{name, Tensor::Zeros({1}, DType::kF32, CpuContext()), Layout(Shape{1})};
  };
  const std::vector<TensorPart> parts = {part("in.w"), part("in.v"), part("w")};
  const LoadWeightsOptions options{.strict = false, .model_prefix = "in."};
  const auto report = LoadModelWeights({RealFileSystem(), folder.path()}, parts, options, nullptr);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(report->missing, ElementsAre("w"));
  EXPECT_EQ(parts[0].value.Item(), file.Of("w")[0]);
  EXPECT_EQ(parts[2].value.Item(), 0);
}

TEST(HfNamesTest, LongListsAreCut) {
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

TEST(HfNamesTest, ATiedHeadMayBeThereTwice) {
  for (const std::string prefix : {"", "transformer."}) {
    for (const bool equal : {true, false}) {
      const TempDir folder;
      HubFile file;
      file.AddGpt2(prefix);
      std::vector<float> head = file.Of(prefix + "wte.weight");
      if (!equal) head[7] = -head[7];
      file.AddValues("lm_head.weight", {kVocab, kEmbd}, head);
      file.Write(folder.path());
      for (const std::string within : {"", "gpt."}) {
        TinyGpt2 model;
        const auto report = Load(model, folder.path(), {.model_prefix = within}, within);
        if (equal) {
          ASSERT_TRUE(report.ok()) << report.status();
          EXPECT_THAT(report->tied, ElementsAre("lm_head.weight"));
          EXPECT_THAT(report->unexpected, IsEmpty());
          continue;
        }
        EXPECT_THAT(Message(report.status()),
                    HasSubstr("\"lm_head.weight\" is not \"" + prefix +
                              "wte.weight\", to which this model ties it (element 7 differs): "
                              "make the model with tie_word_embeddings = false"));
        const auto loose =
            Load(model, folder.path(), {.strict = false, .model_prefix = within}, within);
        ASSERT_TRUE(loose.ok()) << loose.status();
        EXPECT_THAT(loose->unexpected, ElementsAre("lm_head.weight"));
      }
    }
  }
}

}  // namespace hf_names_test
}  // namespace apogee::checkpoint
