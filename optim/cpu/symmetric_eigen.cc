// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/cpu/symmetric_eigen.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace apogee::optim::cpu {
namespace {

// Eight running sums, so that additions do not wait for each other and can use vectors.
double Dot(const double* x, const double* y, int64_t n) {
  constexpr int kLanes = 8;
  double sums[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) sums[lane] += x[i + lane] * y[i + lane];
  }
  for (; i < n; ++i) sums[0] += x[i] * y[i];
  return std::accumulate(sums, sums + kLanes, 0.0);
}

void Axpy(double alpha, const double* __restrict x, double* __restrict y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] += alpha * x[i];
}

struct Tridiagonal {
  std::vector<double> diagonal, off;            // off[i] couples i and i + 1
  std::vector<std::vector<double>> reflectors;  // k acts on [k + 1, n); empty: identity
  std::vector<double> betas;
};

// a = Q T Q^T with Q = H_0 H_1 ... and H_k = 1 - beta v v^T.
Tridiagonal Reduce(std::vector<double>& a, int64_t n) {
  Tridiagonal t;
  t.diagonal.resize(static_cast<size_t>(n));
  t.off.assign(static_cast<size_t>(n), 0);
  std::vector<double> w(static_cast<size_t>(n));
  for (int64_t k = 0; k < n; ++k) {
    double* row = a.data() + k * n;  // the matrix is symmetric: row k is column k
    t.diagonal[static_cast<size_t>(k)] = row[k];
    const int64_t m = n - k - 1;
    if (m == 0) break;
    std::vector<double> v(row + k + 1, row + n);
    const double norm = std::sqrt(Dot(v.data(), v.data(), m));
    const double alpha = v[0] > 0 ? -norm : norm;
    t.off[static_cast<size_t>(k)] = alpha;
    v[0] -= alpha;
    const double length = Dot(v.data(), v.data(), m);
    const double beta = m > 1 && length > 0 ? 2 / length : 0;
    if (beta == 0) t.off[static_cast<size_t>(k)] = row[k + 1];
    t.betas.push_back(beta);
    if (beta == 0) {
      t.reflectors.emplace_back();
      continue;
    }
    // A22 -= v w^T + w v^T with w = p - (beta / 2)(p^T v) v, p = beta A22 v.
    for (int64_t i = 0; i < m; ++i) {
      w[static_cast<size_t>(i)] = beta * Dot(a.data() + (k + 1 + i) * n + k + 1, v.data(), m);
    }
    Axpy(-beta / 2 * Dot(w.data(), v.data(), m), v.data(), w.data(), m);
    for (int64_t i = 0; i < m; ++i) {
      double* to = a.data() + (k + 1 + i) * n + k + 1;
      Axpy(-v[static_cast<size_t>(i)], w.data(), to, m);
      Axpy(-w[static_cast<size_t>(i)], v.data(), to, m);
    }
    t.reflectors.push_back(std::move(v));
  }
  return t;
}

// Rotates rows i and i + 1 of z.
void Rotate(double c, double s, double* __restrict low, double* __restrict high, int64_t n) {
  for (int64_t k = 0; k < n; ++k) {
    const double f = high[k];
    high[k] = s * low[k] + c * f;
    low[k] = c * low[k] - s * f;
  }
}

// Implicit QL on (d, e). The rows of z become the eigenvectors. Returns false if it does not
// converge.
bool QlIterate(std::vector<double>& d, std::vector<double>& e, std::vector<double>& z, int64_t n) {
  const auto at = [](std::vector<double>& x, int64_t i) -> double& {
    return x[static_cast<size_t>(i)];
  };
  constexpr int kMaxIterations = 60;
  // From then on rounding errors of the largest entry count as zeros. In a null space all entries
  // are such errors, and need not become small beside each other.
  constexpr int kPatience = 30;
  double largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    largest = std::max({largest, std::fabs(at(d, i)), std::fabs(at(e, i))});
  }
  for (int64_t l = 0; l < n; ++l) {
    for (int iteration = 0;; ++iteration) {
      int64_t m = l;
      for (; m + 1 < n; ++m) {
        const double size =
            iteration < kPatience ? std::fabs(at(d, m)) + std::fabs(at(d, m + 1)) : largest;
        if (std::fabs(at(e, m)) <= std::numeric_limits<double>::epsilon() * size) break;
      }
      if (m == l) break;
      if (iteration == kMaxIterations) return false;
      double g = (at(d, l + 1) - at(d, l)) / (2 * at(e, l));
      double r = std::hypot(g, 1.0);
      g = at(d, m) - at(d, l) + at(e, l) / (g + std::copysign(r, g));
      double s = 1, c = 1, p = 0;
      int64_t i = m - 1;
      for (; i >= l; --i) {
        const double f = s * at(e, i);
        const double b = c * at(e, i);
        r = std::hypot(f, g);
        at(e, i + 1) = r;
        if (r == 0) {
          at(d, i + 1) -= p;
          at(e, m) = 0;
          break;
        }
        s = f / r;
        c = g / r;
        g = at(d, i + 1) - p;
        r = (at(d, i) - g) * s + 2 * c * b;
        p = s * r;
        at(d, i + 1) = g + p;
        g = c * r - b;
        Rotate(c, s, z.data() + i * n, z.data() + (i + 1) * n, n);
      }
      if (r == 0 && i >= l) continue;
      at(d, l) -= p;
      at(e, l) = g;
      at(e, m) = 0;
    }
  }
  return true;
}

}  // namespace

Eigen SymmetricEigen(std::vector<double>& a, int64_t n, int64_t wanted) {
  Eigen result;
  if (!std::ranges::all_of(a, [](double x) { return std::isfinite(x); })) return result;
  Tridiagonal t = Reduce(a, n);
  std::vector<double> z(static_cast<size_t>(n * n), 0);
  for (int64_t i = 0; i < n; ++i) z[static_cast<size_t>(i * n + i)] = 1;
  if (!QlIterate(t.diagonal, t.off, z, n)) return result;

  std::vector<int64_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater<>(),
                           [&](int64_t i) { return t.diagonal[static_cast<size_t>(i)]; });
  for (const int64_t i : order) result.values.push_back(t.diagonal[static_cast<size_t>(i)]);
  result.vectors.resize(static_cast<size_t>(wanted * n));
  for (int64_t i = 0; i < wanted; ++i) {
    double* x = result.vectors.data() + i * n;
    std::copy_n(z.data() + order[static_cast<size_t>(i)] * n, n, x);
    for (auto k = static_cast<int64_t>(t.reflectors.size()) - 1; k >= 0; --k) {
      const std::vector<double>& v = t.reflectors[static_cast<size_t>(k)];
      if (v.empty()) continue;
      const int64_t m = n - k - 1;
      Axpy(-t.betas[static_cast<size_t>(k)] * Dot(v.data(), x + k + 1, m), v.data(), x + k + 1, m);
    }
  }
  result.ok = true;
  return result;
}

}  // namespace apogee::optim::cpu
