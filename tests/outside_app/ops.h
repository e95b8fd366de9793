// SPDX-License-Identifier: Apache-2.0

// Ops that the library does not have, as nodes of its graph.
//
//   Tensor gate = outside::Sigmoid(x);
//   Tensor sequence = outside::StackTokens(hidden);   // T tensors [B, D] -> [B, T, D]
#ifndef OUTSIDE_APP_OPS_H_
#define OUTSIDE_APP_OPS_H_

#include <vector>

#include "apogee/apogee.h"

namespace outside {

// Element-wise, of host tensors of any float dtype.
apogee::Tensor Sigmoid(const apogee::Tensor& x);
apogee::Tensor Tanh(const apogee::Tensor& x);

// At least one tensor, all of one shape.
apogee::Tensor StackTokens(const std::vector<apogee::Tensor>& tokens);

}  // namespace outside

#endif  // OUTSIDE_APP_OPS_H_
