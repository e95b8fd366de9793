// SPDX-License-Identifier: Apache-2.0

// config.json: other models, settings that are not supported, numbers out of range, hostile text.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "apogee/tests/nn/hf_configs.h"

namespace apogee::nn {
namespace hf_config_refusals_test {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(HfConfigRefusalsTest, OtherModelsAreRefused) {
  EXPECT_THAT(MessageOf(ParseDecoderHfConfig("{}", "c")),
              HasSubstr("\"model_type\" is missing, must be one of bert, gemma, gemma2, gpt2"));
  EXPECT_THAT(LlamaWith({{"model_type", "lama"}}),
              HasSubstr("dir/config.json: unknown model_type \"lama\" (did you mean \"llama\"?); "
                        "known: bert, gemma,"));
  EXPECT_THAT(LlamaWith({{"model_type", 7}}), HasSubstr("\"model_type\" is 7, must be a text"));
  EXPECT_THAT(Gpt2With({{"architectures", {"GPT2ForSequenceClassification"}}}),
              HasSubstr("\"architectures\" is [\"GPT2ForSequenceClassification\"], must be a list "
                        "with \"GPT2LMHeadModel\""));
  EXPECT_THAT(Gpt2With({{"architectures", {"a", "b\x1b", 3, nullptr, Json::array(), "c"}}}),
              HasSubstr("\"architectures\" is [\"a\", \"b\\u001b\", 3, null and 2 more], must"));
  EXPECT_EQ(Gpt2With({{"architectures", {{{"a", 1}}, "GPT2LMHeadModel"}}}), "accepted");
  EXPECT_THAT(Gpt2With({{"architectures", "GPT2LMHeadModel"}}), HasSubstr("\"architectures\""));
  EXPECT_EQ(Gpt2With({{"architectures", nullptr}}), "accepted");
  // Only of the top, and of that field.
  EXPECT_THAT(Gpt2With({{"architectures", Json::array()}, {"other", {"GPT2LMHeadModel"}}}),
              HasSubstr("\"architectures\""));
}

TEST(HfConfigRefusalsTest, WhatTheModelsCannotDoIsRefusedByName) {
  const std::vector<std::pair<const char*, Json>> gpt2 = {{"activation_function", "quick_gelu"},
                                                          {"add_cross_attention", true}};
  for (const auto& [name, value] : gpt2) {
    EXPECT_THAT(Gpt2With({{name, value}}),
                AllOf(HasSubstr("dir/config.json: \"" + std::string(name) + "\" is "),
                      HasSubstr(value.dump())));
  }
  const std::vector<std::pair<const char*, Json>> llama = {
      {"hidden_act", "tanh"}, {"num_key_value_heads", 4}, {"head_dim", 63}};
  for (const auto& [name, value] : llama) {
    EXPECT_THAT(LlamaWith({{name, value}}),
                AllOf(HasSubstr("dir/config.json: \"" + std::string(name) + "\" is "),
                      HasSubstr(value.dump())));
  }
  EXPECT_THAT(LlamaWith({{"rope_scaling", {{"type", "dynamic"}, {"factor", 2.0}}}}),
              HasSubstr("\"rope_scaling.type\" is \"dynamic\""));
  EXPECT_THAT(LlamaWith({{"rope_scaling", {{"type", "linear"}}}}),
              HasSubstr("\"rope_scaling.factor\" is missing, but the scaling \"linear\" needs it"));
  EXPECT_THAT(LlamaWith({{"rope_scaling", {{"type", "linear"}, {"factor", 2}, {"beta_fast", 32}}}}),
              HasSubstr("\"rope_scaling.beta_fast\" is 32, a setting of rotary positions"));
  EXPECT_THAT(LlamaWith({{"rope_scaling", {{"factor", 2.0}}}}), HasSubstr("\"rope_scaling\" is"));
  EXPECT_THAT(LlamaWith({{"rope_scaling", 2}}), HasSubstr("\"rope_scaling\" is 2"));
  EXPECT_EQ(LlamaWith({{"head_dim", 64}}), "accepted");
  EXPECT_THAT(Gpt2With({{"quantization_config", {{"bits", 4}}}}),
              HasSubstr("\"quantization_config\" is an object, only null and nf4"));
  EXPECT_THAT(LlamaWith({{"partial_rotary_factor", 1.5}}),
              HasSubstr("\"partial_rotary_factor\" is 1.5, must be a number from 0"));
  EXPECT_THAT(LlamaWith({{"pad_token_id", 49152}}),
              HasSubstr("\"pad_token_id\" is 49152, must be a token of the vocabulary of 49152"));
}

TEST(HfConfigRefusalsTest, RangesAreChecked) {
  for (const char* name : {"vocab_size", "n_positions", "n_embd", "n_layer", "n_head"}) {
    for (const Json& value : {Json(0), Json(-1), Json(1.5), Json("12"), Json(true), Json(1u << 31),
                              Json(UINT64_MAX), Json::array()}) {
      EXPECT_THAT(Gpt2With({{name, value}}), HasSubstr("\"" + std::string(name) + "\" is "))
          << value;
    }
  }
  EXPECT_THAT(Gpt2With({{"n_layer", 10'001}}), HasSubstr("at most 10000"));
  EXPECT_THAT(Gpt2With({{"n_head", 7}}), HasSubstr("must be a multiple of n_head, 7"));
  EXPECT_THAT(LlamaWith({{"num_attention_heads", 64}, {"num_key_value_heads", 64}}),
              HasSubstr("so rotary positions turn 9"));
  for (const Json& value : {Json(-0.1), Json(1), Json("0.1")}) {
    EXPECT_THAT(Gpt2With({{"resid_pdrop", value}}), HasSubstr("\"resid_pdrop\" is ")) << value;
    EXPECT_THAT(Gpt2With({{"attn_pdrop", value}}), HasSubstr("\"attn_pdrop\" is ")) << value;
  }
  EXPECT_THAT(LlamaWith({{"rope_theta", 0}}), HasSubstr("\"rope_theta\" is 0"));
  EXPECT_THAT(LlamaWith({{"rope_theta", 500000}, {"rope_parameters", {{"rope_theta", 10000}}}}),
              HasSubstr("\"rope_theta\" is 500000, must be rope_parameters.rope_theta, 10000"));
  EXPECT_THAT(LlamaWith({{"tie_word_embeddings", 1}}), HasSubstr("must be true or false"));
}

TEST(HfConfigRefusalsTest, NotOneObject) {
  for (const char* text : {"", "[]", "7", "null", "\"x\"", "{", "{} {}", "{\"a\": 1,}", "{\"a\":}",
                           "{\"model_type\": \"gpt2\xff\"}", "{\"a\": 1e999}", "[{}]"}) {
    const auto config = ParseDecoderHfConfig(text, "dir/config.json");
    EXPECT_TRUE(absl::IsDataLoss(config.status())) << text;
    EXPECT_THAT(MessageOf(config), HasSubstr("dir/config.json: "));
  }
  const std::string deep = "{\"a\":" + std::string(100'000, '[');
  EXPECT_THAT(MessageOf(ParseDecoderHfConfig(deep, "c")), HasSubstr("more than 16 levels"));
  std::string many = "{\"model_type\":\"gpt2\"";
  for (int i = 0; i < 5000; ++i) many += ",\"k" + std::to_string(i) + "\":0";
  EXPECT_THAT(MessageOf(ParseDecoderHfConfig(many + "}", "c")), HasSubstr("more than 4096 keys"));
  EXPECT_THAT(MessageOf(ParseDecoderHfConfig("{\"" + std::string(300, 'k') + "\":0}", "c")),
              HasSubstr("over 256 bytes"));
}

TEST(HfConfigRefusalsTest, TwiceTheSameKey) {
  for (const char* text : {R"({"model_type": "gpt2", "model_type": "gpt2"})",
                           R"({"model_type": "gpt2", "other": 1, "other": 1})",
                           R"({"model_type": "gpt2", "other": {"a": 1, "a": 1}})",
                           R"({"model_type": "gpt2", "other": [{"a": {"b": 1, "b": 1}}]})"}) {
    EXPECT_THAT(MessageOf(ParseDecoderHfConfig(text, "c")), HasSubstr("is given twice")) << text;
  }
  // In two objects it is not twice; and what lies below is not a field of the top.
  EXPECT_EQ(MessageOf(ParseDecoderHfConfig(
                R"({"model_type": "gpt2", "a": {"n_head": 7}, "b": {"n_head": 7},
                    "c": [{"n_head": 7}], "d": {"e": {"n_head": 7}}})",
                "c", Ignore)),
            "accepted");
}

}  // namespace hf_config_refusals_test
}  // namespace apogee::nn
