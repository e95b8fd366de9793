// SPDX-License-Identifier: Apache-2.0

// LayerPiece: the piece of a chain that runs one layer. Private to nn/models.
//
//   pieces.push_back(LayerPiece("transformer.h.3", *layers_[3], *this, config_.recompute));
#ifndef APOGEE_NN_MODELS_TRANSFORMER_LAYER_PIECE_H_
#define APOGEE_NN_MODELS_TRANSFORMER_LAYER_PIECE_H_

#include <functional>
#include <string>
#include <utility>

#include "apogee/autograd/recompute.h"
#include "apogee/nn/chain.h"

namespace apogee::nn {

// `recompute`: keep only the layer's input, and compute the layer again in backward, with the same
// random numbers of `model`. Layer and model must outlive the piece.
inline Piece LayerPiece(std::string name, Module& layer, Module& model, bool recompute) {
  return {.name = std::move(name), .modules = {&layer}, .forward = [&, recompute](const Tensor& x) {
            return recompute ? autograd::Recompute(std::ref(layer), x, &model.generator())
                             : layer(x);
          }};
}

}  // namespace apogee::nn

#endif  // APOGEE_NN_MODELS_TRANSFORMER_LAYER_PIECE_H_
