// SPDX-License-Identifier: Apache-2.0

// The eigenbases that SOAP rotates into: of a Gram matrix once, then one step of the power
// iteration at a time.
//
//   Tensor q = EigenBasis(gram);                                 // gram [n, n] in f64; columns
//   RefreshedBasis fresh = Refreshed(average, q);                // average, q [n, n]
//
// Where the matrix is singular, its null space has no basis of its own, and Adam in a rotated basis
// is another optimizer. Both functions choose one that rounding does not move: the unit vectors in
// their order, made orthogonal to the eigenvectors and to each other; in a refresh the old vectors.
// Ranks whose sums differ in the last bits then agree.
#ifndef APOGEE_OPTIM_ORTHOGONAL_EIGEN_BASIS_H_
#define APOGEE_OPTIM_ORTHOGONAL_EIGEN_BASIS_H_

#include "apogee/tensor/tensor.h"

namespace apogee::optim {

// Eigenvectors as columns, by falling eigenvalues, in f64. Of a matrix of zeros, or one that is not
// finite, the identity.
Tensor EigenBasis(const Tensor& gram);

struct RefreshedBasis {
  Tensor q;      // [n, n], in the dtype of the average
  Tensor order;  // [n, n]: x order has the columns of x in the order of the new vectors
};
// Sorts the vectors by their falling estimates diag(q^T average q), multiplies by `average` and
// orthonormalises (QR).
RefreshedBasis Refreshed(const Tensor& average, const Tensor& q);

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_ORTHOGONAL_EIGEN_BASIS_H_
