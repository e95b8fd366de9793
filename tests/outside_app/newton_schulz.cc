// SPDX-License-Identifier: Apache-2.0

#include "newton_schulz.h"

#include <cmath>
#include <cstddef>

namespace outside {
namespace {

// Row-major, as small as it can be.
struct Matrix {
  size_t rows, cols;
  std::vector<double> values = std::vector<double>(rows * cols, 0.0);
  double& at(size_t i, size_t j) { return values[i * cols + j]; }
  double at(size_t i, size_t j) const { return values[i * cols + j]; }
};

Matrix Product(const Matrix& a, const Matrix& b) {
  Matrix c{a.rows, b.cols};
  for (size_t i = 0; i < a.rows; ++i) {
    for (size_t k = 0; k < a.cols; ++k) {
      for (size_t j = 0; j < b.cols; ++j) c.at(i, j) += a.at(i, k) * b.at(k, j);
    }
  }
  return c;
}

Matrix Transposed(const Matrix& a) {
  Matrix b{a.cols, a.rows};
  for (size_t i = 0; i < a.rows; ++i) {
    for (size_t j = 0; j < a.cols; ++j) b.at(j, i) = a.at(i, j);
  }
  return b;
}

}  // namespace

void Orthogonalize(std::vector<double>& matrix, int64_t rows, int64_t cols) {
  constexpr int kSteps = 5;
  constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;
  Matrix x{static_cast<size_t>(rows), static_cast<size_t>(cols), matrix};
  const bool tall = rows > cols;
  if (tall) x = Transposed(x);
  double norm = 0;
  for (const double value : x.values) norm += value * value;
  for (double& value : x.values) value /= std::sqrt(norm) + 1e-7;
  for (int step = 0; step < kSteps; ++step) {
    const Matrix gram = Product(x, Transposed(x));
    Matrix polynomial = Product(gram, gram);
    for (size_t i = 0; i < gram.values.size(); ++i) {
      polynomial.values[i] = kB * gram.values[i] + kC * polynomial.values[i];
    }
    Matrix next = Product(polynomial, x);
    for (size_t i = 0; i < x.values.size(); ++i) next.values[i] += kA * x.values[i];
    x = next;
  }
  matrix = tall ? Transposed(x).values : x.values;
}

}  // namespace outside
