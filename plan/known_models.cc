// SPDX-License-Identifier: Apache-2.0

// The shapes of well-known models, as config.json has them.
#include "apogee/core/text/name_table.h"
#include "apogee/plan/training_setup.h"

namespace apogee::plan {
namespace {

std::string Gpt2Json(int64_t layers, int64_t heads, int64_t dim) {
  return internal::Concat(
      R"({"model_type": "gpt2", "vocab_size": 50257, "n_positions": 1024, "n_layer": )", layers,
      R"(, "n_head": )", heads, R"(, "n_embd": )", dim, "}");
}

struct LlamaShape {
  int64_t layers, heads, kv_heads, dim, hidden, vocab_size, tokens;
};

std::string LlamaJson(const LlamaShape& shape) {
  return internal::Concat(
      R"({"model_type": "llama", "rms_norm_eps": 1e-5, "tie_word_embeddings": false)",
      R"(, "num_hidden_layers": )", shape.layers, R"(, "num_attention_heads": )", shape.heads,
      R"(, "num_key_value_heads": )", shape.kv_heads, R"(, "hidden_size": )", shape.dim,
      R"(, "intermediate_size": )", shape.hidden, R"(, "vocab_size": )", shape.vocab_size,
      R"(, "max_position_embeddings": )", shape.tokens, "}");
}

constexpr const char* kMixtral8x7b =
    R"({"model_type": "mixtral", "vocab_size": 32000, "hidden_size": 4096,
        "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2,
        "max_position_embeddings": 32768, "rms_norm_eps": 1e-5, "tie_word_embeddings": false})";
constexpr const char* kQwen3With30b =
    R"({"model_type": "qwen3_moe", "vocab_size": 151936, "hidden_size": 2048,
        "intermediate_size": 6144, "moe_intermediate_size": 768, "num_hidden_layers": 48,
        "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128,
        "num_experts_per_tok": 8, "norm_topk_prob": true, "max_position_embeddings": 40960,
        "tie_word_embeddings": false})";

NameTable<std::string> MakeTable() {
  NameTable<std::string> table("model");
  table.Add("gpt2", Gpt2Json(12, 12, 768));
  table.Add("gpt2-medium", Gpt2Json(24, 16, 1024));
  table.Add("gpt2-large", Gpt2Json(36, 20, 1280));
  table.Add("gpt2-xl", Gpt2Json(48, 25, 1600));
  table.Add("llama2-7b", LlamaJson({32, 32, 32, 4096, 11008, 32000, 4096}));
  table.Add("llama2-13b", LlamaJson({40, 40, 40, 5120, 13824, 32000, 4096}));
  table.Add("llama2-70b", LlamaJson({80, 64, 8, 8192, 28672, 32000, 4096}));
  table.Add("llama3-8b", LlamaJson({32, 32, 8, 4096, 14336, 128256, 131072}));
  table.Add("llama3-70b", LlamaJson({80, 64, 8, 8192, 28672, 128256, 131072}));
  table.Add("llama3-405b", LlamaJson({126, 128, 8, 16384, 53248, 128256, 131072}));
  table.Add("mixtral-8x7b", kMixtral8x7b);
  table.Add("qwen3-30b-a3b", kQwen3With30b);
  return table;
}

}  // namespace

absl::StatusOr<std::string> ConfigOf(const std::string& name) {
  const NameTable<std::string> table = MakeTable();
  APOGEE_ASSIGN_OR_RETURN(const std::string* json, table.Find(name));
  return *json;
}

absl::StatusOr<TrainingSetup> SetupOf(const std::string& name, const ModelOptions& options) {
  APOGEE_ASSIGN_OR_RETURN(const std::string json, ConfigOf(name));
  APOGEE_ASSIGN_OR_RETURN(TrainingSetup setup, SetupOfConfig(json, name, options));
  setup.model = name;
  return setup;
}

std::vector<std::string> KnownModels() { return MakeTable().names(); }

}  // namespace apogee::plan
