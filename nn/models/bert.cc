// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/models/bert.h"

#include <string>
#include <utility>

#include "apogee/autograd/documents.h"
#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/functions/shape.h"
#include "apogee/nn/models/transformer/block.h"
#include "apogee/nn/models/transformer/layer_piece.h"
#include "apogee/nn/models/transformer/path_register.h"

namespace apogee::nn {
namespace {

constexpr const char* kBertTokens = "bert.embeddings.word_embeddings";
constexpr const char* kBertLayers = "bert.encoder.layer.";
constexpr const char* kBertDecoder = "cls.predictions.decoder";

// Owns the bias of the logits.
class Predictions : public Container {
 public:
  explicit Predictions(int64_t vocab_size)
      : bias(RegisterParameter("bias", {vocab_size}, Init::Constant(0))) {}
  const ParameterPtr bias;
};

void Validate(const BertConfig& c) {
  std::string problems = BlockProblems(c.block);
  const auto require = [&](bool ok, const auto&... parts) {
    if (!ok) problems += "\n  " + internal::Concat(parts...);
  };
  require(c.vocab_size > 0, "vocab_size must be positive, got ", c.vocab_size);
  require(c.num_layers > 0, "the number of layers must be positive, got ", c.num_layers);
  require(c.max_tokens > 0, "the number of positions must be positive, got ", c.max_tokens);
  require(c.type_vocab_size > 0, "type_vocab_size must be positive, got ", c.type_vocab_size);
  require(c.padding_id < c.vocab_size, "the padding token ", c.padding_id,
          " is not in a vocabulary of ", c.vocab_size);
  APOGEE_CHECK(problems.empty(), "bert: invalid config:", problems);
}

}  // namespace

BlockConfig BertBlock() {
  BlockConfig block = EncoderBlock();
  BlockNames& names = block.names;
  names.attention_norms = {.before = {}, .after = {}, .after_add = "attention.output.LayerNorm"};
  names.mlp_norms = {.before = {}, .after = {}, .after_add = "output.LayerNorm"};
  names.q = "attention.self.query";
  names.k = "attention.self.key";
  names.v = "attention.self.value";
  return block;
}

Bert::Bert(const BertConfig& config) : config_(config) {
  Validate(config);
  const BlockConfig& block = config.block;
  const int64_t width = block.hidden_size;
  PathRegister paths([this](const std::string& name, const std::shared_ptr<Module>& child) {
    Register(name, child);
  });
  const std::string embeddings = "bert.embeddings.";
  tokens_ = paths.Add(kBertTokens, std::make_shared<Embedding>(config.vocab_size, width, block.init,
                                                               config.padding_id));
  positions_ = paths.Add(embeddings + "position_embeddings",
                         std::make_shared<Embedding>(config.max_tokens, width, block.init));
  types_ = paths.Add(embeddings + "token_type_embeddings",
                     std::make_shared<Embedding>(config.type_vocab_size, width, block.init));
  norm_ = paths.Add(embeddings + "LayerNorm", std::make_shared<LayerNorm>(width, block.norm_eps));
  drop_ = paths.Add(embeddings + "dropout", std::make_shared<Dropout>(block.dropout));
  for (int64_t i = 0; i < config.num_layers; ++i) {
    layers_.push_back(
        paths.Add(kBertLayers + std::to_string(i), std::make_shared<TransformerBlock>(block)));
  }
  const auto predictions =
      paths.AddContainer("cls.predictions", std::make_shared<Predictions>(config.vocab_size));
  transform_ = paths.Add(
      "cls.predictions.transform.dense",
      std::make_shared<Linear>(width, width,
                               LinearOptions{.activation = block.activation, .init = block.init}));
  transform_norm_ = paths.Add("cls.predictions.transform.LayerNorm",
                              std::make_shared<LayerNorm>(width, block.norm_eps));
  decoder_ =
      paths.Add(kBertDecoder, std::make_shared<Linear>(tokens_->weight(), predictions->bias));
}

NamedTensors Bert::ForwardNamed(const NamedTensors& inputs) {
  std::string unknown;
  for (const auto& [name, input] : inputs) {
    const bool known = name == "tokens" || name == "attention_mask" || name == "token_type_ids";
    if (!known) unknown += (unknown.empty() ? "" : ", ") + name;
  }
  const auto tokens = inputs.find("tokens");
  APOGEE_CHECK(unknown.empty() && tokens != inputs.end(),
               "bert takes \"tokens\" and, if wanted, \"attention_mask\" and \"token_type_ids\"; ",
               unknown.empty() ? "\"tokens\" is missing" : "it does not know " + unknown);
  const Shape& shape = tokens->second.shape();
  for (const auto& [name, input] : inputs) {
    APOGEE_CHECK(input.shape() == shape, "bert: ", name, " ", input.shape(),
                 " does not have the shape of the tokens, ", shape);
  }
  const auto mask = inputs.find("attention_mask"), types = inputs.find("token_type_ids");
  std::shared_ptr<autograd::Documents> padding = autograd::CurrentDocuments();
  if (mask != inputs.end()) padding = autograd::Documents::OfMask(mask->second);
  const autograd::DocumentsGuard guard(padding);
  token_types_ = types == inputs.end() ? Tensor() : types->second;
  const Tensor logits = Forward(tokens->second);
  token_types_ = Tensor();
  return {{"logits", logits}};
}

Tensor Bert::Embed(const Tensor& tokens) {
  CheckTokens("bert", tokens, config_.max_tokens, sequence_part());
  const Tensor positions = RowsOfTokens(positions_->weight()->value(), tokens, sequence_part());
  const Tensor types = token_types_.defined()
                           ? (*types_)(token_types_)
                           : autograd::View(autograd::Slice(types_->weight()->value(), 0, 0, 1),
                                            {config_.block.hidden_size});
  const Tensor sum = autograd::Add(autograd::Add(Residual((*tokens_)(tokens)), Residual(types)),
                                   Residual(positions));
  return (*drop_)(Residual((*norm_)(sum)));
}

Tensor Bert::Head(const Tensor& x) { return (*decoder_)((*transform_norm_)((*transform_)(x))); }

std::vector<Piece> Bert::MakePieces() {
  // Looking up rows takes almost no time, compared with products.
  constexpr double kLookup = 1;
  std::vector<Piece> pieces = {
      {.name = kBertTokens,
       .modules = {tokens_.get(), positions_.get(), types_.get(), norm_.get(), drop_.get()},
       .cost = kLookup,
       .forward = [this](const Tensor& x) { return Embed(x); }}};
  for (size_t i = 0; i < layers_.size(); ++i) {
    pieces.push_back(
        LayerPiece(kBertLayers + std::to_string(i), *layers_[i], *this, config_.recompute));
  }
  pieces.push_back({.name = kBertDecoder,
                    .modules = {transform_.get(), transform_norm_.get(), decoder_.get()},
                    .tied = {decoder_->weight(), decoder_->bias()},
                    .forward = [this](const Tensor& x) { return Head(x); }});
  return pieces;
}

void Bert::DescribeConfig(ConfigTexts& texts) const {
  const BlockConfig& block = config_.block;
  texts.function = {{"type", "bert"},
                    {"vocab_size", ConfigText(config_.vocab_size)},
                    {"hidden_size", ConfigText(block.hidden_size)},
                    {"intermediate_size", ConfigText(block.intermediate_size)},
                    {"num_hidden_layers", ConfigText(config_.num_layers)},
                    {"num_attention_heads", ConfigText(block.num_heads)},
                    {"max_position_embeddings", ConfigText(config_.max_tokens)},
                    {"layer_norm_eps", ConfigText(block.norm_eps)},
                    {"activation", ConfigText(block.activation)}};
  texts.training = {{"dropout", ConfigText(block.dropout)},
                    {"padding_id", ConfigText(config_.padding_id)}};
  texts.complete = true;
}

}  // namespace apogee::nn
