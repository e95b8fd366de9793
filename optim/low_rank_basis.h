// SPDX-License-Identifier: Apache-2.0

// The leading singular vectors of a gradient: the basis that GaLore projects on.
//
//   BasisResult basis = LeadingBasis(grad, {.rank = 128});   // grad [m, n], f32 or f64
//   basis.right;   // [r, n], orthonormal rows      basis.left;   // [m, r], orthonormal columns
//
// kRandomized: subspace iteration from a fixed random start (Halko, Martinsson and Tropp, SIAM
// Review 2011) with 16 extra vectors. It stops by its residual: where the spectrum has a gap after
// the rank, when the angle to the exact subspace is bounded by 5e-5; where it has none, and the
// subspace itself is no more than a choice among equals, when another iteration adds less than 0.1
// % of captured energy. Matrices for which that would cost as much as kExact use kExact. kExact:
// all eigenvectors of the smaller Gram matrix, in f64. One sign rule: the largest component of
// every right vector is positive; left vectors follow (u^T G v > 0); without right vectors the rule
// is applied to the left ones. The result depends on the gradient alone.
#ifndef APOGEE_OPTIM_LOW_RANK_BASIS_H_
#define APOGEE_OPTIM_LOW_RANK_BASIS_H_

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
  // False for a gradient of zeros or one that is not finite; then there is no basis.
  bool ok = false;
  Tensor left, right;  // undefined when not asked for
  int iterations = 0;  // of the subspace; 0 for kExact
  double energy = 0;   // captured: sum of the leading squared singular values
};

BasisResult LeadingBasis(const Tensor& grad, const BasisOptions& options);

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_LOW_RANK_BASIS_H_
