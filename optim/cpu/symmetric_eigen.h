// SPDX-License-Identifier: Apache-2.0

// Eigenvectors of a symmetric matrix in f64, for the small matrices of a projection basis. Runs on
// the host.
//
//   std::vector<double> a = gram;                       // n x n, row-major; overwritten
//   cpu::Eigen e = cpu::SymmetricEigen(a, n, /*wanted=*/16);
//   e.values[0] >= e.values[1];                         // descending
//   e.vectors[i * n + j];                               // row i is eigenvector i
//
// Householder reduction to a tridiagonal matrix, then implicit QL (Golub and Van Loan, 8.3): 2 n^3
// plus about 6 n^3 operations, always on contiguous rows. There is no tolerance to set: errors are
// a few rounding units of the largest eigenvalue. Matrices of low rank converge, too.
#ifndef APOGEE_OPTIM_CPU_SYMMETRIC_EIGEN_H_
#define APOGEE_OPTIM_CPU_SYMMETRIC_EIGEN_H_

#include <cstdint>
#include <vector>

namespace apogee::optim::cpu {

struct Eigen {
  bool ok = false;              // false: not finite, or no convergence
  std::vector<double> values;   // all n, descending
  std::vector<double> vectors;  // wanted x n
};

Eigen SymmetricEigen(std::vector<double>& a, int64_t n, int64_t wanted);

}  // namespace apogee::optim::cpu

#endif  // APOGEE_OPTIM_CPU_SYMMETRIC_EIGEN_H_
