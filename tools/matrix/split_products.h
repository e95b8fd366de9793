// SplitProducts: the rounding of tensor parallelism, on one rank and without any communication.
//
//   SplitProducts(*model, 2);      // a model that nn/parallel has a plan for
//
// Every product that a plan sums over ranks (outputs of row-parallel layers; gradients of the
// inputs of column-parallel and vocabulary-parallel ones) is computed as so many products of parts,
// each rounded to the dtype of the model, then summed in f32 and rounded again. Parameters stay
// whole. Nothing else changes, so a run of such a model measures how much a run may differ because
// ranks share layers.
#ifndef APOGEE_TOOLS_MATRIX_SPLIT_PRODUCTS_H_
#define APOGEE_TOOLS_MATRIX_SPLIT_PRODUCTS_H_

#include "apogee/nn/module.h"

namespace apogee::tools {

void SplitProducts(nn::Module& model, int num_parts);

}  // namespace apogee::tools

#endif  // APOGEE_TOOLS_MATRIX_SPLIT_PRODUCTS_H_
