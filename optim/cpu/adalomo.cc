// SPDX-License-Identifier: Apache-2.0

#include <cmath>
#include <vector>

#include "apogee/optim/cpu/kernels.h"
#include "apogee/optim/cpu/loops/block_loop.h"
#include "apogee/optim/cpu/loops/second_moment.h"

namespace apogee::optim::cpu {
namespace {

constexpr int64_t kMaxBlocks = 16;
constexpr int64_t kMinBlock = 1 << 14;

// Part of a parameter: some of its matrices or, of a single matrix, some of its rows. Only blocks
// of a single matrix therefore share columns. The cut, and so every sum, depends only on the shape.
struct Block {
  const AdaLomoChunk* chunk;
  double* row_sums;  // of the chunk
  int64_t first_row, last_row;
  int64_t first_col;             // offset of its column sums in those of the chunk
  std::vector<double> col_sums;  // of this block
  double squares = 0;
};

// The sums of a chunk, in f64.
struct ChunkSums {
  std::vector<double> rows, cols;  // empty if not factored
  double squares = 0;
};

// `sums`: one per chunk.
std::vector<Block> MakeBlocks(std::span<const AdaLomoChunk> chunks, std::span<ChunkSums> sums) {
  std::vector<Block> blocks;
  for (const AdaLomoChunk& chunk : chunks) {
    ChunkSums& of = sums[static_cast<size_t>(&chunk - chunks.data())];
    const MatrixView m = chunk.layout->matrix();
    const int64_t units = m.batch > 1 ? m.batch : m.rows;
    const int64_t rows_per_unit = m.batch > 1 ? m.rows : 1;
    const int64_t numel = m.batch * m.rows * m.cols;
    const int64_t num_blocks = std::clamp<int64_t>(
        numel / kMinBlock, 1, std::min(kMaxBlocks, std::max<int64_t>(units, 1)));
    for (int64_t b = 0; b < num_blocks; ++b) {
      const int64_t begin = units * b / num_blocks, end = units * (b + 1) / num_blocks;
      blocks.push_back({&chunk,
                        of.rows.data(),
                        begin * rows_per_unit,
                        end * rows_per_unit,
                        m.batch > 1 ? begin * m.cols : 0,
                        {}});
      if (!of.cols.empty()) {
        const int64_t matrices = m.batch > 1 ? end - begin : 1;
        blocks.back().col_sums.resize(static_cast<size_t>(matrices * m.cols));
      }
    }
  }
  return blocks;
}

template <typename C>
struct Coefficients {
  C inv_scale, limit, clip_coef, eps, beta2, one_minus_beta2;
};

// Calls fn(block, row, column, position, count, g) for stretches of at most kStageBlock elements of
// one row. Row and column are those of the chunk; g is the gradient after scaling and clipping.
template <typename C, typename Fn>
void ForEachStretch(const DeviceContext& context, const AdaLomoArgs& args,
                    std::vector<Block>& blocks, const Fn& fn) {
  const Coefficients<C> c{static_cast<C>(args.inv_scale),
                          static_cast<C>(args.clip_value),
                          static_cast<C>(static_cast<double>(args.clip)),
                          static_cast<C>(args.eps),
                          static_cast<C>(args.beta2),
                          static_cast<C>(1 - args.beta2)};
  const auto num_blocks = static_cast<int64_t>(blocks.size());
  int64_t total = 0;
  for (const AdaLomoChunk& chunk : args.chunks) total += chunk.n;
  const int64_t grain = total < 2 * kMinBlock ? num_blocks : 1;
  ParallelFor(context, num_blocks, grain, [&](int64_t first, int64_t last) {
    alignas(64) C g[kStageBlock];
    for (int64_t b = first; b < last; ++b) {
      Block& block = blocks[static_cast<size_t>(b)];
      const AdaLomoChunk& chunk = *block.chunk;
      const MatrixView m = chunk.layout->matrix();
      ForEachRowPiece(*chunk.layout, [&](int64_t row, int64_t col, int64_t begin, int64_t count) {
        if (row < block.first_row || row >= block.last_row) return;
        const int64_t col_base = row / m.rows * m.cols + col;
        for (int64_t done = 0; done < count; done += kStageBlock) {
          const int64_t n = std::min(kStageBlock, count - done);
          LoadBlock(chunk.grad, chunk.grad_dtype, begin + done, n, g);
          for (int64_t i = 0; i < n; ++i) {
            const C x = c.inv_scale * g[i];
            g[i] = c.clip_coef * (x > c.limit    ? c.limit
                                  : x < -c.limit ? -c.limit
                                                 : x);  // NaN stays
          }
          fn(block, row, col_base + done, begin + done, n, g, c);
        }
      });
    }
  });
}

// Sums in eight interleaved parts, which the compiler can keep in vector lanes without reordering.
template <typename Fn>
double LaneSum(int64_t n, const Fn& term) {
  double lanes[8] = {};
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int k = 0; k < 8; ++k) lanes[k] += term(i + k);
  }
  for (int k = 0; i < n; ++i, ++k) lanes[k] += term(i);
  return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) +
         ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

template <typename S>
void StoreAt(void* sums, int64_t at, const std::vector<double>& values) {
  std::ranges::transform(values, static_cast<S*>(sums) + at,
                         [](double x) { return static_cast<S>(x); });
}

template <typename C, typename S>
void Sums(const DeviceContext& context, const AdaLomoArgs& args) {
  std::vector<ChunkSums> sums(args.chunks.size());
  for (size_t i = 0; i < sums.size(); ++i) {
    if (args.chunks[i].exp_avg_sq != nullptr) continue;
    const MatrixView m = args.chunks[i].layout->matrix();
    sums[i].rows.resize(static_cast<size_t>(m.batch * m.rows));
    sums[i].cols.resize(static_cast<size_t>(m.batch * m.cols));
  }
  std::vector<Block> blocks = MakeBlocks(args.chunks, sums);
  ForEachStretch<C>(context, args, blocks,
                    [&](Block& block, int64_t row, int64_t col, int64_t begin, int64_t n, C* g,
                        const Coefficients<C>&) {
                      const C* w = static_cast<const C*>(block.chunk->weight) + begin;
                      block.squares += LaneSum(n, [&](int64_t i) {
                        return static_cast<double>(w[i]) * static_cast<double>(w[i]);
                      });
                      if (block.col_sums.empty()) return;
                      double* cols = block.col_sums.data() + (col - block.first_col);
                      const auto square = [&](int64_t i) {
                        return static_cast<double>(g[i]) * static_cast<double>(g[i]) + args.eps;
                      };
                      for (int64_t i = 0; i < n; ++i) cols[i] += square(i);
                      block.row_sums[row] += LaneSum(n, square);  // no other block has this row
                    });
  for (const Block& block : blocks) {
    ChunkSums& of = sums[static_cast<size_t>(block.chunk - args.chunks.data())];
    of.squares += block.squares;
    for (size_t i = 0; i < block.col_sums.size(); ++i) {
      of.cols[static_cast<size_t>(block.first_col) + i] += block.col_sums[i];
    }
  }
  for (size_t i = 0; i < sums.size(); ++i) {
    const auto rows = std::ssize(sums[i].rows), cols = std::ssize(sums[i].cols);
    StoreAt<S>(args.chunks[i].sums, 0, sums[i].rows);
    StoreAt<S>(args.chunks[i].sums, rows, sums[i].cols);
    StoreAt<S>(args.chunks[i].sums, rows + cols, {sums[i].squares});
  }
}

template <typename C, typename S>
void Factors(const AdaLomoFactorArgs& args, const AdaLomoFactorChunk& chunk) {
  const MatrixView& m = chunk.matrix;
  const int64_t rows = m.batch * m.rows, columns = m.batch * m.cols;
  const auto advance = [&](C* state, const S* from, int64_t n, int64_t divisor, double* moments) {
    for (int64_t i = 0; i < n; ++i) {
      moments[i] = args.beta2 * static_cast<double>(state[i]) +
                   (1 - args.beta2) * static_cast<double>(from[i]) / static_cast<double>(divisor);
      if (args.store) state[i] = static_cast<C>(moments[i]);
    }
  };
  const S* sums = static_cast<const S*>(chunk.sums);
  advance(static_cast<C*>(chunk.row), sums, rows, m.cols, chunk.factors);
  advance(static_cast<C*>(chunk.column), sums + rows, columns, m.rows, chunk.factors + rows);
  for (int64_t begin = 0; begin < rows; begin += m.rows) {
    double mean = 0;
    for (int64_t i = begin; i < begin + m.rows; ++i) mean += chunk.factors[i];
    mean /= static_cast<double>(m.rows);
    for (int64_t i = begin; i < begin + m.rows; ++i) {
      chunk.factors[i] = 1 / std::sqrt(chunk.factors[i] / mean);
    }
  }
  for (int64_t i = rows; i < rows + columns; ++i)
    chunk.factors[i] = 1 / std::sqrt(chunk.factors[i]);
}

// Turns a stretch of gradients into the update u.
template <typename C, bool kStore>
void MakeUpdate(const AdaLomoChunk& chunk, int64_t row, int64_t col, int64_t begin, int64_t n, C* g,
                const Coefficients<C>& c) {
  if (chunk.exp_avg_sq == nullptr) {
    const MatrixView m = chunk.layout->matrix();
    const C factor = static_cast<C>(chunk.factors[row]);
    const double* factors = chunk.factors + m.batch * m.rows + col;
    for (int64_t i = 0; i < n; ++i) g[i] = g[i] * factor * static_cast<C>(factors[i]);
    return;
  }
  C* moments = static_cast<C*>(chunk.exp_avg_sq) + begin;
  for (int64_t i = 0; i < n; ++i) {
    const C v = c.beta2 * moments[i] + c.one_minus_beta2 * (g[i] * g[i] + c.eps);
    if constexpr (kStore) moments[i] = v;
    g[i] /= std::sqrt(v);
  }
}

template <typename C, typename S>
void UpdateNorm(const DeviceContext& context, const AdaLomoArgs& args) {
  std::vector<ChunkSums> sums(args.chunks.size());
  std::vector<Block> blocks = MakeBlocks(args.chunks, sums);
  ForEachStretch<C>(context, args, blocks,
                    [&](Block& block, int64_t row, int64_t col, int64_t begin, int64_t n, C* g,
                        const Coefficients<C>& c) {
                      MakeUpdate<C, false>(*block.chunk, row, col, begin, n, g, c);
                      block.squares += LaneSum(n, [&](int64_t i) {
                        return static_cast<double>(g[i]) * static_cast<double>(g[i]);
                      });
                    });
  for (const Block& block : blocks) {
    sums[static_cast<size_t>(block.chunk - args.chunks.data())].squares += block.squares;
  }
  for (size_t i = 0; i < sums.size(); ++i) {
    StoreAt<S>(args.chunks[i].sums, 0, {sums[i].squares});
  }
}

// The factors of w and of u in the update of a chunk.
struct Steps {
  double decay, step;
};
template <typename S>
Steps StepsOf(const AdaLomoArgs& args, const AdaLomoChunk& chunk) {
  const int64_t numel = chunk.layout->logical_shape().numel();
  const double rate = RateOf({args.lr, chunk.weight_sum, args.stat_dtype, numel, args.min_rms});
  return {rate * args.weight_decay,
          rate / ClipDivisor<S>(chunk.update_sum, numel, args.clip_threshold)};
}

template <typename C, typename S>
void Run(const DeviceContext& context, const AdaLomoArgs& args) {
  std::vector<ChunkSums> sums(args.chunks.size());
  std::vector<Block> blocks = MakeBlocks(args.chunks, sums);
  std::vector<Steps> steps_of;
  for (const AdaLomoChunk& chunk : args.chunks) steps_of.push_back(StepsOf<S>(args, chunk));
  ForEachStretch<C>(
      context, args, blocks,
      [&](Block& block, int64_t row, int64_t col, int64_t begin, int64_t n, C* g,
          const Coefficients<C>& c) {
        const AdaLomoChunk& chunk = *block.chunk;
        MakeUpdate<C, true>(chunk, row, col, begin, n, g, c);
        C* w = static_cast<C*>(chunk.weight) + begin;
        const Steps& steps = steps_of[static_cast<size_t>(&chunk - args.chunks.data())];
        const C decay = static_cast<C>(steps.decay), step = static_cast<C>(steps.step);
        for (int64_t i = 0; i < n; ++i) w[i] = w[i] - decay * w[i] - step * g[i];
        if (chunk.working != nullptr) {
          StoreBlock(static_cast<const C*>(chunk.weight) + begin, chunk.working,
                     chunk.working_dtype, begin, n);
        }
      });
}

}  // namespace

void adalomo_sums(const DeviceContext& context, const AdaLomoArgs& args) {
  DispatchStats(args.dtype, args.stat_dtype,
                [&]<typename C, typename S>() { Sums<C, S>(context, args); });
}
void adalomo_factors(const DeviceContext&, const AdaLomoFactorArgs& args) {
  DispatchStats(args.dtype, args.stat_dtype, [&]<typename C, typename S>() {
    for (const AdaLomoFactorChunk& chunk : args.chunks) Factors<C, S>(args, chunk);
  });
}
void adalomo_update_norm(const DeviceContext& context, const AdaLomoArgs& args) {
  DispatchStats(args.dtype, args.stat_dtype,
                [&]<typename C, typename S>() { UpdateNorm<C, S>(context, args); });
}
void adalomo(const DeviceContext& context, const AdaLomoArgs& args) {
  DispatchStats(args.dtype, args.stat_dtype,
                [&]<typename C, typename S>() { Run<C, S>(context, args); });
}

}  // namespace apogee::optim::cpu
