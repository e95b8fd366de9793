// SPDX-License-Identifier: Apache-2.0

// Factored second moments of one tensor in f64, for the tests of Adafactor and CAME.
#ifndef APOGEE_TESTS_OPTIM_FACTORED_FACTORED_RULE_H_
#define APOGEE_TESTS_OPTIM_FACTORED_FACTORED_RULE_H_

#include <cmath>
#include <string>
#include <utility>

#include "apogee/tests/optim/layerwise_checks.h"

namespace apogee::optim {

// A tensor as a batch of matrices; element -> its row and column, counted through the batch.
struct Dims {
  explicit Dims(const Shape& shape) : factored(shape.rank() >= 2) {
    if (!factored) return;
    rows = static_cast<size_t>(shape[-2]);
    cols = static_cast<size_t>(shape[-1]);
    batch = static_cast<size_t>(shape.numel()) / (rows * cols);
  }
  size_t Row(size_t i) const { return i / cols; }
  size_t Column(size_t i) const { return i / (rows * cols) * cols + i % cols; }

  bool factored;
  size_t batch = 1, rows = 1, cols = 1;
};

// Averages of x^2 + eps over rows and columns, kept in s[name + "_row"] and s[name + "_col"].
inline std::pair<Vector, Vector> MeanSquares(const Dims& d, const Vector& x, double beta,
                                             double eps, Vectors& s, const std::string& name) {
  Vector row(d.batch * d.rows), column(d.batch * d.cols);
  for (size_t i = 0; i < x.size(); ++i) {
    row[d.Row(i)] += (x[i] * x[i] + eps) / static_cast<double>(d.cols);
    column[d.Column(i)] += (x[i] * x[i] + eps) / static_cast<double>(d.rows);
  }
  Vector &rows = s[name + "_row"], &columns = s[name + "_col"];
  rows.resize(row.size());
  columns.resize(column.size());
  for (size_t i = 0; i < row.size(); ++i) rows[i] = beta * rows[i] + (1 - beta) * row[i];
  for (size_t j = 0; j < column.size(); ++j)
    columns[j] = beta * columns[j] + (1 - beta) * column[j];
  return {rows, columns};
}

// Of the matrix that `row` belongs to.
inline double MeanOverRows(const Dims& d, const Vector& rows, size_t row) {
  double sum = 0;
  const size_t first = row / d.rows * d.rows;
  for (size_t i = first; i < first + d.rows; ++i) sum += rows[i];
  return sum / static_cast<double>(d.rows);
}

// x over the root of the factored mean square of `of`.
inline Vector Divide(const Dims& d, const Vector& x, const Vector& of, double beta, double eps,
                     Vectors& s, const std::string& name) {
  const auto [rows, columns] = MeanSquares(d, of, beta, eps, s, name);
  Vector u(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    u[i] =
        x[i] / std::sqrt(rows[d.Row(i)] / MeanOverRows(d, rows, d.Row(i)) * columns[d.Column(i)]);
  }
  return u;
}

// As Divide(g, g), or with a mean square per element where a tensor is not factored.
inline Vector Normalize(const Shape& shape, const Vector& g, double beta, double eps, Vectors& s,
                        const std::string& name) {
  const Dims d(shape);
  if (d.factored) return Divide(d, g, g, beta, eps, s, name);
  Vector& v = s[name];
  v.resize(g.size());
  Vector u(g.size());
  for (size_t i = 0; i < g.size(); ++i) {
    v[i] = beta * v[i] + (1 - beta) * (g[i] * g[i] + eps);
    u[i] = g[i] / std::sqrt(v[i]);
  }
  return u;
}

}  // namespace apogee::optim

#endif  // APOGEE_TESTS_OPTIM_FACTORED_FACTORED_RULE_H_
