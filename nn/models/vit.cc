// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/models/vit.h"

#include <string>
#include <utility>

#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/functions/shape.h"
#include "apogee/nn/convolution.h"
#include "apogee/nn/models/transformer/block.h"
#include "apogee/nn/models/transformer/layer_piece.h"
#include "apogee/nn/models/transformer/path_register.h"

namespace apogee::nn {
namespace {

constexpr const char* kVitEmbeddings = "vit.embeddings";
constexpr const char* kVitLayers = "vit.encoder.layer.";
constexpr const char* kVitClassifier = "classifier";

void Validate(const VitConfig& c) {
  std::string problems = BlockProblems(c.block);
  const auto require = [&](bool ok, const auto&... parts) {
    if (!ok) problems += "\n  " + internal::Concat(parts...);
  };
  require(c.patch_size > 0 && c.image_size > 0 && c.image_size % c.patch_size == 0,
          "image_size must be a multiple of patch_size, got ", c.image_size, " and ", c.patch_size);
  require(c.num_channels > 0, "num_channels must be positive, got ", c.num_channels);
  require(c.num_labels > 0, "num_labels must be positive, got ", c.num_labels);
  require(c.num_layers > 0, "the number of layers must be positive, got ", c.num_layers);
  APOGEE_CHECK(problems.empty(), "vit: invalid config:", problems);
}

}  // namespace

BlockConfig VitBlock() {
  BlockConfig block = EncoderBlock();
  BlockNames& names = block.names;
  names.attention_norms.before = "layernorm_before";
  names.mlp_norms.before = "layernorm_after";
  names.q = "attention.attention.query";
  names.k = "attention.attention.key";
  names.v = "attention.attention.value";
  return block;
}

// Images as tokens: one for the class, then one for each patch, by rows.
class Vit::Embeddings : public Container {
 public:
  explicit Embeddings(const VitConfig& c) : config_(c) {
    const int64_t side = c.image_size / c.patch_size, width = c.block.hidden_size;
    class_ = RegisterParameter("cls_token", {1, 1, width}, c.block.init);
    positions_ =
        RegisterParameter("position_embeddings", {1, side * side + 1, width}, c.block.init);
    const auto patches = Register("patch_embeddings", std::make_shared<Container>());
    const autograd::Extent patch{c.patch_size, c.patch_size};
    projection_ = patches->Register(
        "projection", std::make_shared<Conv2d>(c.num_channels, width, patch,
                                               autograd::ConvOptions{.stride = patch}));
    drop_ = Register("dropout", std::make_shared<Dropout>(c.block.dropout));
  }

  Tensor Forward(const Tensor& pixels) override {
    const int64_t size = config_.image_size, width = config_.block.hidden_size;
    APOGEE_CHECK(pixels.rank() == 4 && pixels.size(1) == config_.num_channels &&
                     pixels.size(2) == size && pixels.size(3) == size,
                 "vit: needs pixels [batch, ", config_.num_channels, ", ", size, ", ", size,
                 "], got ", pixels.shape());
    const int64_t batch = pixels.size(0);
    const Tensor patches = (*projection_)(pixels);
    const Tensor rows = autograd::Contiguous(autograd::Transpose(
        autograd::View(patches, {batch, width, patches.size(2) * patches.size(3)}), 1, 2));
    const Tensor first = autograd::Expand(class_->value(), {batch, 1, width});
    const Tensor tokens = autograd::Concat({autograd::Contiguous(first), rows}, 1);
    return (*drop_)(autograd::Add(Residual(tokens), Residual(positions_->value())));
  }

 private:
  const VitConfig config_;
  ParameterPtr class_, positions_;
  std::shared_ptr<Conv2d> projection_;
  std::shared_ptr<Dropout> drop_;
};

Vit::Vit(const VitConfig& config) : config_(config) {
  Validate(config);
  const int64_t width = config.block.hidden_size;
  PathRegister paths([this](const std::string& name, const std::shared_ptr<Module>& child) {
    Register(name, child);
  });
  embeddings_ = paths.Add(kVitEmbeddings, std::make_shared<Embeddings>(config));
  for (int64_t i = 0; i < config.num_layers; ++i) {
    layers_.push_back(paths.Add(kVitLayers + std::to_string(i),
                                std::make_shared<TransformerBlock>(config.block)));
  }
  norm_ = paths.Add("vit.layernorm", std::make_shared<LayerNorm>(width, config.block.norm_eps));
  classifier_ = paths.Add(
      kVitClassifier,
      std::make_shared<Linear>(width, config.num_labels, LinearOptions{.init = config.block.init}));
}

std::vector<Piece> Vit::MakePieces() {
  std::vector<Piece> pieces = {
      {.name = kVitEmbeddings, .modules = {embeddings_.get()}, .forward = std::ref(*embeddings_)}};
  for (size_t i = 0; i < layers_.size(); ++i) {
    pieces.push_back(
        LayerPiece(kVitLayers + std::to_string(i), *layers_[i], *this, config_.recompute));
  }
  pieces.push_back({.name = kVitClassifier,
                    .modules = {norm_.get(), classifier_.get()},
                    .forward = [this](const Tensor& x) {
                      // Only the token of the class is read.
                      const Tensor first = autograd::Contiguous(autograd::Slice(x, 1, 0, 1));
                      const Tensor row = autograd::View(first, {x.size(0), x.size(2)});
                      return (*classifier_)((*norm_)(row));
                    }});
  return pieces;
}

void Vit::DescribeConfig(ConfigTexts& texts) const {
  const BlockConfig& block = config_.block;
  texts.function = {{"type", "vit"},
                    {"image_size", ConfigText(config_.image_size)},
                    {"patch_size", ConfigText(config_.patch_size)},
                    {"num_channels", ConfigText(config_.num_channels)},
                    {"num_labels", ConfigText(config_.num_labels)},
                    {"hidden_size", ConfigText(block.hidden_size)},
                    {"intermediate_size", ConfigText(block.intermediate_size)},
                    {"num_hidden_layers", ConfigText(config_.num_layers)},
                    {"num_attention_heads", ConfigText(block.num_heads)},
                    {"layer_norm_eps", ConfigText(block.norm_eps)},
                    {"activation", ConfigText(block.activation)}};
  texts.training = {{"dropout", ConfigText(block.dropout)}};
  texts.complete = true;
}

}  // namespace apogee::nn
