// SPDX-License-Identifier: Apache-2.0

#include <cmath>

#include "apogee/optim/cpu/kernels.h"
#include "apogee/optim/cpu/loops/block_loop.h"

namespace apogee::optim::cpu {
namespace {

// The averages are small compared with the parameters, so one thread is enough. Roots are computed
// in separate loops, which the compiler vectorises.
template <typename C, typename S>
void Moments(const FactorArgs& args, const FactorChunk& chunk) {
  const C beta2 = static_cast<C>(chunk.beta2);
  const C one_minus_beta2 = static_cast<C>(1 - chunk.beta2);
  const C eps = static_cast<C>(args.eps);
  const auto average = [&](int64_t n, int64_t count, const C* __restrict old,
                           const S* __restrict sums, C* __restrict out) {
    const S inv_count = S{1} / static_cast<S>(count);
    for (int64_t i = 0; i < n; ++i) {
      out[i] = beta2 * old[i] + one_minus_beta2 * (static_cast<C>(sums[i] * inv_count) + eps);
    }
  };
  const MatrixView& m = chunk.matrix;
  const int64_t rows = m.batch * m.rows, columns = m.batch * m.cols;
  const S* sums = static_cast<const S*>(chunk.sums);
  C* row_factor = static_cast<C*>(chunk.factors);
  C* column_factor = row_factor + rows;
  average(rows, m.cols, static_cast<const C*>(chunk.row), sums, row_factor);
  average(columns, m.rows, static_cast<const C*>(chunk.column), sums + rows, column_factor);
  if (args.store) {
    std::copy(row_factor, row_factor + rows, static_cast<C*>(chunk.row));
    std::copy(column_factor, column_factor + columns, static_cast<C*>(chunk.column));
  }
  for (int64_t b = 0; b < m.batch; ++b) {
    C* __restrict factor = row_factor + b * m.rows;
    double mean = 0;
    for (int64_t i = 0; i < m.rows; ++i) mean += static_cast<double>(factor[i]);
    mean /= static_cast<double>(m.rows);
    const C numerator = static_cast<C>(mean < args.mean_floor ? args.mean_floor : mean);
    for (int64_t i = 0; i < m.rows; ++i) factor[i] = std::sqrt(numerator / factor[i]);
  }
  for (int64_t j = 0; j < columns; ++j) column_factor[j] = C{1} / std::sqrt(column_factor[j]);
}

}  // namespace

void factor_moments(const DeviceContext&, const FactorArgs& args) {
  DispatchStats(args.dtype, args.stat_dtype, [&]<typename C, typename S>() {
    for (const FactorChunk& chunk : args.chunks) Moments<C, S>(args, chunk);
  });
}

}  // namespace apogee::optim::cpu
