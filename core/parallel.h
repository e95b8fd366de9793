// SPDX-License-Identifier: Apache-2.0

// ParallelFor: the one place where CPU loops are split over a rank's threads.
//
//   ParallelFor(context, rows, /*grain=*/64, [&](int64_t begin, int64_t end) { ... });
//
// Calls fn on disjoint ranges that cover [0, count). The split depends only on count, grain and the
// number of threads, so a loop gives the same bits in every run. A range shorter than `grain` is
// not split. Without OpenMP (the TSan build) fn runs on the calling thread. fn must not throw. In a
// dry context nothing runs.
#ifndef APOGEE_CORE_PARALLEL_H_
#define APOGEE_CORE_PARALLEL_H_

#include <algorithm>
#include <cstdint>

#include "apogee/core/device_context.h"

namespace apogee {

template <typename Fn>
void ParallelFor(int num_threads, int64_t count, int64_t grain, const Fn& fn) {
  const int64_t max_parts = std::max<int64_t>(1, count / std::max<int64_t>(1, grain));
  const int64_t parts = std::min<int64_t>(num_threads, max_parts);
  if (count <= 0) return;
#ifdef _OPENMP
  if (parts > 1) {
#pragma omp parallel for num_threads(static_cast <int>(parts)) schedule(static, 1)
    for (int64_t part = 0; part < parts; ++part) {
      fn(count * part / parts, count * (part + 1) / parts);
    }
    return;
  }
#else
  (void)parts;
#endif
  fn(int64_t{0}, count);
}

template <typename Fn>
void ParallelFor(const DeviceContext& context, int64_t count, int64_t grain, const Fn& fn) {
  if (!context.is_dry()) ParallelFor(context.num_threads(), count, grain, fn);
}

// Sums over blocks of a fixed size and adds the partial sums in index order: the same bits for
// every number of threads. `block_fn(begin, end)` returns the partial sum of its range as a double.
// 0 in a dry context.
template <typename Fn>
double ParallelSum(const DeviceContext& context, int64_t count, const Fn& block_fn) {
  if (context.is_dry()) return 0;
  constexpr int64_t kBlock = 16384;
  constexpr int64_t kMaxBlocks = 4096;
  const int64_t block = std::max(kBlock, (count + kMaxBlocks - 1) / kMaxBlocks);
  const int64_t num_blocks = (count + block - 1) / block;
  double partials[kMaxBlocks];
  ParallelFor(context, num_blocks, 2, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      partials[i] = block_fn(i * block, std::min(count, (i + 1) * block));
    }
  });
  double sum = 0;
  for (int64_t i = 0; i < num_blocks; ++i) sum += partials[i];
  return sum;
}

}  // namespace apogee

#endif  // APOGEE_CORE_PARALLEL_H_
