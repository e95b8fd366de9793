// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/models/gpt2.h"

#include <cmath>
#include <string>

#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/recompute.h"
#include "apogee/nn/attention.h"

namespace apogee::nn {
namespace {

void Validate(const Gpt2Config& c) {
  std::string errors;
  auto require = [&](bool ok, const std::string& message) {
    if (!ok) errors += "\n  " + message;
  };
  require(c.vocab_size > 0, "vocab_size must be positive, got " + std::to_string(c.vocab_size));
  require(c.n_positions > 0, "n_positions must be positive, got " + std::to_string(c.n_positions));
  require(c.n_layer > 0, "n_layer must be positive, got " + std::to_string(c.n_layer));
  require(c.n_head > 0 && c.n_embd > 0 && c.n_embd % c.n_head == 0,
          "n_embd must be a positive multiple of n_head, got " + std::to_string(c.n_embd) +
              " and " + std::to_string(c.n_head));
  require(c.dropout >= 0 && c.dropout < 1,
          "dropout must be in [0, 1), got " + std::to_string(c.dropout));
  APOGEE_CHECK(errors.empty(), "gpt2: invalid config:", errors);
}

class Gpt2Attention : public Module {
 public:
  Gpt2Attention(const Gpt2Config& c, const Init& init, const Init& residual_init)
      : c_attn_(Register(
            "c_attn",
            std::make_shared<Linear>(c.n_embd, 3 * c.n_embd,
                                     LinearOptions{.layout = WeightLayout::kInOut, .init = init}))),
        c_proj_(Register("c_proj",
                         std::make_shared<Linear>(c.n_embd, c.n_embd,
                                                  LinearOptions{.layout = WeightLayout::kInOut,
                                                                .to_residual = true,
                                                                .init = residual_init}))),
        core_(Register("core", std::make_shared<AttentionCore>(c.n_embd / c.n_head))) {}
  Tensor Forward(const Tensor& x) override { return (*c_proj_)((*core_)((*c_attn_)(x))); }

 private:
  std::shared_ptr<Linear> c_attn_, c_proj_;
  std::shared_ptr<AttentionCore> core_;
};

class Gpt2Mlp : public Module {
 public:
  Gpt2Mlp(const Gpt2Config& c, const Init& init, const Init& residual_init)
      : c_fc_(Register("c_fc",
                       std::make_shared<Linear>(c.n_embd, 4 * c.n_embd,
                                                LinearOptions{.layout = WeightLayout::kInOut,
                                                              .activation = Activation::kGeluTanh,
                                                              .init = init}))),
        c_proj_(Register("c_proj",
                         std::make_shared<Linear>(4 * c.n_embd, c.n_embd,
                                                  LinearOptions{.layout = WeightLayout::kInOut,
                                                                .to_residual = true,
                                                                .init = residual_init}))) {}
  Tensor Forward(const Tensor& x) override { return (*c_proj_)((*c_fc_)(x)); }

 private:
  std::shared_ptr<Linear> c_fc_, c_proj_;
};

}  // namespace

class Gpt2Block : public Module {
 public:
  Gpt2Block(const Gpt2Config& c, const Init& init, const Init& residual_init)
      : ln_1_(Register("ln_1", std::make_shared<LayerNorm>(c.n_embd, c.layer_norm_epsilon))),
        attn_(Register("attn", std::make_shared<Gpt2Attention>(c, init, residual_init))),
        ln_2_(Register("ln_2", std::make_shared<LayerNorm>(c.n_embd, c.layer_norm_epsilon))),
        mlp_(Register("mlp", std::make_shared<Gpt2Mlp>(c, init, residual_init))),
        drop_(Register("drop", std::make_shared<Dropout>(c.dropout))) {}

  Tensor Forward(const Tensor& x) override {
    const Tensor h = autograd::Add(x, Residual((*drop_)((*attn_)((*ln_1_)(x)))));
    return autograd::Add(h, Residual((*drop_)((*mlp_)((*ln_2_)(h)))));
  }

 private:
  std::shared_ptr<LayerNorm> ln_1_;
  std::shared_ptr<Gpt2Attention> attn_;
  std::shared_ptr<LayerNorm> ln_2_;
  std::shared_ptr<Gpt2Mlp> mlp_;
  std::shared_ptr<Dropout> drop_;
};

Gpt2::Gpt2(const Gpt2Config& config) : config_(config) {
  Validate(config);
  // GPT-2's initialisation: residual projections are scaled by 1 / sqrt(number of residual
  // branches).
  const Init init = Init::Normal(0, 0.02);
  const Init residual_init =
      Init::Normal(0, 0.02 / std::sqrt(2.0 * static_cast<double>(config.n_layer)));
  auto transformer = std::make_shared<Container>();
  wte_ = transformer->Register("wte",
                               std::make_shared<Embedding>(config.vocab_size, config.n_embd, init));
  wpe_ = transformer->Register(
      "wpe", std::make_shared<Embedding>(config.n_positions, config.n_embd, init));
  drop_ = transformer->Register("drop", std::make_shared<Dropout>(config.dropout));
  auto h = std::make_shared<Container>();
  for (int64_t i = 0; i < config.n_layer; ++i) {
    blocks_.push_back(
        h->Register(std::to_string(i), std::make_shared<Gpt2Block>(config, init, residual_init)));
  }
  transformer->Register("h", h);
  ln_f_ = transformer->Register(
      "ln_f", std::make_shared<LayerNorm>(config.n_embd, config.layer_norm_epsilon));
  Register("transformer", transformer);
  lm_head_ = Register("lm_head",
                      config.tie_word_embeddings
                          ? std::make_shared<Linear>(wte_->weight())
                          : std::make_shared<Linear>(config.n_embd, config.vocab_size,
                                                     LinearOptions{.bias = false, .init = init}));
}

Tensor Gpt2::Embed(const Tensor& tokens) {
  CheckTokens("gpt2", tokens, config_.n_positions, sequence_part());
  const Tensor positions = RowsOfTokens(wpe_->weight()->value(), tokens, sequence_part());
  return (*drop_)(autograd::Add(Residual((*wte_)(tokens)), Residual(positions)));
}

std::vector<Piece> Gpt2::MakePieces() {
  // Looking up rows takes almost no time, compared with products.
  constexpr double kLookup = 1;
  std::vector<Piece> pieces = {{.name = "transformer.wte",
                                .modules = {wte_.get(), wpe_.get(), drop_.get()},
                                .cost = kLookup,
                                .forward = [this](const Tensor& x) { return Embed(x); }}};
  for (size_t i = 0; i < blocks_.size(); ++i) {
    Module* block = blocks_[i].get();
    pieces.push_back({.name = "transformer.h." + std::to_string(i),
                      .modules = {block},
                      .forward = [this, block](const Tensor& x) {
                        return config_.recompute
                                   ? autograd::Recompute(std::ref(*block), x, &generator())
                                   : (*block)(x);
                      }});
  }
  pieces.push_back({.name = "lm_head",
                    .modules = {ln_f_.get(), lm_head_.get()},
                    .tied = {lm_head_->weight()},
                    .forward = [this](const Tensor& x) { return (*lm_head_)((*ln_f_)(x)); }});
  return pieces;
}

void Gpt2::DescribeConfig(ConfigTexts& texts) const {
  texts.function = {{"type", "gpt2"},
                    {"vocab_size", ConfigText(config_.vocab_size)},
                    {"n_positions", ConfigText(config_.n_positions)},
                    {"n_embd", ConfigText(config_.n_embd)},
                    {"n_layer", ConfigText(config_.n_layer)},
                    {"n_head", ConfigText(config_.n_head)},
                    {"layer_norm_epsilon", ConfigText(config_.layer_norm_epsilon)},
                    {"tie_word_embeddings", ConfigText(config_.tie_word_embeddings)}};
  texts.training = {{"dropout", ConfigText(config_.dropout)}};
  texts.complete = true;
}

}  // namespace apogee::nn
