// SPDX-License-Identifier: Apache-2.0

// Products of groups of rows, each group with a weight of its own, and what brings rows together:
// the parts of a mixture of experts.
//
//   // x [rows, in], 3 weights [out, in]; the first 5 rows meet weights[0], the next none, ...
//   Tensor x = autograd::TakeRows(h, tokens);                        // h [num_tokens, in]
//   Tensor y = autograd::GroupedLinear(x, {5, 0, 2}, weights);       // [rows, out]
//   Tensor sums = autograd::WeightedSum(y, w, tokens, num_tokens);   // [num_tokens, out]
//
// A mismatch of shapes or dtypes throws Error.
#ifndef APOGEE_AUTOGRAD_FUNCTIONS_GROUPED_H_
#define APOGEE_AUTOGRAD_FUNCTIONS_GROUPED_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "apogee/tensor/tensor.h"

namespace apogee::autograd {

// x [n, d], ids i64 [R] -> [R, d]: row r is x's row ids[r]. The gradients of a row are summed in
// ascending order of r, in f32 (f64 for f64), and rounded once.
Tensor TakeRows(const Tensor& x, const Tensor& ids);

// Row r of the result is weights[g] x_r, with g the group of row r. The groups follow each other:
// counts[0] rows, then counts[1], ... A weight whose group is empty gets no gradient, not one of
// zeros. `out_dtype`: of the result; default: x's. Backward can be split into an input and a weight
// half (GradPart).
Tensor GroupedLinear(const Tensor& x, const std::vector<int64_t>& counts,
                     const std::vector<Tensor>& weights, std::optional<DType> out_dtype = {});

// y_t = sum over the rows r with tokens[r] == t of weight[r] * rows[r], in ascending order of r:
// rows [R, d], weight [R] of the same dtype, tokens i64 [R] -> [num_tokens, d]. A token without
// rows gets zeros.
Tensor WeightedSum(const Tensor& rows, const Tensor& weight, const Tensor& tokens,
                   int64_t num_tokens);

}  // namespace apogee::autograd

#endif  // APOGEE_AUTOGRAD_FUNCTIONS_GROUPED_H_
