// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <string>
#include <vector>

#include "apogee/checkpoint/files/new_folder.h"
#include "apogee/checkpoint/hf/hf_weights.h"
#include "apogee/core/text/text.h"
#include "apogee/data/tokenizer/bpe/train_bpe.h"
#include "apogee/driver/model_folder.h"
#include "apogee/driver/model_folder/partial_folder.h"
#include "apogee/nn/models/hf_model.h"
#include "apogee/tensor/cpu/cpu_context.h"

namespace apogee::driver {
namespace {

// The ids of the 256 bytes, of "<|endoftext|>", and padding, which most published models have.
constexpr int64_t kVocabSize = 320;
constexpr int64_t kEndOfText = 256;

constexpr const char* kSizes = R"("hidden_size": 64,
  "num_hidden_layers": 2,
  "num_attention_heads": 4,
  "max_position_embeddings": 256)";
// Every token takes two of four experts.
constexpr const char* kExperts = R"("num_experts_per_tok": 2,
  "router_aux_loss_coef": 0.02)";
constexpr const char* kGated = R"("intermediate_size": 160,
  "num_key_value_heads": 2,
  "rms_norm_eps": 1e-05)";

struct NewModel {
  const char* model_type;
  const char* architecture;
  std::vector<const char*> fields;
};

// Sorted. Each has what sets its family apart. Dropouts are zero, because runs under different
// plugins and other libraries are compared.
const std::vector<NewModel>& NewModels() {
  static const std::vector<NewModel> models = {
      {"gemma",
       "GemmaForCausalLM",
       {kSizes, kGated, R"("head_dim": 16)", R"("hidden_activation": "gelu_pytorch_tanh")",
        R"("tie_word_embeddings": true)"}},
      {"gemma2",
       "Gemma2ForCausalLM",
       {kSizes, kGated, R"("head_dim": 16)", R"("hidden_activation": "gelu_pytorch_tanh")",
        R"("query_pre_attn_scalar": 20)", R"("attn_logit_softcapping": 6.0)",
        R"("final_logit_softcapping": 8.0)", R"("sliding_window": 24)",
        R"("tie_word_embeddings": true)"}},
      {"gpt2",
       "GPT2LMHeadModel",
       {R"("n_embd": 64)", R"("n_layer": 2)", R"("n_head": 4)", R"("n_positions": 256)",
        R"("resid_pdrop": 0.0)", R"("embd_pdrop": 0.0)", R"("attn_pdrop": 0.0)",
        R"("tie_word_embeddings": true)"}},
      {"gpt_neox",
       "GPTNeoXForCausalLM",
       {kSizes, R"("intermediate_size": 160)", R"("rotary_pct": 0.5)",
        R"("use_parallel_residual": true)", R"("tie_word_embeddings": false)"}},
      {"llama", "LlamaForCausalLM", {kSizes, kGated, R"("tie_word_embeddings": false)"}},
      {"mistral",
       "MistralForCausalLM",
       {kSizes, kGated, R"("sliding_window": 24)", R"("tie_word_embeddings": false)"}},
      {"mixtral",
       "MixtralForCausalLM",
       {kSizes, kGated, kExperts, R"("num_local_experts": 4)", R"("tie_word_embeddings": false)"}},
      {"olmo2", "Olmo2ForCausalLM", {kSizes, kGated, R"("tie_word_embeddings": false)"}},
      {"opt",
       "OPTForCausalLM",
       {kSizes, R"("ffn_dim": 160)", R"("word_embed_proj_dim": 64)", R"("dropout": 0.0)",
        R"("attention_dropout": 0.0)", R"("tie_word_embeddings": true)"}},
      {"phi3",
       "Phi3ForCausalLM",
       {kSizes, kGated, R"("original_max_position_embeddings": 256)",
        R"("tie_word_embeddings": false)"}},
      {"qwen2", "Qwen2ForCausalLM", {kSizes, kGated, R"("tie_word_embeddings": true)"}},
      {"qwen2_moe",
       "Qwen2MoeForCausalLM",
       {kSizes, kGated, kExperts, R"("num_experts": 4)", R"("moe_intermediate_size": 48)",
        R"("shared_expert_intermediate_size": 96)", R"("tie_word_embeddings": false)"}},
      {"qwen3",
       "Qwen3ForCausalLM",
       {kSizes, kGated, R"("head_dim": 24)", R"("tie_word_embeddings": false)"}},
      {"qwen3_moe",
       "Qwen3MoeForCausalLM",
       {kSizes, kGated, kExperts, R"("head_dim": 24)", R"("num_experts": 4)",
        R"("moe_intermediate_size": 48)", R"("norm_topk_prob": true)",
        R"("tie_word_embeddings": false)"}}};
  return models;
}

std::string ConfigOf(const NewModel& model) {
  std::string text = internal::Concat("{\n  \"architectures\": [\"", model.architecture,
                                      "\"],\n  \"model_type\": \"", model.model_type, "\"");
  for (const char* field : model.fields) text += std::string(",\n  ") + field;
  return text + internal::Concat(",\n  \"vocab_size\": ", kVocabSize,
                                 ",\n  \"bos_token_id\": ", kEndOfText,
                                 ",\n  \"eos_token_id\": ", kEndOfText,
                                 ",\n  \"pad_token_id\": null,\n  \"dtype\": \"float32\"\n}\n");
}

constexpr const char* kTokenizerConfig = R"({
  "tokenizer_class": "PreTrainedTokenizerFast",
  "bos_token": "<|endoftext|>",
  "eos_token": "<|endoftext|>",
  "model_max_length": 256,
  "clean_up_tokenization_spaces": false
}
)";

absl::Status Write(const nn::Module& model, const std::string& config, const std::string& path) {
  const auto& files = checkpoint::RealFileSystem();
  APOGEE_RETURN_IF_ERROR(RemovePartial(path));
  const std::string partial = PartialOf(path);
  std::vector<checkpoint::TensorPart> parts;
  for (const autograd::ParameterPtr& p : model.Parameters()) {
    parts.push_back({p->name(), p->data(), Layout(p->shape())});
  }
  APOGEE_RETURN_IF_ERROR(
      checkpoint::SaveModelWeights({files, partial}, parts, {.config_json = config}, nullptr));
  APOGEE_ASSIGN_OR_RETURN(const data::TrainedBpe bytes,
                          data::TrainBpe("", {.vocab_size = kEndOfText + 1}));
  const auto write = [&](const char* name, const std::string& text) {
    return checkpoint::WriteTextFile(*files, checkpoint::JoinPath(partial, name), text);
  };
  APOGEE_RETURN_IF_ERROR(write("tokenizer.json", bytes.json));
  APOGEE_RETURN_IF_ERROR(write("tokenizer_config.json", kTokenizerConfig));
  APOGEE_RETURN_IF_ERROR(write("generation_config.json",
                               internal::Concat("{\n  \"bos_token_id\": ", kEndOfText,
                                                ",\n  \"eos_token_id\": ", kEndOfText, "\n}\n")));
  return PublishPartial(path);
}

}  // namespace

std::vector<std::string> NewModelTypes() {
  std::vector<std::string> types;
  for (const NewModel& model : NewModels()) types.emplace_back(model.model_type);
  return types;
}

void MakeNewModel(const std::string& model_type, const std::string& path, uint64_t seed) {
  const auto found = std::ranges::find(NewModels(), model_type, &NewModel::model_type);
  if (found == NewModels().end()) Throw(UnknownName("model type", model_type, NewModelTypes()));
  CheckNoFolder(path);
  const std::string config = ConfigOf(*found);
  const nn::HfModel model = ValueOrThrow(nn::MakeHfModel(config, path + "/config.json"));
  model.module->Initialize(CpuContext(), {.seed = seed});
  OkOrThrow(Write(*model.module, config, path));
}

}  // namespace apogee::driver
