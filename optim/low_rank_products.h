// SPDX-License-Identifier: Apache-2.0

// Products of a matrix [m, n] with a low-rank basis, of which a rank holds any part of the matrix:
// it multiplies the rows that it has elements in, and no others.
//
//   Tensor r = ProjectPart(view.layout(), grad, {.left = {}, .right = p}, {m, rank});
//   ForEachBackPart(view.layout(), update, basis, [](segment, local, values) { ... });
//
// right [r, n]: project(G) = G right^T, back(U) = U right. left [m, r]: left^T G, left U. Both:
// left^T G right^T, left U right. The projections of the parts add up to that of the whole.
#ifndef APOGEE_OPTIM_LOW_RANK_PRODUCTS_H_
#define APOGEE_OPTIM_LOW_RANK_PRODUCTS_H_

#include <functional>

#include "apogee/comm/layout.h"
#include "apogee/tensor/tensor.h"

namespace apogee::optim {

struct LowRankBasis {
  Tensor left, right;  // undefined where that side is not projected
  bool defined() const { return left.defined() || right.defined(); }
};

// The projection of this rank's elements `local` (zeros elsewhere): `shape`, in the basis' dtype.
Tensor ProjectPart(const comm::Layout& layout, const Tensor& local, const LowRankBasis& basis,
                   const Shape& shape);

// Calls fn(segment, position in the local tensor, values of back(update) from segment.begin on) for
// every segment.
using OnBackPart = std::function<void(const comm::Segment&, int64_t local, const Tensor& values)>;
void ForEachBackPart(const comm::Layout& layout, const Tensor& update, const LowRankBasis& basis,
                     const OnBackPart& fn);

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_LOW_RANK_PRODUCTS_H_
