// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/models/decoder.h"

#include <algorithm>
#include <utility>

#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/functions/shape.h"
#include "apogee/autograd/grad_mode.h"
#include "apogee/nn/head_loss.h"
#include "apogee/nn/models/transformer/block.h"
#include "apogee/nn/models/transformer/layer_piece.h"
#include "apogee/nn/models/transformer/path_register.h"

namespace apogee::nn {
namespace {

void Validate(const DecoderConfig& c) {
  std::string problems = BlockProblems(c.block);
  const auto require = [&](bool ok, const auto&... parts) {
    if (!ok) problems += "\n  " + internal::Concat(parts...);
  };
  require(c.vocab_size > 0, "vocab_size must be positive, got ", c.vocab_size);
  require(c.num_layers > 0, "the number of layers must be positive, got ", c.num_layers);
  require(c.max_tokens > 0, "the number of positions must be positive, got ", c.max_tokens);
  const auto layers = static_cast<size_t>(std::max<int64_t>(c.num_layers, 0));
  require(c.windows.empty() || c.windows.size() == layers, "windows are given for ",
          c.windows.size(), " layers of ", c.num_layers);
  require(c.attention_scales.empty() || c.attention_scales.size() == layers,
          "attention scales are given for ", c.attention_scales.size(), " layers of ",
          c.num_layers);
  require(c.padding_id < c.vocab_size, "the padding token ", c.padding_id,
          " is not in a vocabulary of ", c.vocab_size);
  require(c.head_chunks >= 0, "head_chunks must be 0 (whole logits) or more, got ", c.head_chunks);
  require(!c.recompute || !c.block.recompute_activations,
          "recompute computes whole layers again, so recompute_activations has no effect; set one "
          "of the two");
  APOGEE_CHECK(problems.empty(), c.model_type, ": invalid config:", problems);
}

BlockConfig BlockOf(const DecoderConfig& config, size_t layer) {
  BlockConfig block = config.block;
  if (std::ranges::binary_search(config.dense_layers, static_cast<int64_t>(layer))) {
    block.moe = {};
  }
  if (!config.windows.empty()) block.window = config.windows[layer];
  if (!config.attention_scales.empty()) block.attention_scale = config.attention_scales[layer];
  return block;
}

}  // namespace

Decoder::Decoder(const DecoderConfig& config) : config_(config) {
  Validate(config);
  const BlockConfig& block = config.block;
  const DecoderNames& names = config.names;
  const int64_t width = config.embedding_size == 0 ? block.hidden_size : config.embedding_size;
  PathRegister paths([this](const std::string& name, const std::shared_ptr<Module>& child) {
    Register(name, child);
  });
  const LinearOptions no_bias{.bias = false, .init = block.init};
  tokens_ = paths.Add(names.tokens, std::make_shared<Embedding>(config.vocab_size, width,
                                                                block.init, config.padding_id));
  if (!names.positions.empty()) {
    positions_ = paths.Add(
        names.positions, std::make_shared<Embedding>(config.max_tokens + config.first_position_row,
                                                     block.hidden_size, block.init));
  }
  if (!names.project_in.empty()) {
    project_in_ =
        paths.Add(names.project_in, std::make_shared<Linear>(width, block.hidden_size, no_bias));
    project_out_ =
        paths.Add(names.project_out, std::make_shared<Linear>(block.hidden_size, width, no_bias));
  }
  if (!names.dropout.empty()) {
    drop_ = paths.Add(names.dropout, std::make_shared<Dropout>(block.dropout));
  }
  for (int64_t i = 0; i < config.num_layers; ++i) {
    const auto layer = static_cast<size_t>(i);
    layers_.push_back(paths.Add(names.layers + "." + std::to_string(i),
                                std::make_shared<TransformerBlock>(BlockOf(config, layer))));
  }
  if (!names.norm.empty()) {
    norm_ = paths.Add(names.norm, MakeNorm(block, block.hidden_size));
  }
  LinearOptions head{.bias = false};
  if (config.logits_soft_cap > 0) head.soft_cap = config.logits_soft_cap;
  if (!config.tie_word_embeddings) head.init = block.init;
  head_ = paths.Add(names.head, config.tie_word_embeddings
                                    ? std::make_shared<Linear>(tokens_->weight(), nullptr, head)
                                    : std::make_shared<Linear>(width, config.vocab_size, head));
}

// The rows of the learned positions, if there are any.
Tensor Decoder::Positions(const Tensor& tokens) const {
  if (!positions_) return Tensor();
  Tensor table = positions_->weight()->value();
  if (config_.first_position_row > 0) {
    table = autograd::Slice(table, 0, config_.first_position_row, config_.max_tokens);
  }
  return RowsOfTokens(table, tokens, sequence_part());
}

Tensor Decoder::Embed(const Tensor& tokens) {
  CheckTokens(config_.model_type.c_str(), tokens, config_.max_tokens, sequence_part());
  const Tensor positions = Positions(tokens);
  Tensor x = (*tokens_)(tokens);
  if (project_in_) x = (*project_in_)(x);
  x = Residual(x);
  if (config_.embedding_scale != 1) x = autograd::Scale(x, config_.embedding_scale);
  if (positions.defined()) x = autograd::Add(x, Residual(positions));
  return drop_ ? (*drop_)(x) : x;
}

Tensor Decoder::Head(const Tensor& x) {
  Tensor y = norm_ ? (*norm_)(x) : x;
  if (project_out_) y = (*project_out_)(y);
  const bool defers = config_.head_chunks > 0 && is_training() && autograd::GradModeEnabled();
  return defers ? HeadLoss::Defer(*head_, y, config_.head_chunks) : (*head_)(y);
}

std::vector<Piece> Decoder::MakePieces() {
  // Looking up rows takes almost no time, compared with products.
  constexpr double kLookup = 1;
  const auto add = [](Piece& piece, Module* module) {
    if (module != nullptr) piece.modules.push_back(module);
  };
  Piece embed{.name = config_.names.tokens, .cost = kLookup, .forward = [this](const Tensor& x) {
                return Embed(x);
              }};
  add(embed, tokens_.get());
  add(embed, positions_.get());
  add(embed, project_in_.get());
  add(embed, drop_.get());
  std::vector<Piece> pieces = {std::move(embed)};
  for (size_t i = 0; i < layers_.size(); ++i) {
    pieces.push_back(LayerPiece(config_.names.layers + "." + std::to_string(i), *layers_[i], *this,
                                config_.recompute));
  }
  Piece head{.name = config_.names.head,
             .tied = {head_->weight()},
             .forward = [this](const Tensor& x) { return Head(x); }};
  add(head, norm_.get());
  add(head, project_out_.get());
  add(head, head_.get());
  pieces.push_back(std::move(head));
  return pieces;
}

}  // namespace apogee::nn
