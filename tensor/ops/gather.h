// SPDX-License-Identifier: Apache-2.0

// Indices into a dim. No gradient is recorded here (see autograd/functions/gather.h).
//
//   // x [batch, vocab], index i64 [batch, 1] -> the index[i]-th element of row i
//   Tensor chosen = ops::Gather(x, 1, index);
//
// An index has x's rank. Along other dims than `dim` its size is x's, or 1 for an index that is
// repeated. An index that is not i64, or has a value outside [0, size), throws Error with the value
// and its place. The host checks the values, and waits for a GPU.
#ifndef APOGEE_TENSOR_OPS_GATHER_H_
#define APOGEE_TENSOR_OPS_GATHER_H_

#include "apogee/tensor/tensor.h"

namespace apogee::ops {

// y[.., j, ..] = x[.., index[.., j, ..], ..] along `dim`; any dtype.
Tensor Gather(const Tensor& x, int dim, const Tensor& index);
// y = 0, with `size` elements along `dim`; then y[.., index[.., j, ..], ..] += x[.., j, ..] in
// ascending order of j, summed in f32 (f64 for f64). The index has x's size along `dim`.
Tensor ScatterAdd(const Tensor& x, int dim, const Tensor& index, int64_t size);
// ids i64 [n], as an index along `dim` of a tensor of `rank` dims.
Tensor IndexOfIds(const Tensor& ids, int dim, int rank);

}  // namespace apogee::ops

#endif  // APOGEE_TENSOR_OPS_GATHER_H_
