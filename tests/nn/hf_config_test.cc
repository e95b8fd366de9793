// config.json of the transformers library: what it says becomes a model's settings and comes back;
// what these models cannot do is refused by name.
#include "apogee/nn/models/hf_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

namespace apogee::nn {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::json;

std::string Fixture(const std::string& name) {
  std::ifstream file(std::string(APOGEE_HF_CONFIGS) + "/" + name);
  EXPECT_TRUE(file.good()) << name;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// The fixture with some fields changed.
std::string Changed(const std::string& name, const Json& changes) {
  Json json = Json::parse(Fixture(name));
  for (const auto& [key, value] : changes.items()) json[key] = value;
  return json.dump();
}

template <typename T>
std::string MessageOf(const absl::StatusOr<T>& config) {
  return config.ok() ? "accepted" : Message(config.status());
}
std::string Gpt2With(const Json& changes) {
  return MessageOf(ParseGpt2HfConfig(Changed("gpt2.json", changes), "dir/config.json"));
}
std::string LlamaWith(const Json& changes) {
  return MessageOf(ParseLlamaHfConfig(Changed("llama.json", changes), "dir/config.json"));
}

TEST(HfConfigTest, Gpt2AsTheHubHasIt) {
  const auto config = ParseGpt2HfConfig(Fixture("gpt2.json"), "gpt2.json");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->vocab_size, 50257);
  EXPECT_EQ(config->n_positions, 1024);
  EXPECT_EQ(config->n_embd, 1280);
  EXPECT_EQ(config->n_layer, 36);
  EXPECT_EQ(config->n_head, 20);
  EXPECT_EQ(config->dropout, 0.1);
  EXPECT_EQ(config->layer_norm_epsilon, 1e-5);
  EXPECT_TRUE(config->tie_word_embeddings);
  EXPECT_FALSE(config->recompute);
}

TEST(HfConfigTest, LlamaAsTheHubHasIt) {
  const auto config = ParseLlamaHfConfig(Fixture("llama.json"), "llama.json");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->vocab_size, 49152);
  EXPECT_EQ(config->hidden_size, 576);
  EXPECT_EQ(config->intermediate_size, 1536);
  EXPECT_EQ(config->num_hidden_layers, 30);
  EXPECT_EQ(config->num_attention_heads, 9);
  EXPECT_EQ(config->num_key_value_heads, 3);
  EXPECT_EQ(config->max_position_embeddings, 8192);
  EXPECT_EQ(config->rms_norm_eps, 1e-5);
  EXPECT_EQ(config->rope_theta, 100000);
  EXPECT_TRUE(config->tie_word_embeddings);
}

TEST(HfConfigTest, Gpt2RoundTrip) {
  const Gpt2Config want{.vocab_size = 257,
                        .n_positions = 33,
                        .n_embd = 48,
                        .n_layer = 5,
                        .n_head = 3,
                        .dropout = 0.1234567890123,
                        .layer_norm_epsilon = 3e-7,
                        .tie_word_embeddings = false};
  const std::string text = FormatHfConfig(want);
  const auto got = ParseGpt2HfConfig(text, "config.json");
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(got->vocab_size, want.vocab_size);
  EXPECT_EQ(got->n_positions, want.n_positions);
  EXPECT_EQ(got->n_embd, want.n_embd);
  EXPECT_EQ(got->n_layer, want.n_layer);
  EXPECT_EQ(got->n_head, want.n_head);
  EXPECT_EQ(got->dropout, want.dropout);
  EXPECT_EQ(got->layer_norm_epsilon, want.layer_norm_epsilon);
  EXPECT_EQ(got->tie_word_embeddings, want.tie_word_embeddings);
  // What the library reads beside.
  const Json json = Json::parse(text);
  EXPECT_EQ(json["architectures"], Json({"GPT2LMHeadModel"}));
  EXPECT_EQ(json["activation_function"], "gelu_new");
  EXPECT_EQ(json["embd_pdrop"], want.dropout);
  EXPECT_EQ(json["attn_pdrop"], 0.0);
}

TEST(HfConfigTest, LlamaRoundTrip) {
  const LlamaConfig want{.vocab_size = 101,
                         .hidden_size = 48,
                         .intermediate_size = 77,
                         .num_hidden_layers = 3,
                         .num_attention_heads = 6,
                         .num_key_value_heads = 2,
                         .max_position_embeddings = 19,
                         .rms_norm_eps = 3e-7,
                         .rope_theta = 12345.5,
                         .tie_word_embeddings = true};
  const std::string text = FormatHfConfig(want);
  const auto got = ParseLlamaHfConfig(text, "config.json");
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(got->vocab_size, want.vocab_size);
  EXPECT_EQ(got->hidden_size, want.hidden_size);
  EXPECT_EQ(got->intermediate_size, want.intermediate_size);
  EXPECT_EQ(got->num_hidden_layers, want.num_hidden_layers);
  EXPECT_EQ(got->num_attention_heads, want.num_attention_heads);
  EXPECT_EQ(got->num_key_value_heads, want.num_key_value_heads);
  EXPECT_EQ(got->max_position_embeddings, want.max_position_embeddings);
  EXPECT_EQ(got->rms_norm_eps, want.rms_norm_eps);
  EXPECT_EQ(got->rope_theta, want.rope_theta);
  EXPECT_EQ(got->tie_word_embeddings, want.tie_word_embeddings);
  const Json json = Json::parse(text);
  EXPECT_EQ(json["architectures"], Json({"LlamaForCausalLM"}));
  EXPECT_EQ(json["head_dim"], 8);
  EXPECT_EQ(json["hidden_act"], "silu");
}

TEST(HfConfigTest, MissingFieldsHaveTheLibrarysDefaults) {
  const auto gpt2 = ParseGpt2HfConfig("{\"model_type\": \"gpt2\"}", "c");
  ASSERT_TRUE(gpt2.ok()) << gpt2.status();
  EXPECT_EQ(gpt2->n_embd, 768);
  EXPECT_EQ(gpt2->dropout, 0.1);
  const auto llama = ParseLlamaHfConfig(
      "{\"model_type\": \"llama\", \"num_attention_heads\": 16, \"rope_scaling\": null}", "c");
  ASSERT_TRUE(llama.ok()) << llama.status();
  EXPECT_EQ(llama->num_key_value_heads, 16);
  EXPECT_EQ(llama->rope_theta, 10000);
  EXPECT_FALSE(llama->tie_word_embeddings);
}

TEST(HfConfigTest, NewerNamesOfRotaryPositions) {
  Json json = Json::parse(Fixture("llama.json"));
  json.erase("rope_theta");
  json["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 500000}};
  const auto config = ParseLlamaHfConfig(json.dump(), "c");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->rope_theta, 500000);
  EXPECT_THAT(LlamaWith({{"rope_parameters", {{"rope_type", "yarn"}}}}),
              HasSubstr("\"rope_parameters.rope_type\" is \"yarn\", only \"default\" works"));
}

TEST(HfConfigTest, OtherModelsAreRefused) {
  EXPECT_THAT(MessageOf(ParseGpt2HfConfig(Fixture("llama.json"), "dir/config.json")),
              HasSubstr("dir/config.json: \"model_type\" is \"llama\", only \"gpt2\" works"));
  EXPECT_THAT(MessageOf(ParseLlamaHfConfig("{}", "c")),
              HasSubstr("\"model_type\" is missing, must be \"llama\""));
  EXPECT_THAT(Gpt2With({{"architectures", {"GPT2ForSequenceClassification"}}}),
              HasSubstr("\"architectures\" is a list, must be a list with \"GPT2LMHeadModel\""));
  EXPECT_THAT(Gpt2With({{"architectures", "GPT2LMHeadModel"}}), HasSubstr("\"architectures\""));
  EXPECT_EQ(Gpt2With({{"architectures", nullptr}}), "accepted");
  // Only of the top, and of that field.
  EXPECT_THAT(Gpt2With({{"architectures", Json::array()}, {"other", {"GPT2LMHeadModel"}}}),
              HasSubstr("\"architectures\""));
}

TEST(HfConfigTest, WhatTheModelsCannotDoIsRefusedByName) {
  const std::vector<std::pair<const char*, Json>> gpt2 = {
      {"activation_function", "relu"}, {"n_inner", 100},
      {"scale_attn_weights", false},   {"scale_attn_by_inverse_layer_idx", true},
      {"add_cross_attention", true},   {"embd_pdrop", 0.2}};
  for (const auto& [name, value] : gpt2) {
    EXPECT_THAT(Gpt2With({{name, value}}),
                AllOf(HasSubstr("dir/config.json: \"" + std::string(name) + "\" is "),
                      HasSubstr(value.dump())));
  }
  EXPECT_EQ(Gpt2With({{"n_inner", 4 * 1280}}), "accepted");
  const std::vector<std::pair<const char*, Json>> llama = {{"hidden_act", "gelu"},
                                                           {"attention_bias", true},
                                                           {"mlp_bias", true},
                                                           {"head_dim", 128},
                                                           {"num_key_value_heads", 4}};
  for (const auto& [name, value] : llama) {
    EXPECT_THAT(LlamaWith({{name, value}}),
                AllOf(HasSubstr("dir/config.json: \"" + std::string(name) + "\" is "),
                      HasSubstr(value.dump())));
  }
  EXPECT_THAT(LlamaWith({{"rope_scaling", {{"rope_type", "llama3"}, {"factor", 8.0}}}}),
              HasSubstr("\"rope_scaling.rope_type\" is \"llama3\""));
  EXPECT_THAT(LlamaWith({{"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}}}),
              HasSubstr("\"rope_scaling.type\" is \"linear\""));
  EXPECT_THAT(LlamaWith({{"rope_scaling", {{"factor", 2.0}}}}), HasSubstr("\"rope_scaling\" is"));
  EXPECT_THAT(LlamaWith({{"rope_scaling", 2}}), HasSubstr("\"rope_scaling\" is 2"));
  EXPECT_EQ(LlamaWith({{"head_dim", 64}}), "accepted");
}

TEST(HfConfigTest, RangesAreChecked) {
  for (const char* name : {"vocab_size", "n_positions", "n_embd", "n_layer", "n_head"}) {
    for (const Json& value : {Json(0), Json(-1), Json(1.5), Json("12"), Json(true), Json(1u << 31),
                              Json(UINT64_MAX), Json::array()}) {
      EXPECT_THAT(Gpt2With({{name, value}}), HasSubstr("\"" + std::string(name) + "\" is "))
          << value;
    }
  }
  EXPECT_THAT(Gpt2With({{"n_layer", 10'001}}), HasSubstr("at most 10000"));
  EXPECT_THAT(Gpt2With({{"n_head", 7}}), HasSubstr("must be a multiple of n_head, 7"));
  EXPECT_THAT(LlamaWith({{"num_attention_heads", 64}}), HasSubstr("even multiple"));
  for (const Json& value : {Json(-0.1), Json(1), Json("0.1")}) {
    EXPECT_THAT(Gpt2With({{"resid_pdrop", value}}), HasSubstr("\"resid_pdrop\" is ")) << value;
    EXPECT_THAT(Gpt2With({{"attn_pdrop", value}}), HasSubstr("\"attn_pdrop\" is ")) << value;
  }
  EXPECT_THAT(LlamaWith({{"rope_theta", 0}}), HasSubstr("\"rope_theta\" is 0"));
  EXPECT_THAT(LlamaWith({{"rope_theta", 500000}, {"rope_parameters", {{"rope_theta", 10000}}}}),
              HasSubstr("\"rope_theta\" is 500000, must be rope_parameters.rope_theta, 10000"));
  EXPECT_THAT(LlamaWith({{"tie_word_embeddings", 1}}), HasSubstr("must be true or false"));
}

TEST(HfConfigTest, NotOneObject) {
  for (const char* text : {"", "[]", "7", "null", "\"x\"", "{", "{} {}", "{\"a\": 1,}", "{\"a\":}",
                           "{\"model_type\": \"gpt2\xff\"}", "{\"a\": 1e999}", "[{}]"}) {
    const auto config = ParseGpt2HfConfig(text, "dir/config.json");
    EXPECT_TRUE(absl::IsDataLoss(config.status())) << text;
    EXPECT_THAT(MessageOf(config), HasSubstr("dir/config.json: "));
  }
  const std::string deep = "{\"a\":" + std::string(100'000, '[');
  EXPECT_THAT(MessageOf(ParseGpt2HfConfig(deep, "c")), HasSubstr("more than 16 levels"));
  std::string many = "{\"model_type\":\"gpt2\"";
  for (int i = 0; i < 5000; ++i) many += ",\"k" + std::to_string(i) + "\":0";
  EXPECT_THAT(MessageOf(ParseGpt2HfConfig(many + "}", "c")), HasSubstr("more than 4096 keys"));
  EXPECT_THAT(MessageOf(ParseGpt2HfConfig("{\"" + std::string(300, 'k') + "\":0}", "c")),
              HasSubstr("over 256 bytes"));
}

TEST(HfConfigTest, TwiceTheSameKey) {
  for (const char* text : {R"({"model_type": "gpt2", "model_type": "gpt2"})",
                           R"({"model_type": "gpt2", "other": 1, "other": 1})",
                           R"({"model_type": "gpt2", "other": {"a": 1, "a": 1}})",
                           R"({"model_type": "gpt2", "other": [{"a": {"b": 1, "b": 1}}]})"}) {
    EXPECT_THAT(MessageOf(ParseGpt2HfConfig(text, "c")), HasSubstr("is given twice")) << text;
  }
  // In two objects it is not twice; and what lies below is not a field of the top.
  EXPECT_EQ(MessageOf(ParseGpt2HfConfig(
                R"({"model_type": "gpt2", "a": {"n_head": 7}, "b": {"n_head": 7},
                    "c": [{"n_head": 7}], "d": {"e": {"n_head": 7}}})",
                "c")),
            "accepted");
}

}  // namespace
}  // namespace apogee::nn
