// SPDX-License-Identifier: Apache-2.0

// The leading singular vectors of a gradient: the basis that GaLore projects on.
//
//   BasisResult basis = LeadingBasis(grad, {.rank = 128});   // grad [m, n], f32 or f64
//   basis.right;   // [r, n], orthonormal rows
//   basis.left;    // [m, r], orthonormal columns
//
// Methods:
//   kRandomized  Subspace iteration from a fixed random start with 16 extra vectors (Halko,
//                Martinsson and Tropp, SIAM Review 2011). If the spectrum has a gap after the rank,
//                it stops when the angle to the exact subspace is at most 5e-5. Without a gap the
//                subspace is not unique; it then stops when another iteration adds less than 0.1 %
//                of captured energy. Matrices for which kExact costs no more get kExact.
//   kExact       All eigenvectors of the smaller Gram matrix, in f64.
//
// Signs: the largest component of every right vector is positive, and left vectors follow
// (u^T G v > 0). Without right vectors, the largest component of every left vector is positive. The
// result depends on the gradient alone.
#ifndef APOGEE_OPTIM_LOWRANK_LOW_RANK_BASIS_H_
#define APOGEE_OPTIM_LOWRANK_LOW_RANK_BASIS_H_

#include "apogee/tensor/tensor.h"

namespace apogee::optim {

enum class BasisMethod { kRandomized, kExact };

struct BasisOptions {
  int64_t rank = 1;  // at most min(m, n)
  BasisMethod method = BasisMethod::kRandomized;
  bool left = true;
  bool right = true;
};

struct BasisResult {
  // False if the gradient is all zeros or not finite; then there is no basis.
  bool ok = false;
  Tensor left, right;  // undefined if not requested
  int iterations = 0;  // of the subspace iteration; 0 for kExact
  double energy = 0;   // sum of the `rank` leading squared singular values
};

BasisResult LeadingBasis(const Tensor& grad, const BasisOptions& options);

// Orthonormal columns of f64 with the span of those of x (f64 [n, l], l <= n). Column j depends on
// the columns up to j of x, as in a QR decomposition; its sign is not fixed. A column that depends
// on earlier ones is replaced by another one.
Tensor OrthonormalColumns(Tensor x);

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_LOWRANK_LOW_RANK_BASIS_H_
