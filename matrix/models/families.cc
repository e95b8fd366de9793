// SPDX-License-Identifier: Apache-2.0

#include "apogee/matrix/models/families.h"

#include <map>
#include <utility>

#include "apogee/core/rng.h"
#include "apogee/core/text/text.h"
#include "apogee/nn/models/hf_model.h"

namespace apogee::matrix {
namespace {

constexpr int64_t kTokens = 8, kImage = 6, kLabels = 3;

// What most families say. Every text of a family begins or ends with a comma where it needs one.
constexpr const char* kSizes = R"("vocab_size": 19, "hidden_size": 16, "intermediate_size": 24,
  "num_hidden_layers": 6, "num_attention_heads": 4, "max_position_embeddings": 16,
  "pad_token_id": null)";
constexpr const char* kGrouped = R"(, "num_key_value_heads": 2)";

const std::map<std::string, std::string>& Texts() {
  static const auto& texts = *new std::map<std::string, std::string>{
      {"llama", R"("model_type": "llama", "tie_word_embeddings": true, "attention_bias": true)"},
      {"llama31", R"("model_type": "llama", "head_dim": 6, "rope_scaling": {"rope_type": "llama3",
         "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 8})"},
      {"mistral", R"("model_type": "mistral", "sliding_window": 3)"},
      {"qwen2", R"("model_type": "qwen2", "tie_word_embeddings": true, "use_sliding_window": true,
         "sliding_window": 5, "max_window_layers": 3)"},
      {"qwen3", R"("model_type": "qwen3", "head_dim": 6)"},
      {"mixtral", R"("model_type": "mixtral", "num_local_experts": 4)"},
      {"qwen2_moe", R"("model_type": "qwen2_moe", "num_experts": 5, "num_experts_per_tok": 2,
         "moe_intermediate_size": 12, "shared_expert_intermediate_size": 20,
         "mlp_only_layers": [1, 4])"},
      {"qwen3_moe", R"("model_type": "qwen3_moe", "head_dim": 6, "num_experts": 6,
         "num_experts_per_tok": 3, "moe_intermediate_size": 8, "norm_topk_prob": true,
         "rms_norm_eps": 0.01)"},
      {"gemma", R"("model_type": "gemma", "head_dim": 6)"},
      {"gemma2", R"("model_type": "gemma2", "head_dim": 6, "sliding_window": 4,
         "query_pre_attn_scalar": 5, "attn_logit_softcapping": 2.0,
         "final_logit_softcapping": 3.0)"},
      {"phi3", R"("model_type": "phi3", "partial_rotary_factor": 0.5, "sliding_window": 6)"},
      // The embedding's small values are normalised after every layer. With the usual epsilon, 20
      // steps of this tiny model turn rounding errors into 1e-6.
      {"olmo2", R"("model_type": "olmo2", "rms_norm_eps": 0.01)"},
      {"gpt_neox", R"("model_type": "gpt_neox", "rotary_pct": 0.5)"},
      {"opt", R"("model_type": "opt", "ffn_dim": 24, "dropout": 0.0)"},
      {"opt_after", R"("model_type": "opt", "ffn_dim": 24, "dropout": 0.0,
         "do_layer_norm_before": false, "word_embed_proj_dim": 12)"},
      {"gpt2", R"("model_type": "gpt2", "n_inner": 24, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
         "attn_pdrop": 0.0, "scale_attn_by_inverse_layer_idx": true)"},
      {"bert", R"("model_type": "bert", "hidden_dropout_prob": 0.0,
         "attention_probs_dropout_prob": 0.0)"},
      {"vit", R"("model_type": "vit", "image_size": 6, "patch_size": 2, "num_channels": 1,
         "num_labels": 3)"}};
  return texts;
}

// BERT, told which tokens are padding: those of id 1.
class PaddedBert : public nn::Module {
 public:
  explicit PaddedBert(std::shared_ptr<nn::Module> bert) : bert_(Register("bert_lm", bert)) {}
  Tensor Forward(const Tensor& tokens) override {
    std::vector<int64_t> mask, types;
    const std::vector<int64_t> ids = tokens.ToVector<int64_t>();
    for (size_t i = 0; i < ids.size(); ++i) {
      mask.push_back(ids[i] == 1 && i % kTokens > 0 ? 0 : 1);
      types.push_back(i % kTokens >= kTokens / 2 ? 1 : 0);
    }
    const auto whole = [&](const std::vector<int64_t>& values) {
      return Tensor::FromVector<int64_t>(values, tokens.shape(), tokens.context());
    };
    return (*bert_)({{"tokens", tokens},
                     {"attention_mask", whole(mask)},
                     {"token_type_ids", whole(types)}})
        .at("logits");
  }

 private:
  std::shared_ptr<nn::Module> bert_;
};

// The loss does not depend on a constant that is added to all keys of a head. The gradient of such
// a bias is only rounding error, which AdamW would turn into full-size updates.
bool IsKeyBias(const std::string& name) {
  for (const char* end :
       {"self_attn.k_proj.bias", "c_attn.bias", "query_key_value.bias", "key.bias"}) {
    if (name.ends_with(end)) return true;
  }
  return false;
}

}  // namespace

std::vector<std::string> FamilyNames() {
  std::vector<std::string> names = {"bert_padded"};
  for (const auto& [name, text] : Texts()) names.push_back(name);
  return names;
}

std::string FamilyConfig(const std::string& name) {
  const auto text = Texts().find(name == "bert_padded" ? "bert" : name);
  APOGEE_CHECK(text != Texts().end(), UnknownName("family", name, FamilyNames()));
  const bool grouped = name != "bert" && name != "bert_padded" && name != "vit" &&
                       name != "gpt_neox" && name != "gpt2" && !name.starts_with("opt");
  return "{" + std::string(kSizes) + (grouped ? kGrouped : "") + ", " + text->second + "}";
}

std::unique_ptr<nn::Module> FamilyWorkload::MakeModel() const {
  nn::HfModel made =
      ValueOrThrow(nn::MakeHfModel(FamilyConfig(name_), name_, [](const std::string&) {}));
  std::unique_ptr<nn::Module> model = std::move(made.module);
  if (!is_chain()) {
    model = std::make_unique<PaddedBert>(std::shared_ptr<nn::Module>(std::move(model)));
  }
  for (const auto& parameter : model->Parameters()) {
    if (IsKeyBias(parameter->name())) parameter->set_requires_grad(false);
  }
  return model;
}

data::Batch FamilyWorkload::Batch(const ContextPtr& context, const SampleRange& range) const {
  if (!takes_images()) return TinyBatch(context, range, kTokens);
  std::vector<double> pixels;
  std::vector<int64_t> labels;
  for (int64_t sample = range.first; sample < range.first + range.count; ++sample) {
    const PhiloxKey key = MakeKey(43, std::to_string(range.step) + "/" + std::to_string(sample));
    const auto label = static_cast<int64_t>(Philox(key, 0)[0] % kLabels);
    labels.push_back(label);
    for (int64_t i = 0; i < kImage * kImage; ++i) {
      const double noise = ToUniform(Philox(key, static_cast<uint64_t>(1 + i))[0]);
      pixels.push_back(noise + static_cast<double>(i * (label + 1) % 3) - 1);
    }
  }
  return {Tensor::FromVector(pixels, {range.count, 1, kImage, kImage}, context),
          Tensor::FromVector(labels, {range.count}, context)};
}

}  // namespace apogee::matrix
