// SPDX-License-Identifier: Apache-2.0

// The optimizers of the matrix: every name of the registry, with options under which it has
// something to get wrong: weight decay, momentum, clipping of its own, blocks that shards cut, a
// low rank with refreshes on the way.
//
//   std::unique_ptr<optim::Optimizer> optimizer = MakeMatrixOptimizer("lamb", work, model);
//
// A name that the table does not know runs with its default options.
#ifndef APOGEE_TOOLS_MATRIX_OPTIMIZERS_H_
#define APOGEE_TOOLS_MATRIX_OPTIMIZERS_H_

#include <memory>
#include <string>

#include "apogee/nn/module.h"
#include "apogee/optim/optimizer.h"
#include "apogee/tools/matrix/workload.h"

namespace apogee::tools {

// Two groups of the model's parameters, by turns, the second with another learning rate and weight
// decay where the optimizer has them. Of low-rank optimizers: the matrices that fit the rank, and
// the rest.
std::unique_ptr<optim::Optimizer> MakeMatrixOptimizer(const std::string& name, const Workload& work,
                                                      nn::Module& model);

// It updates inside backward where there is nothing to reduce, so gradients do not add up.
bool UpdatesInBackward(const optim::Optimizer& optimizer);

// It keeps states as 8-bit codes, which turn a rounding error into a jump from one code to the
// next.
bool HasCodes(const optim::Optimizer& optimizer);

}  // namespace apogee::tools

#endif  // APOGEE_TOOLS_MATRIX_OPTIMIZERS_H_
