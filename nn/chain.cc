// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/chain.h"

#include <algorithm>

namespace apogee::nn {

std::vector<ParameterPtr> ParametersOf(const Piece& piece) {
  std::vector<ParameterPtr> parameters;
  const auto add = [&parameters](const ParameterPtr& parameter) {
    const bool known = std::ranges::find(parameters, parameter) != parameters.end();
    if (!known && parameter != nullptr) parameters.push_back(parameter);
  };
  for (const Module* module : piece.modules) std::ranges::for_each(module->Parameters(), add);
  std::ranges::for_each(piece.tied, add);
  return parameters;
}

const std::vector<Piece>& Chain::Pieces() {
  if (pieces_.empty()) pieces_ = MakePieces();
  APOGEE_CHECK(!pieces_.empty(), "chain: the model has no pieces (Chain::MakePieces)");
  return pieces_;
}

Tensor Chain::Forward(const Tensor& x) {
  Tensor y = x;
  for (const Piece& piece : Pieces()) y = piece.forward(y);
  return y;
}

}  // namespace apogee::nn
