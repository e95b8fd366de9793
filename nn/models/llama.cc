// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/models/llama.h"

#include <string>

#include "apogee/autograd/functions/activation.h"
#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/functions/shape.h"
#include "apogee/autograd/recompute.h"
#include "apogee/nn/attention.h"

namespace apogee::nn {
namespace {

void Validate(const LlamaConfig& c) {
  std::string errors;
  auto require = [&](bool ok, const std::string& message) {
    if (!ok) errors += "\n  " + message;
  };
  require(c.vocab_size > 0, "vocab_size must be positive, got " + std::to_string(c.vocab_size));
  require(c.intermediate_size > 0,
          "intermediate_size must be positive, got " + std::to_string(c.intermediate_size));
  require(c.num_hidden_layers > 0,
          "num_hidden_layers must be positive, got " + std::to_string(c.num_hidden_layers));
  const bool heads = c.num_attention_heads > 0 && c.num_key_value_heads > 0;
  require(heads && c.num_attention_heads % c.num_key_value_heads == 0,
          "num_attention_heads must be a multiple of num_key_value_heads, got " +
              std::to_string(c.num_attention_heads) + " and " +
              std::to_string(c.num_key_value_heads));
  require(heads && c.hidden_size > 0 && c.hidden_size % (2 * c.num_attention_heads) == 0,
          "hidden_size must be an even multiple of num_attention_heads (rotary positions pair "
          "dims), got " +
              std::to_string(c.hidden_size) + " and " + std::to_string(c.num_attention_heads));
  require(c.max_position_embeddings > 0, "max_position_embeddings must be positive, got " +
                                             std::to_string(c.max_position_embeddings));
  APOGEE_CHECK(errors.empty(), "llama: invalid config:", errors);
}

LinearOptions NoBias() { return {.bias = false, .init = Init::Normal(0, 0.02)}; }

LinearOptions ToResidual() {
  LinearOptions options = NoBias();
  options.to_residual = true;
  return options;
}

class LlamaAttention : public Module {
 public:
  explicit LlamaAttention(const LlamaConfig& c)
      : config_(c),
        head_dim_(c.hidden_size / c.num_attention_heads),
        q_proj_(
            Register("q_proj", std::make_shared<Linear>(c.hidden_size, c.hidden_size, NoBias()))),
        k_proj_(Register(
            "k_proj",
            std::make_shared<Linear>(c.hidden_size, c.num_key_value_heads * head_dim_, NoBias()))),
        v_proj_(Register(
            "v_proj",
            std::make_shared<Linear>(c.hidden_size, c.num_key_value_heads * head_dim_, NoBias()))),
        o_proj_(Register("o_proj",
                         std::make_shared<Linear>(c.hidden_size, c.hidden_size, ToResidual()))),
        core_(Register("core", std::make_shared<AttentionCore>(head_dim_))) {}

  Tensor Forward(const Tensor& x) override {
    const Tensor q = core_->Rotated(core_->Heads((*q_proj_)(x)), config_.rope_theta);
    const Tensor k = core_->Rotated(core_->Heads((*k_proj_)(x)), config_.rope_theta);
    const Tensor v = core_->Heads((*v_proj_)(x));
    const Tensor out = core_->Attend(q, k, v);
    return (*o_proj_)(autograd::View(out, {out.size(0), out.size(1), out.size(2) * head_dim_}));
  }

 private:
  LlamaConfig config_;
  int64_t head_dim_;
  std::shared_ptr<Linear> q_proj_, k_proj_, v_proj_, o_proj_;
  std::shared_ptr<AttentionCore> core_;
};

class LlamaMlp : public Module {
 public:
  explicit LlamaMlp(const LlamaConfig& c)
      : gate_proj_(Register(
            "gate_proj", std::make_shared<Linear>(c.hidden_size, c.intermediate_size, NoBias()))),
        up_proj_(Register("up_proj",
                          std::make_shared<Linear>(c.hidden_size, c.intermediate_size, NoBias()))),
        down_proj_(Register("down_proj", std::make_shared<Linear>(c.intermediate_size,
                                                                  c.hidden_size, ToResidual()))) {}

  Tensor Forward(const Tensor& x) override {
    return (*down_proj_)(autograd::SwiGlu((*gate_proj_)(x), (*up_proj_)(x)));
  }

 private:
  std::shared_ptr<Linear> gate_proj_, up_proj_, down_proj_;
};

}  // namespace

class LlamaBlock : public Module {
 public:
  explicit LlamaBlock(const LlamaConfig& c)
      : self_attn_(Register("self_attn", std::make_shared<LlamaAttention>(c))),
        mlp_(Register("mlp", std::make_shared<LlamaMlp>(c))),
        input_layernorm_(
            Register("input_layernorm", std::make_shared<RmsNorm>(c.hidden_size, c.rms_norm_eps))),
        post_attention_layernorm_(Register(
            "post_attention_layernorm", std::make_shared<RmsNorm>(c.hidden_size, c.rms_norm_eps))) {
  }

  Tensor Forward(const Tensor& x) override {
    const Tensor h = autograd::Add(x, Residual((*self_attn_)((*input_layernorm_)(x))));
    return autograd::Add(h, Residual((*mlp_)((*post_attention_layernorm_)(h))));
  }

 private:
  std::shared_ptr<LlamaAttention> self_attn_;
  std::shared_ptr<LlamaMlp> mlp_;
  std::shared_ptr<RmsNorm> input_layernorm_, post_attention_layernorm_;
};

Llama::Llama(const LlamaConfig& config) : config_(config) {
  Validate(config);
  auto model = std::make_shared<Container>();
  embed_tokens_ = model->Register(
      "embed_tokens",
      std::make_shared<Embedding>(config.vocab_size, config.hidden_size, Init::Normal(0, 0.02)));
  auto layers = std::make_shared<Container>();
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    layers_.push_back(layers->Register(std::to_string(i), std::make_shared<LlamaBlock>(config)));
  }
  model->Register("layers", layers);
  norm_ =
      model->Register("norm", std::make_shared<RmsNorm>(config.hidden_size, config.rms_norm_eps));
  Register("model", model);
  lm_head_ = Register(
      "lm_head", config.tie_word_embeddings
                     ? std::make_shared<Linear>(embed_tokens_->weight())
                     : std::make_shared<Linear>(config.hidden_size, config.vocab_size, NoBias()));
}

Tensor Llama::Embed(const Tensor& tokens) {
  CheckTokens("llama", tokens, config_.max_position_embeddings, sequence_part());
  return Residual((*embed_tokens_)(tokens));
}

std::vector<Piece> Llama::MakePieces() {
  // Looking up rows takes almost no time, compared with products.
  constexpr double kLookup = 1;
  std::vector<Piece> pieces = {{.name = "model.embed_tokens",
                                .modules = {embed_tokens_.get()},
                                .cost = kLookup,
                                .forward = [this](const Tensor& x) { return Embed(x); }}};
  for (size_t i = 0; i < layers_.size(); ++i) {
    Module* layer = layers_[i].get();
    pieces.push_back({.name = "model.layers." + std::to_string(i),
                      .modules = {layer},
                      .forward = [this, layer](const Tensor& x) {
                        return config_.recompute
                                   ? autograd::Recompute(std::ref(*layer), x, &generator())
                                   : (*layer)(x);
                      }});
  }
  pieces.push_back({.name = "lm_head",
                    .modules = {norm_.get(), lm_head_.get()},
                    .tied = {lm_head_->weight()},
                    .forward = [this](const Tensor& x) { return (*lm_head_)((*norm_)(x)); }});
  return pieces;
}

void Llama::DescribeConfig(ConfigTexts& texts) const {
  texts.function = {{"type", "llama"},
                    {"vocab_size", ConfigText(config_.vocab_size)},
                    {"hidden_size", ConfigText(config_.hidden_size)},
                    {"intermediate_size", ConfigText(config_.intermediate_size)},
                    {"num_hidden_layers", ConfigText(config_.num_hidden_layers)},
                    {"num_attention_heads", ConfigText(config_.num_attention_heads)},
                    {"num_key_value_heads", ConfigText(config_.num_key_value_heads)},
                    {"rms_norm_eps", ConfigText(config_.rms_norm_eps)},
                    {"rope_theta", ConfigText(config_.rope_theta)},
                    {"tie_word_embeddings", ConfigText(config_.tie_word_embeddings)}};
  // No weight depends on it: a longer limit allows longer sequences, and computes the same
  // function.
  texts.training = {{"max_position_embeddings", ConfigText(config_.max_position_embeddings)}};
  texts.complete = true;
}

}  // namespace apogee::nn
