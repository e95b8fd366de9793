// SPDX-License-Identifier: Apache-2.0

// The optimizers of the matrix: every name of the cell's registry, with options that can go wrong
// in a distributed run: weight decay, momentum, clipping of its own, blocks that shards cut, a low
// rank with refreshes during the run.
//
//   std::unique_ptr<optim::Optimizer> optimizer = MakeMatrixOptimizer(cell, model);
//
// A name that is not in the table runs with its default options.
#ifndef APOGEE_MATRIX_OPTIMIZERS_H_
#define APOGEE_MATRIX_OPTIMIZERS_H_

#include <memory>

#include "apogee/matrix/cell.h"
#include "apogee/nn/module.h"
#include "apogee/optim/optimizer.h"

namespace apogee::matrix {

// `model` is of the cell's workload. Puts its parameters alternately into two groups; the second
// has another learning rate and weight decay, if the optimizer has these options. For low-rank
// optimizers the groups are the matrices that fit the rank, and the rest.
std::unique_ptr<optim::Optimizer> MakeMatrixOptimizer(const Cell& cell, nn::Module& model);

// True if the optimizer updates inside backward when there is nothing to reduce: then gradients
// cannot be accumulated.
bool UpdatesInBackward(const optim::Optimizer& optimizer);

// True if the optimizer keeps 8-bit states, in which a rounding error can become a step of one
// code.
bool HasCodes(const optim::Optimizer& optimizer);

}  // namespace apogee::matrix

#endif  // APOGEE_MATRIX_OPTIMIZERS_H_
