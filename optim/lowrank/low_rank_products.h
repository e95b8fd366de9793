// SPDX-License-Identifier: Apache-2.0

// Products of a matrix [m, n] with a low-rank basis when a rank holds any part of the matrix. The
// rank multiplies only the rows that it has elements in.
//
//   Tensor r = ProjectPart(view.layout(), grad, {.left = {}, .right = p}, {m, rank});
//   ForEachBackPart(view.layout(), update, basis, [](segment, local, values) { ... });
//
//   basis                project(G)          back(U)
//   right [r, n]         G right^T           U right
//   left [m, r]          left^T G            left U
//   both                 left^T G right^T    left U right
// The projections of all parts add up to that of the whole matrix.
#ifndef APOGEE_OPTIM_LOWRANK_LOW_RANK_PRODUCTS_H_
#define APOGEE_OPTIM_LOWRANK_LOW_RANK_PRODUCTS_H_

#include <functional>

#include "apogee/layout/layout.h"
#include "apogee/tensor/tensor.h"

namespace apogee::optim {

struct LowRankBasis {
  Tensor left, right;  // undefined: that side is not projected
  bool defined() const { return left.defined() || right.defined(); }
};

// The projection of a matrix that has this rank's elements `local` and zeros everywhere else. The
// result has shape `shape` and the dtype of the basis.
Tensor ProjectPart(const Layout& layout, const Tensor& local, const LowRankBasis& basis,
                   const Shape& shape);

// Calls fn(segment, local, values) for every segment of the layout. `local`: position of the
// segment in the local tensor. `values`: the segment's elements of back(update).
using OnBackPart = std::function<void(const Segment&, int64_t local, const Tensor& values)>;
void ForEachBackPart(const Layout& layout, const Tensor& update, const LowRankBasis& basis,
                     const OnBackPart& fn);

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_LOWRANK_LOW_RANK_PRODUCTS_H_
