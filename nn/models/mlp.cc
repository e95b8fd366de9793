// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/models/mlp.h"

#include <string>

namespace apogee::nn {

Mlp::Mlp(const MlpConfig& config) : config_(config) {
  APOGEE_CHECK(config.sizes.size() >= 2, "mlp: needs an input and an output size, got ",
               config.sizes.size(), " sizes");
  for (size_t i = 0; i + 1 < config.sizes.size(); ++i) {
    LinearOptions options;
    if (i + 2 < config.sizes.size()) options.activation = config.activation;
    layers_.push_back(
        Register("layers." + std::to_string(i),
                 std::make_shared<Linear>(config.sizes[i], config.sizes[i + 1], options)));
  }
}

std::vector<Piece> Mlp::MakePieces() {
  std::vector<Piece> pieces;
  for (size_t i = 0; i < layers_.size(); ++i) {
    Module* layer = layers_[i].get();
    pieces.push_back(
        {.name = "layers." + std::to_string(i), .modules = {layer}, .forward = std::ref(*layer)});
  }
  return pieces;
}

void Mlp::DescribeConfig(ConfigTexts& texts) const {
  texts.function = {{"type", "mlp"},
                    {"sizes", ConfigText(config_.sizes)},
                    {"activation", ConfigText(config_.activation)}};
  texts.complete = true;
}

}  // namespace apogee::nn
