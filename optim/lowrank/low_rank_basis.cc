// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/lowrank/low_rank_basis.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <random>

#include "apogee/optim/core/kernels.h"
#include "apogee/optim/cpu/symmetric_eigen.h"
#include "apogee/tensor/ops/elementwise.h"
#include "apogee/tensor/ops/matmul.h"

namespace apogee::optim {
namespace {

constexpr int64_t kExtra = 16;  // vectors beyond the rank
constexpr int kMaxIterations = 40;
constexpr double kGap = 0.05;  // relative gap of squared singular values that counts as a gap
constexpr double kAngle = 5e-5;
constexpr double kEnergyGain = 1e-3;

Tensor F64(const Tensor& x) { return x.To(DType::kF64, MemoryCategory::kWorkspace); }

Tensor FromRows(const std::vector<double>& rows, int64_t count, int64_t n,
                const ContextPtr& context) {
  return Tensor::FromVector(rows, {count, n}, context);
}

// x^T x in f64.
std::vector<double> Gram(const Tensor& x) {
  const Tensor wide = F64(x);
  return ops::MatMul(wide, wide, {.a_trans = true}).ToVector<double>();
}

// The inverse of the upper Cholesky factor of `gram` (l x l), or nothing if it is not positive
// definite.
std::optional<std::vector<double>> InverseCholesky(std::vector<double> gram, int64_t l) {
  const auto at = [l](std::vector<double>& x, int64_t i, int64_t j) -> double& {
    return x[static_cast<size_t>(i * l + j)];
  };
  double largest = 0;
  for (int64_t i = 0; i < l; ++i) largest = std::max(largest, at(gram, i, i));
  for (int64_t j = 0; j < l; ++j) {  // gram = R^T R, R in the upper triangle
    for (int64_t k = 0; k < j; ++k) {
      const double r = at(gram, k, j);
      for (int64_t i = j; i < l; ++i) at(gram, j, i) -= r * at(gram, k, i);
    }
    const double pivot = at(gram, j, j);
    if (!(pivot > 1e-14 * largest)) return std::nullopt;
    const double inverse = 1 / std::sqrt(pivot);
    for (int64_t i = j; i < l; ++i) at(gram, j, i) *= inverse;
  }
  std::vector<double> result(static_cast<size_t>(l * l), 0);
  for (int64_t i = l - 1; i >= 0; --i) {  // row i of R^-1 from the rows below
    const double inverse = 1 / at(gram, i, i);
    at(result, i, i) = inverse;
    for (int64_t k = i + 1; k < l; ++k) {
      const double r = at(gram, i, k) * inverse;
      for (int64_t j = k; j < l; ++j) at(result, i, j) -= r * at(result, k, j);
    }
  }
  return result;
}

// Orthonormalises columns one after the other, twice each. A column that depends on earlier ones is
// replaced by a random one. For matrices on which Cholesky fails.
Tensor GramSchmidt(const Tensor& x) {
  const int64_t n = x.size(0), l = x.size(1);
  std::vector<double> rows = F64(x).Transpose(0, 1).Contiguous().ToVector<double>();
  std::mt19937_64 engine(n * 131 + l);
  std::normal_distribution<double> normal;
  const auto dot = [n](const double* a, const double* b) {
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
    return sum;
  };
  for (int64_t j = 0; j < l;) {
    double* row = rows.data() + j * n;
    const double before = std::sqrt(dot(row, row));
    for (int pass = 0; pass < 2; ++pass) {
      for (int64_t k = 0; k < j; ++k) {
        const double* other = rows.data() + k * n;
        const double overlap = dot(row, other);
        for (int64_t i = 0; i < n; ++i) row[i] -= overlap * other[i];
      }
    }
    const double after = std::sqrt(dot(row, row));
    if (after > 1e-10 * before) {
      for (int64_t i = 0; i < n; ++i) row[i] /= after;
      ++j;
    } else {
      for (int64_t i = 0; i < n; ++i) row[i] = normal(engine);
    }
  }
  return FromRows(rows, l, n, x.context()).Transpose(0, 1).Contiguous();
}

// The host's part of a decomposition. In a dry context there is nothing to decompose, and only the
// sizes count.
cpu::Eigen EigenOf(const DeviceContext& context, std::vector<double>& gram, int64_t n,
                   int64_t count) {
  if (!context.is_dry()) return cpu::SymmetricEigen(gram, n, count);
  return {.ok = true,
          .values = std::vector<double>(static_cast<size_t>(count)),
          .vectors = std::vector<double>(static_cast<size_t>(count * n))};
}

// The leading singular vectors of one side as the rows of [r, k] in f64, with k the side's length.
struct Side {
  bool ok = false;
  Tensor vectors;
  int iterations = 0;
  double energy = 0;
};

double SumFirst(const std::vector<double>& values, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += values[static_cast<size_t>(i)];
  return sum;
}

// `tall`: computes right vectors (the side of grad's columns), else left vectors.
Side ExactSide(const Tensor& grad, bool tall, int64_t rank) {
  const Tensor wide = F64(grad);
  const int64_t k = tall ? grad.size(1) : grad.size(0);
  std::vector<double> gram =
      ops::MatMul(wide, wide, {.a_trans = tall, .b_trans = !tall}).ToVector<double>();
  const cpu::Eigen eigen = EigenOf(*grad.context(), gram, k, rank);
  if (!eigen.ok) return {};
  return {true, FromRows(eigen.vectors, rank, k, grad.context()), 0, SumFirst(eigen.values, rank)};
}

double Frobenius(const Tensor& x) {
  NormChunk chunk{x.raw(), x.dtype(), x.numel(), 0};
  OptimKernelsFor(*x.context()).grad_norm(*x.context(), {NormKind::kL2, {&chunk, 1}});
  return std::sqrt(chunk.result);
}

Side RandomizedSide(const Tensor& grad, bool tall, int64_t rank) {
  const int64_t k = tall ? grad.size(1) : grad.size(0);
  const int64_t l = std::min(k, rank + kExtra);
  const DType dtype = grad.dtype();
  std::mt19937_64 engine(0x9e3779b97f4a7c15u);
  std::normal_distribution<double> normal;
  std::vector<double> start(static_cast<size_t>(k * l));
  for (double& x : start) x = normal(engine);
  Tensor q = Tensor::FromVector(start, {k, l}, grad.context());
  Side side;
  double captured = 0;
  for (int iteration = 1;; ++iteration) {
    // z = A q with A = G^T G or G G^T, computed as two products with a thin matrix.
    const Tensor narrow = q.To(dtype, MemoryCategory::kWorkspace);
    const Tensor y = ops::MatMul(grad, narrow, {.a_trans = !tall});
    const Tensor z = F64(ops::MatMul(grad, y, {.a_trans = tall}));
    if (iteration == 1) {
      q = OrthonormalColumns(z);
      continue;
    }
    // Rayleigh-Ritz: q^T A q = y^T y.
    std::vector<double> ritz = Gram(y);
    const cpu::Eigen eigen = EigenOf(*grad.context(), ritz, l, l);
    if (!eigen.ok) return {};
    const double energy = SumFirst(eigen.values, rank);
    const auto theta = [&](int64_t i) {
      return i < l ? eigen.values[static_cast<size_t>(i)] : 0.0;
    };
    const double gap = theta(rank - 1) - theta(rank);
    bool done = iteration == kMaxIterations || l == k;
    Tensor leading;
    if (gap > kGap * theta(rank - 1)) {
      // The residual A x - theta x of the leading Ritz vectors x. Its norm divided by the gap
      // bounds the angle.
      const Tensor turn =
          FromRows(eigen.vectors, l, l, grad.context()).Slice(0, 0, rank).Contiguous();
      leading = ops::MatMul(q, turn, {.b_trans = true});
      std::vector<double> thetas;
      for (int64_t i = 0; i < rank; ++i) thetas.push_back(theta(i));
      const Tensor residual =
          ops::Sub(ops::MatMul(z, turn, {.b_trans = true}),
                   ops::Mul(leading, Tensor::FromVector(thetas, {rank}, grad.context())));
      done = done || Frobenius(residual) <= kAngle * gap;
    } else {
      done = done || energy - captured <= kEnergyGain * energy;
    }
    captured = energy;
    if (!done) {
      q = OrthonormalColumns(z);
      continue;
    }
    if (!leading.defined()) {
      const Tensor turn =
          FromRows(eigen.vectors, l, l, grad.context()).Slice(0, 0, rank).Contiguous();
      leading = ops::MatMul(q, turn, {.b_trans = true});
    }
    return {true, leading.Transpose(0, 1).Contiguous(), iteration, energy};
  }
}

// Makes the largest component of every row positive.
void FixSigns(const Tensor& rows) {
  if (rows.context()->is_dry()) return;
  const int64_t n = rows.size(1);
  std::vector<double> values = rows.ToVector<double>();
  for (auto row = values.begin(); row != values.end(); row += n) {
    const auto largest = std::max_element(
        row, row + n, [](double a, double b) { return std::fabs(a) < std::fabs(b); });
    if (*largest >= 0) continue;
    for (auto x = row; x != row + n; ++x) *x = -*x;
  }
  rows.SetValues(values);
}

// The vectors of the other side, [r, other length]: the orthonormalised products with grad.
Tensor OtherSide(const Tensor& grad, bool tall, const Tensor& vectors) {
  const Tensor products = ops::MatMul(F64(grad), vectors, {.a_trans = !tall, .b_trans = true});
  return OrthonormalColumns(products).Transpose(0, 1).Contiguous();
}

}  // namespace

Tensor OrthonormalColumns(Tensor x) {
  const int64_t l = x.size(1);
  if (x.context()->is_dry()) return ops::MatMul(x, Tensor::Zeros({l, l}, x.dtype(), x.context()));
  for (int pass = 0; pass < 2; ++pass) {
    const auto inverse = InverseCholesky(Gram(x), l);
    if (!inverse) return GramSchmidt(x);
    x = ops::MatMul(x, FromRows(*inverse, l, l, x.context()));
  }
  return x;
}

BasisResult LeadingBasis(const Tensor& grad, const BasisOptions& options) {
  const int64_t m = grad.size(0), n = grad.size(1), small = std::min(m, n);
  APOGEE_CHECK(options.rank >= 1 && options.rank <= small, "LeadingBasis: rank ", options.rank,
               " of a matrix ", grad.shape(), "; it must be from 1 to ", small);
  const double size = grad.context()->is_dry() ? 1 : Frobenius(grad);
  if (!std::isfinite(size) || size == 0) return {};
  const bool tall = m >= n;
  const bool exact = options.method == BasisMethod::kExact || small <= 128 ||
                     10 * (options.rank + kExtra) >= 6 * small;
  const Side side =
      exact ? ExactSide(grad, tall, options.rank) : RandomizedSide(grad, tall, options.rank);
  if (!side.ok) return {};
  BasisResult result{
      .ok = true, .left = {}, .right = {}, .iterations = side.iterations, .energy = side.energy};
  Tensor right, left;
  if (tall) {
    right = side.vectors;
    if (options.right || !options.left) FixSigns(right);
    if (options.left) left = OtherSide(grad, tall, right);
  } else {
    left = side.vectors;
    if (options.right) {
      right = OtherSide(grad, tall, left);
      FixSigns(right);
      if (options.left) left = OtherSide(grad, true, right);
    }
  }
  if (options.left && !options.right) FixSigns(left);
  if (options.left) {
    result.left =
        left.Transpose(0, 1).Contiguous().To(grad.dtype(), MemoryCategory::kOptimizerState);
  }
  if (options.right) result.right = right.To(grad.dtype(), MemoryCategory::kOptimizerState);
  return result;
}

}  // namespace apogee::optim
