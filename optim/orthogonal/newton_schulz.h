// SPDX-License-Identifier: Apache-2.0

// Orthogonalises matrices by an odd polynomial, iterated (Newton-Schulz; Jordan et al., "Muon",
// 2024): the singular values of the result are near 1, its singular vectors are those of the input.
//
//   const NewtonSchulz settings{.coefficients = ValueOrThrow(ParseCoefficients("simple", 5))};
//   Tensor o = Orthogonalized(momentum, settings);              // [m, n]
//
// With X = G / scale (the transpose of G if m > n), a step is A = X X^T, X = a X + (b A + c A^2) X.
// Each step has its own triple (a, b, c). Sums of squares are in f64, all else in the tensor's
// dtype, f32 or f64, or with `bf16` in that. X X^T and A A are symmetric; of large matrices only
// three quarters of them are computed.
#ifndef APOGEE_OPTIM_ORTHOGONAL_NEWTON_SCHULZ_H_
#define APOGEE_OPTIM_ORTHOGONAL_NEWTON_SCHULZ_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "apogee/core/status.h"
#include "apogee/tensor/tensor.h"

namespace apogee::optim {

using Coefficients = std::vector<std::array<double, 3>>;

// The triples of `steps` steps: of a named set, or of three numbers (or a multiple) between commas,
// "3.4445,-4.775,2.0315". Beyond the last triple the last one repeats, in `quintic` all.
//   simple         Jordan et al., 2024: singular values end in 0.68 to 1.13
//   quintic        five triples: 0.98 to 1.03
//   polar_express  Amsel et al., 2025, as the dion repository has it; for norm_scale 1.02
//   cans           Grishina et al., 2025
//   deepseek4      simple eight times, then (2, -1.5, 0.5)
absl::StatusOr<Coefficients> ParseCoefficients(const std::string& text, int64_t steps);

struct NewtonSchulz {
  Coefficients coefficients;  // by step
  double eps = 1e-7;
  bool clamps_norm = false;  // scale = max(norm, eps) in place of norm_scale * norm + eps
  double norm_scale = 1;
  bool bf16 = false;  // iterates in bf16
  // What a matrix of this norm is divided by.
  double Divisor(double norm) const;
};

// `g`: contiguous. Of a zero matrix zeros.
Tensor Orthogonalized(const Tensor& g, const NewtonSchulz& settings);

// Gives `take` the result of each of `matrices`, which have one shape, and its number. Small
// matrices share their products.
void Orthogonalize(const std::vector<Tensor>& matrices, const NewtonSchulz& settings,
                   const std::function<void(size_t i, Tensor result)>& take);

// Its parts, for matrices that no rank holds whole (gram_sums.h). X is contiguous, [m, n].
double FrobeniusNorm(const Tensor& x);
// X X^T; X is [m, n], or a batch of small ones [b, m, n].
Tensor SymmetricProduct(const Tensor& x);
// a X + (b A + c A^2) X
Tensor Advanced(const Tensor& x, const Tensor& gram, const std::array<double, 3>& triple);

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_ORTHOGONAL_NEWTON_SCHULZ_H_
