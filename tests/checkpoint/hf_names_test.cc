// SPDX-License-Identifier: Apache-2.0

// Weights under the names of the hub: without a family's prefix, with its old masks and names, with
// a tied head twice, within a module; mixtures are refused.
#include "apogee/checkpoint/hf/hf_names.h"

#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "apogee/checkpoint/hf/hf_weights.h"
#include "apogee/nn/models/gpt2.h"
#include "apogee/nn/models/llama.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tests/checkpoint/hub_file.h"
#include "apogee/tests/support/files/safetensors_file.h"
#include "apogee/tests/support/files/temp_dir.h"

namespace apogee::checkpoint {
namespace hf_names_test {

using apogee::testing::TempDir;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

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

struct FamilyCase {
  const char* description;
  std::string prefix;
  std::vector<std::string> names;   // of the model, without prefix
  std::vector<std::string> others;  // with the model's head
  std::vector<std::string> unused;  // in files, without prefix
  std::vector<HfTie> ties;
};

TEST(HfNamesTest, FamiliesWithAndWithoutPrefix) {
  const std::vector<FamilyCase> cases = {
      {"OPT",
       "model.",
       {"decoder.embed_tokens.weight", "decoder.layers.0.fc1.weight"},
       {},
       {"decoder.version"},
       {{"lm_head.weight", "model.decoder.embed_tokens.weight"}}},
      {"OPT's decoder",
       "model.decoder.",
       {"embed_tokens.weight", "layers.0.fc1.weight"},
       {},
       {},
       {{"lm_head.weight", "model.decoder.embed_tokens.weight"}}},
      {"GPT-NeoX",
       "gpt_neox.",
       {"embed_in.weight", "layers.11.attention.query_key_value.bias"},
       {},
       {"layers.11.attention.bias", "layers.11.attention.masked_bias",
        "layers.11.attention.rotary_emb.inv_freq"},
       {{"embed_out.weight", "gpt_neox.embed_in.weight"}}},
      {"BERT",
       "bert.",
       {"embeddings.word_embeddings.weight", "encoder.layer.0.output.LayerNorm.weight"},
       {"cls.predictions.bias"},
       {"embeddings.position_ids", "pooler.dense.bias"},
       {{"cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"},
        {"cls.predictions.decoder.bias", "cls.predictions.bias"}}},
      {"ViT",
       "vit.",
       {"embeddings.cls_token", "layernorm.weight"},
       {"classifier.weight"},
       {"pooler.dense.weight"},
       {}},
  };
  for (const FamilyCase& family : cases) {
    for (const bool bare : {false, true}) {
      for (const std::string within : {"", "own."}) {
        SCOPED_TRACE(std::string(family.description) + (bare ? ", bare" : "") + within);
        const std::string there = bare ? "" : family.prefix;
        std::set<std::string> in_files, asked;
        for (const std::string& name : family.names) {
          in_files.insert(there + name);
          asked.insert(within + family.prefix + name);
        }
        for (const std::string& name : family.others) {
          in_files.insert(name);
          asked.insert(within + name);
        }
        std::vector<std::string> unused;
        for (const std::string& name : family.unused) unused.push_back(there + name);
        in_files.insert(unused.begin(), unused.end());
        for (const HfTie& tie : family.ties) in_files.insert(tie.head);
        const auto names = MatchHfNames(in_files, asked, {.model = within}, "dir");
        ASSERT_TRUE(names.ok()) << names.status();
        EXPECT_EQ(names->prefix, bare ? family.prefix : "");
        EXPECT_THAT(names->buffers, ::testing::UnorderedElementsAreArray(unused));
        ASSERT_EQ(names->ties.size(), family.ties.size());
        for (size_t i = 0; i < family.ties.size(); ++i) {
          EXPECT_EQ(names->ties[i].head, family.ties[i].head);
          EXPECT_EQ(names->ties[i].table, names->InFiles(within + family.ties[i].table));
          EXPECT_TRUE(in_files.contains(names->ties[i].table));
        }
        EXPECT_THAT(UnexpectedNames(in_files, asked, *names), IsEmpty());
      }
    }
  }
}

// What is of no use in one family's files may be a weight in another's.
TEST(HfNamesTest, OtherFamiliesHaveNoSuchBuffers) {
  const auto names = MatchHfNames({"layers.0.attention.bias", "h.0.attn.bias", "pooler.dense.bias"},
                                  {"model.embed_tokens.weight"}, {}, "dir");
  ASSERT_TRUE(names.ok());
  EXPECT_THAT(names->buffers, IsEmpty());
}

TEST(HfNamesTest, OldNamesOfNorms) {
  const std::set<std::string> asked = {"bert.e.LayerNorm.weight", "bert.e.LayerNorm.bias",
                                       "bert.e.dense.weight"};
  for (const std::string bare : {"", "bert."}) {
    const std::set<std::string> in_files = {bare + "e.LayerNorm.gamma", bare + "e.LayerNorm.beta",
                                            bare + "e.dense.weight"};
    const auto names = MatchHfNames(in_files, asked, {}, "dir");
    ASSERT_TRUE(names.ok()) << names.status();
    EXPECT_EQ(names->InFiles("bert.e.LayerNorm.weight"), bare + "e.LayerNorm.gamma");
    EXPECT_EQ(names->InFiles("bert.e.LayerNorm.bias"), bare + "e.LayerNorm.beta");
    EXPECT_THAT(UnexpectedNames(in_files, asked, *names), IsEmpty());
  }
  // Both: the newer name counts.
  const std::set<std::string> both = {"bert.e.LayerNorm.gamma", "bert.e.LayerNorm.weight"};
  const auto names = MatchHfNames(both, asked, {}, "dir");
  EXPECT_EQ(names->InFiles("bert.e.LayerNorm.weight"), "bert.e.LayerNorm.weight");
  EXPECT_THAT(UnexpectedNames(both, asked, *names), ElementsAre("bert.e.LayerNorm.gamma"));
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
