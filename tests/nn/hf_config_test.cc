// SPDX-License-Identifier: Apache-2.0

// config.json of the transformers library: what it says becomes a model's settings and comes back;
// what these models cannot do is refused by name.
#include "apogee/nn/models/hf_config.h"

#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include <map>

#include "apogee/tests/nn/hf_configs.h"

namespace apogee::nn {
namespace hf_config_test {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
// Sentences about what has no effect.
std::vector<std::string> NoticesOf(const std::string& name, const Json& changes) {
  std::vector<std::string> notices;
  const auto note = [&](const std::string& text) { notices.push_back(text); };
  const std::string text = Changed(name, changes);
  EXPECT_EQ(name == "gpt2.json" ? MessageOf(ParseDecoderHfConfig(text, "c", note))
                                : MessageOf(ParseDecoderHfConfig(text, "c", note)),
            "accepted");
  return notices;
}

TEST(HfConfigTest, Gpt2AsTheHubHasIt) {
  const auto config = ParseDecoderHfConfig(Fixture("gpt2.json"), "gpt2.json");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->vocab_size, 50257);
  EXPECT_EQ(config->max_tokens, 1024);
  EXPECT_EQ(config->num_layers, 36);
  EXPECT_EQ(config->block.hidden_size, 1280);
  EXPECT_EQ(config->block.intermediate_size, 4 * 1280);
  EXPECT_EQ(config->block.num_heads, 20);
  EXPECT_EQ(config->block.dropout, 0.1);
  EXPECT_EQ(config->block.norm_eps, 1e-5);
  EXPECT_TRUE(config->tie_word_embeddings);
  EXPECT_FALSE(config->recompute);
}

TEST(HfConfigTest, LlamaAsTheHubHasIt) {
  const auto config = ParseDecoderHfConfig(Fixture("llama.json"), "llama.json");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->vocab_size, 49152);
  EXPECT_EQ(config->num_layers, 30);
  EXPECT_EQ(config->max_tokens, 8192);
  EXPECT_EQ(config->block.hidden_size, 576);
  EXPECT_EQ(config->block.intermediate_size, 1536);
  EXPECT_EQ(config->block.num_heads, 9);
  EXPECT_EQ(config->block.num_kv_heads, 3);
  EXPECT_EQ(config->block.norm_eps, 1e-5);
  EXPECT_EQ(config->block.rotary.theta, 100000);
  EXPECT_TRUE(config->tie_word_embeddings);
}

// The settings that checkpoints compare; they show every option that changes the result.
std::map<std::string, std::string> SettingsOf(const DecoderConfig& config) {
  ConfigTexts texts;
  Decoder(config).DescribeConfig(texts);
  texts.function.insert(texts.training.begin(), texts.training.end());
  return texts.function;
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
  const auto got = ParseDecoderHfConfig(text, "config.json");
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(SettingsOf(*got), SettingsOf(DecoderConfigOf(want)));
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
  const auto got = ParseDecoderHfConfig(text, "config.json");
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(SettingsOf(*got), SettingsOf(DecoderConfigOf(want)));
  const Json json = Json::parse(text);
  EXPECT_EQ(json["architectures"], Json({"LlamaForCausalLM"}));
  EXPECT_EQ(json["hidden_act"], "silu");
  EXPECT_EQ(json["head_dim"], 8);
}

TEST(HfConfigTest, MissingFieldsHaveTheLibrarysDefaults) {
  const auto gpt2 = ParseDecoderHfConfig("{\"model_type\": \"gpt2\"}", "c");
  ASSERT_TRUE(gpt2.ok()) << gpt2.status();
  EXPECT_EQ(gpt2->block.hidden_size, 768);
  EXPECT_EQ(gpt2->block.dropout, 0.1);
  const auto llama = ParseDecoderHfConfig(
      "{\"model_type\": \"llama\", \"num_attention_heads\": 16, \"rope_scaling\": null}", "c");
  ASSERT_TRUE(llama.ok()) << llama.status();
  EXPECT_EQ(llama->block.num_kv_heads, 16);
  EXPECT_EQ(llama->block.rotary.theta, 10000);
  EXPECT_FALSE(llama->tie_word_embeddings);
}

TEST(HfConfigTest, NewerNamesOfRotaryPositions) {
  Json json = Json::parse(Fixture("llama.json"));
  json.erase("rope_theta");
  json["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 500000}};
  const auto config = ParseDecoderHfConfig(json.dump(), "c");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->block.rotary.theta, 500000);
  EXPECT_THAT(LlamaWith({{"rope_parameters", {{"rope_type", "yarn"}}}}),
              HasSubstr("\"rope_parameters.rope_type\" is \"yarn\", only \"default\", \"linear\" "
                        "and \"llama3\" work"));
}

// Each setting that changes the result changes what a checkpoint records.
TEST(HfConfigTest, SettingsThatChangeTheResult) {
  const auto settings = [](const std::string& text) {
    return SettingsOf(ValueOrThrow(ParseDecoderHfConfig(text, "c", Ignore)));
  };
  const Json llama = Json::parse(Fixture("llama.json")), gpt2 = Json::parse(Fixture("gpt2.json"));
  const auto sizes = [](const char* type, const Json& more = Json::object()) {
    Json json = {{"model_type", type},       {"vocab_size", 50},
                 {"hidden_size", 32},        {"intermediate_size", 40},
                 {"num_hidden_layers", 2},   {"num_attention_heads", 4},
                 {"num_key_value_heads", 2}, {"max_position_embeddings", 64},
                 {"pad_token_id", 1}};
    json.update(more);
    return json;
  };
  const std::vector<std::pair<Json, Json>> changes = {
      {llama, {{"hidden_act", "gelu"}}},
      {llama, {{"head_dim", 32}}},
      {llama, {{"partial_rotary_factor", 0.5}}},
      {llama, {{"pad_token_id", 5}}},
      {llama, {{"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}}}},
      {llama,
       {{"rope_scaling",
         {{"rope_type", "llama3"},
          {"factor", 8.0},
          {"low_freq_factor", 1.0},
          {"high_freq_factor", 4.0},
          {"original_max_position_embeddings", 1024}}}}},
      {gpt2, {{"scale_attn_weights", false}}},
      {gpt2, {{"scale_attn_by_inverse_layer_idx", true}}},
      {gpt2, {{"activation_function", "relu"}}},
      {sizes("mistral"), {{"sliding_window", 7}}},
      {sizes("qwen2"),
       {{"use_sliding_window", true}, {"sliding_window", 8}, {"max_window_layers", 1}}},
      {sizes("gemma2"), {{"sliding_window", 9}}},
      {sizes("gemma2"), {{"attn_logit_softcapping", nullptr}}},
      {sizes("gemma2"), {{"final_logit_softcapping", 12.0}}},
      {sizes("gemma2"), {{"query_pre_attn_scalar", 100}}},
      {sizes("phi3"), {{"sliding_window", 6}}},
      {sizes("gpt_neox", {{"num_key_value_heads", nullptr}}), {{"use_parallel_residual", false}}},
      {sizes("gpt_neox", {{"num_key_value_heads", nullptr}}), {{"rotary_pct", 0.5}}},
      {sizes("gpt_neox", {{"num_key_value_heads", nullptr}}), {{"rotary_emb_base", 500}}}};
  for (const auto& [base, change] : changes) {
    Json changed = base;
    changed.update(change);
    EXPECT_NE(settings(changed.dump()), settings(base.dump())) << change;
  }
}

// Fields without a meaning here are told, not ignored silently.
TEST(HfConfigTest, UnknownFieldsAreTold) {
  EXPECT_THAT(NoticesOf("llama.json", {{"logit_scale", 0.5}, {"use_cache", false}}),
              ElementsAre("c: \"logit_scale\" is 0.5, which this model does not know and does not "
                          "use"));
}

// The hub's files of OPT have these fields, under either order of norms.
TEST(HfConfigTest, FieldsOfOptAreKnown) {
  const auto notices_of = [](bool norms_before, double dropout) {
    std::vector<std::string> notices;
    const Json json = {{"model_type", "opt"},
                       {"activation_dropout", dropout},
                       {"_remove_final_layer_norm", false},
                       {"do_layer_norm_before", norms_before}};
    const auto config = ParseDecoderHfConfig(
        json.dump(), "c", [&](const std::string& text) { notices.push_back(text); });
    EXPECT_TRUE(config.ok()) << config.status();
    return notices;
  };
  for (const bool norms_before : {false, true}) {
    EXPECT_THAT(notices_of(norms_before, 0), ElementsAre());
    EXPECT_THAT(notices_of(norms_before, 0.1),
                ElementsAre(HasSubstr("\"activation_dropout\" is 0.1 in the library; this model "
                                      "drops no activations")));
  }
}

// The library takes both names.
TEST(HfConfigTest, Gpt2UnderTheNamesOfOtherModels) {
  const auto config = ParseDecoderHfConfig(
      R"({"model_type": "gpt2", "hidden_size": 48, "num_hidden_layers": 2, "n_head": 4,
          "num_attention_heads": 4, "max_position_embeddings": 7})",
      "c", Ignore);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->block.hidden_size, 48);
  EXPECT_EQ(config->num_layers, 2);
  EXPECT_EQ(config->block.num_heads, 4);
  EXPECT_EQ(config->max_tokens, 7);
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
  EXPECT_TRUE(ParseDecoderHfConfig(Fixture("gpt2.json"), "dir/config.json").ok());
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
    const auto of_gpt2 = ValueOrThrow(ParseDecoderHfConfig(gpt2.dump(), "c", Ignore));
    const auto of_llama = ValueOrThrow(ParseDecoderHfConfig(llama.dump(), "c", Ignore));
    const Json written[] = {
        Json::parse(FormatHfConfig(Gpt2Config{.token_ids = of_gpt2.token_ids})),
        Json::parse(FormatHfConfig(LlamaConfig{.token_ids = of_llama.token_ids}))};
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

// A window of all positions is none.
TEST(HfConfigTest, WindowsOfAMistral) {
  const auto with = [](Json changes, bool has_window = true) {
    changes["model_type"] = "mistral";
    changes["architectures"] = {"MistralForCausalLM"};
    Json json = Json::parse(Changed("llama.json", changes));
    if (!has_window) json.erase("sliding_window");
    return ParseDecoderHfConfig(json.dump(), "dir/config.json", Ignore);
  };
  const auto config = with({{"sliding_window", nullptr}});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->block.hidden_size, 576);
  EXPECT_EQ(config->block.num_kv_heads, 3);
  EXPECT_EQ(config->block.window, 0);
  EXPECT_EQ(with({{"sliding_window", 8192}})->block.window, 0);
  EXPECT_EQ(with({{"sliding_window", 8191}})->block.window, 8191);
  // Missing it is the library's.
  EXPECT_EQ(with({}, false)->block.window, 4096);
  EXPECT_EQ(with({{"max_position_embeddings", 4096}}, false)->block.window, 0);
  EXPECT_THAT(MessageOf(with({{"sliding_window", nullptr},
                              {"layer_types", {"full_attention", "sliding_attention"}}})),
              HasSubstr("\"layer_types\" is [\"full_attention\", \"sliding_attention\"], must be"));
  EXPECT_THAT(MessageOf(ParseDecoderHfConfig(
                  Changed("llama.json", {{"model_type", "mistral"}, {"sliding_window", nullptr}}),
                  "c", Ignore)),
              HasSubstr("\"architectures\" is [\"LlamaForCausalLM\"], must be a list with "
                        "\"MistralForCausalLM\""));
  // The library's defaults of a Mistral, not of a Llama.
  const auto defaults =
      ParseDecoderHfConfig(R"({"model_type": "mistral", "sliding_window": null})", "c", Ignore);
  ASSERT_TRUE(defaults.ok()) << defaults.status();
  EXPECT_EQ(defaults->block.intermediate_size, 14336);
  EXPECT_EQ(defaults->block.num_kv_heads, 8);
  EXPECT_EQ(defaults->max_tokens, 131072);
}

}  // namespace hf_config_test
}  // namespace apogee::nn
