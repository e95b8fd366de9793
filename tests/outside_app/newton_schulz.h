// SPDX-License-Identifier: Apache-2.0

// The orthogonal matrix next to a matrix, roughly: five quintic Newton-Schulz steps (Jordan et al.,
// "Muon", 2024).
//
//   Orthogonalize(values, 16, 48);   // in place, row by row
#ifndef OUTSIDE_APP_NEWTON_SCHULZ_H_
#define OUTSIDE_APP_NEWTON_SCHULZ_H_

#include <cstdint>
#include <vector>

namespace outside {

void Orthogonalize(std::vector<double>& matrix, int64_t rows, int64_t cols);

}  // namespace outside

#endif  // OUTSIDE_APP_NEWTON_SCHULZ_H_
