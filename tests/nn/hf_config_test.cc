// SPDX-License-Identifier: Apache-2.0

// config.json of the transformers library: what it says becomes a model's settings and comes back;
// what these models cannot do is refused by name.
#include "apogee/nn/models/hf_config.h"

#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

namespace apogee::nn {
namespace hf_config_test {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
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
void Ignore(const std::string&) {}
std::string Gpt2With(const Json& changes) {
  return MessageOf(ParseGpt2HfConfig(Changed("gpt2.json", changes), "dir/config.json", Ignore));
}
std::string LlamaWith(const Json& changes) {
  return MessageOf(ParseLlamaHfConfig(Changed("llama.json", changes), "dir/config.json", Ignore));
}
// Sentences about what has no effect.
std::vector<std::string> NoticesOf(const std::string& name, const Json& changes) {
  std::vector<std::string> notices;
  const auto note = [&](const std::string& text) { notices.push_back(text); };
  const std::string text = Changed(name, changes);
  EXPECT_EQ(name == "gpt2.json" ? MessageOf(ParseGpt2HfConfig(text, "c", note))
                                : MessageOf(ParseLlamaHfConfig(text, "c", note)),
            "accepted");
  return notices;
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

TEST(HfConfigTest, WhatTheModelsCannotDoIsRefusedByName) {
  const std::vector<std::pair<const char*, Json>> gpt2 = {{"activation_function", "relu"},
                                                          {"n_inner", 100},
                                                          {"scale_attn_weights", false},
                                                          {"scale_attn_by_inverse_layer_idx", true},
                                                          {"add_cross_attention", true}};
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

TEST(HfConfigTest, OtherFunctionsAreRefused) {
  EXPECT_THAT(Gpt2With({{"quantization_config", {{"bits", 4}}}}),
              HasSubstr("\"quantization_config\" is an object, only null works"));
  EXPECT_THAT(LlamaWith({{"partial_rotary_factor", 0.5}}),
              HasSubstr("\"partial_rotary_factor\" is 0.5, only 1 works"));
  EXPECT_EQ(LlamaWith({{"partial_rotary_factor", 1.0}, {"quantization_config", nullptr}}),
            "accepted");
}

// The library takes both names.
TEST(HfConfigTest, Gpt2UnderTheNamesOfOtherModels) {
  const auto config = ParseGpt2HfConfig(
      R"({"model_type": "gpt2", "hidden_size": 48, "num_hidden_layers": 2, "n_head": 4,
          "num_attention_heads": 4, "max_position_embeddings": 7})",
      "c", Ignore);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->n_embd, 48);
  EXPECT_EQ(config->n_layer, 2);
  EXPECT_EQ(config->n_head, 4);
  EXPECT_EQ(config->n_positions, 7);
  EXPECT_THAT(Gpt2With({{"hidden_size", 48}}),
              HasSubstr("\"n_embd\" is 1280, must be \"hidden_size\", 48: both mean the same"));
}

// Dropouts that differ change no number of a model that is evaluated.
TEST(HfConfigTest, DropoutsWithoutEffectAreTold) {
  EXPECT_THAT(NoticesOf("gpt2.json", {{"attn_pdrop", 0.0}}), IsEmpty());
  EXPECT_THAT(NoticesOf("gpt2.json", {{"attn_pdrop", 0.25}}),
              ElementsAre(HasSubstr("c: \"attn_pdrop\" is 0.25 in the library; this model drops")));
  EXPECT_THAT(NoticesOf("gpt2.json", {{"attn_pdrop", nullptr}}),
              ElementsAre(HasSubstr("\"attn_pdrop\" is missing, so 0.1 in the library")));
  EXPECT_THAT(
      NoticesOf("gpt2.json", {{"attn_pdrop", 0}, {"embd_pdrop", 0.2}}),
      ElementsAre(HasSubstr("\"embd_pdrop\" is 0.2, and \"resid_pdrop\" 0.1; this model has "
                            "one dropout for both, which is 0.1")));
  EXPECT_THAT(NoticesOf("llama.json", {}), IsEmpty());
  EXPECT_THAT(NoticesOf("llama.json", {{"attention_dropout", 0.5}}),
              ElementsAre(HasSubstr("\"attention_dropout\" is 0.5")));
  ::testing::internal::CaptureStderr();
  EXPECT_TRUE(ParseGpt2HfConfig(Fixture("gpt2.json"), "dir/config.json").ok());
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("dir/config.json: \"attn_pdrop\" is 0.1"));
}

// What programs that generate text need comes back as it was.
TEST(HfConfigTest, TokenIdsComeBack) {
  const auto names = {"bos_token_id", "eos_token_id", "pad_token_id"};
  for (const Json& ids : std::vector<Json>{{{"bos_token_id", 3}, {"eos_token_id", {3, 5}}},
                                           {{"pad_token_id", -1}, {"bos_token_id", nullptr}},
                                           Json::object()}) {
    Json gpt2 = Json::parse(Fixture("gpt2.json")), llama = Json::parse(Fixture("llama.json"));
    for (Json* json : {&gpt2, &llama}) {
      for (const char* name : names) json->erase(name);
      json->update(ids);
    }
    const Json written[] = {
        Json::parse(FormatHfConfig(ValueOrThrow(ParseGpt2HfConfig(gpt2.dump(), "c", Ignore)))),
        Json::parse(FormatHfConfig(ValueOrThrow(ParseLlamaHfConfig(llama.dump(), "c", Ignore))))};
    for (const Json& json : written) {
      for (const char* name : names) {
        EXPECT_EQ(json.contains(name), ids.contains(name)) << name << " of " << ids;
        if (ids.contains(name)) EXPECT_EQ(json[name], ids[name]);
      }
    }
  }
  // A model that was not read from a file has none, not the library's.
  const Json fresh = Json::parse(FormatHfConfig(Gpt2Config{}));
  EXPECT_TRUE(fresh.contains("bos_token_id") && fresh["bos_token_id"].is_null());
  EXPECT_TRUE(fresh.contains("eos_token_id") && fresh["eos_token_id"].is_null());
  EXPECT_FALSE(fresh.contains("pad_token_id"));
  for (const Json& wrong : {Json("x"), Json(1.5), Json({1, "x"}), Json::object(), Json(true)}) {
    EXPECT_THAT(LlamaWith({{"eos_token_id", wrong}}),
                HasSubstr("must be a whole number, a list of such, or null"));
  }
  Json many = Json::array();
  for (int i = 0; i < 65; ++i) many.push_back(i);
  EXPECT_THAT(LlamaWith({{"eos_token_id", many}}), HasSubstr("lists more than 64 values"));
}

// A Mistral's attention is a Llama's unless its window ends before its positions do.
TEST(HfConfigTest, AMistralWithoutAWindow) {
  const auto with = [](Json changes, bool has_window = true) {
    changes["model_type"] = "mistral";
    changes["architectures"] = {"MistralForCausalLM"};
    Json json = Json::parse(Changed("llama.json", changes));
    if (!has_window) json.erase("sliding_window");
    return ParseLlamaHfConfig(json.dump(), "dir/config.json", Ignore);
  };
  const auto config = with({{"sliding_window", nullptr}});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->hidden_size, 576);
  EXPECT_EQ(config->num_key_value_heads, 3);
  EXPECT_EQ(MessageOf(with({{"sliding_window", 8192}})), "accepted");
  EXPECT_THAT(MessageOf(with({{"sliding_window", 8191}})),
              HasSubstr("\"sliding_window\" is 8191, so attention is over 8191 of "
                        "max_position_embeddings, 8192: only"));
  // Missing it is the library's.
  EXPECT_THAT(MessageOf(with({}, false)),
              HasSubstr("\"sliding_window\" is missing, so attention is "
                        "over 4096"));
  EXPECT_EQ(MessageOf(with({{"max_position_embeddings", 4096}}, false)), "accepted");
  EXPECT_THAT(MessageOf(with({{"sliding_window", nullptr},
                              {"layer_types", {"full_attention", "sliding_attention"}}})),
              HasSubstr("\"layer_types\" is [\"full_attention\", \"sliding_attention\"], must be"));
  EXPECT_THAT(MessageOf(ParseLlamaHfConfig(
                  Changed("llama.json", {{"model_type", "mistral"}, {"sliding_window", nullptr}}),
                  "c", Ignore)),
              HasSubstr("\"architectures\" is [\"LlamaForCausalLM\"], must be a list with "
                        "\"MistralForCausalLM\""));
  // The library's defaults of a Mistral, not of a Llama.
  const auto defaults =
      ParseLlamaHfConfig(R"({"model_type": "mistral", "sliding_window": null})", "c", Ignore);
  ASSERT_TRUE(defaults.ok()) << defaults.status();
  EXPECT_EQ(defaults->intermediate_size, 14336);
  EXPECT_EQ(defaults->num_key_value_heads, 8);
  EXPECT_EQ(defaults->max_position_embeddings, 131072);
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

}  // namespace hf_config_test
}  // namespace apogee::nn
