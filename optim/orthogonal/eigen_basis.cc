// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/orthogonal/eigen_basis.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "apogee/optim/cpu/symmetric_eigen.h"
#include "apogee/optim/lowrank/low_rank_basis.h"
#include "apogee/tensor/ops/matmul.h"

namespace apogee::optim {
namespace {

using Vector = std::vector<double>;

// Eigenvalues below this part of the largest one are rounding errors.
double RoundingOf(DType dtype) { return dtype == DType::kF64 ? 1e-12 : 1e-6; }

// Takes the parts along `others` (rows) off `x`, twice, and returns what is left of its length.
double MakeOrthogonal(const std::vector<Vector>& others, Vector& x) {
  for (int pass = 0; pass < 2; ++pass) {
    for (const Vector& other : others) {
      const double overlap = std::inner_product(x.begin(), x.end(), other.begin(), 0.0);
      for (size_t i = 0; i < x.size(); ++i) x[i] -= overlap * other[i];
    }
  }
  return std::sqrt(std::inner_product(x.begin(), x.end(), x.begin(), 0.0));
}

// Adds unit vectors, made orthogonal to those before, until there are n.
void Complete(size_t n, std::vector<Vector>& vectors) {
  // A vector that is nearly in the span of those before would be a rounding error. Some other one
  // is not, so the second bound never ends the loop early.
  for (const double least : {1e-3, 1e-9}) {
    for (size_t i = 0; i < n && vectors.size() < n; ++i) {
      Vector unit(n, 0);
      unit[i] = 1;
      const double length = MakeOrthogonal(vectors, unit);
      if (length < least) continue;
      for (double& x : unit) x /= length;
      vectors.push_back(std::move(unit));
    }
  }
}

Tensor FromColumns(const std::vector<Vector>& columns, const ContextPtr& context) {
  const size_t n = columns.size();
  Vector values(n * n);
  for (size_t c = 0; c < n; ++c) {
    for (size_t r = 0; r < n; ++r) values[r * n + c] = columns[c][r];
  }
  const auto size = static_cast<int64_t>(n);
  return Tensor::FromVector(values, {size, size}, context);
}

}  // namespace

Tensor EigenBasis(const Tensor& gram) {
  const auto n = static_cast<size_t>(gram.size(0));
  std::vector<Vector> vectors;
  if (!gram.context()->is_dry()) {
    Vector values = gram.ToVector<double>();
    const cpu::Eigen eigen = cpu::SymmetricEigen(values, gram.size(0), gram.size(0));
    for (size_t i = 0; eigen.ok && i < n; ++i) {
      if (!(eigen.values[i] > RoundingOf(DType::kF64) * eigen.values[0])) break;
      const auto begin = eigen.vectors.begin() + static_cast<std::ptrdiff_t>(i * n);
      vectors.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(n));
    }
  }
  Complete(n, vectors);
  return FromColumns(vectors, gram.context());
}

RefreshedBasis Refreshed(const Tensor& average, const Tensor& q) {
  const int64_t n = q.size(0);
  const auto size = static_cast<size_t>(n);
  const Tensor moved = ops::MatMul(average, q);
  const Vector a = moved.ToVector<double>(), b = q.ToVector<double>();
  Vector estimates(size, 0);
  for (size_t i = 0; i < a.size(); ++i) estimates[i % size] += a[i] * b[i];
  const double largest = *std::ranges::max_element(estimates);
  for (double& estimate : estimates) {
    if (!(estimate > RoundingOf(average.dtype()) * largest)) estimate = 0;
  }
  std::vector<size_t> order(size);
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::ranges::greater{}, [&](size_t i) { return estimates[i]; });
  // Columns of unit length, so that small eigenvalues count as large ones do.
  Vector columns(size * size), permutation(size * size, 0);
  for (size_t c = 0; c < size; ++c) {
    const size_t from = order[c];
    permutation[from * size + c] = 1;
    const Vector& source = estimates[from] > 0 ? a : b;
    double square = 0;
    for (size_t r = 0; r < size; ++r) square += std::pow(source[r * size + from], 2);
    const double length = square > 0 ? std::sqrt(square) : 1;
    for (size_t r = 0; r < size; ++r) columns[r * size + c] = source[r * size + from] / length;
  }
  return {.q = OrthonormalColumns(Tensor::FromVector(columns, {n, n}, q.context()))
                   .To(average.dtype(), MemoryCategory::kOptimizerState),
          .order = Tensor::FromVector(permutation, {n, n}, q.context()).To(average.dtype())};
}

}  // namespace apogee::optim
