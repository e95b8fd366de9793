// SPDX-License-Identifier: Apache-2.0

#include <cmath>
#include <vector>

#include "apogee/optim/cpu/kernels.h"
#include "apogee/optim/cpu/loops/chunk_loop.h"

namespace apogee::optim::cpu {
namespace {

constexpr int64_t kMaxBlocks = 16;
constexpr int64_t kMinBlock = 1 << 14;

// Part of a parameter: some of its matrices or, of a single matrix, some of its rows. Only blocks
// of a single matrix therefore share columns. The cut, and so every sum, depends only on the shape.
struct Block {
  AdaLomoChunk* chunk;
  int64_t first_row, last_row;
  int64_t first_col;             // offset of its column sums in those of the chunk
  std::vector<double> col_sums;  // of this block
  double squares = 0;
};

std::vector<Block> MakeBlocks(std::span<AdaLomoChunk> chunks) {
  std::vector<Block> blocks;
  for (AdaLomoChunk& chunk : chunks) {
    const MatrixView m = chunk.layout->matrix();
    const int64_t units = m.batch > 1 ? m.batch : m.rows;
    const int64_t rows_per_unit = m.batch > 1 ? m.rows : 1;
    const int64_t numel = m.batch * m.rows * m.cols;
    const int64_t num_blocks = std::clamp<int64_t>(
        numel / kMinBlock, 1, std::min(kMaxBlocks, std::max<int64_t>(units, 1)));
    for (int64_t b = 0; b < num_blocks; ++b) {
      const int64_t begin = units * b / num_blocks, end = units * (b + 1) / num_blocks;
      blocks.push_back({&chunk,
                        begin * rows_per_unit,
                        end * rows_per_unit,
                        m.batch > 1 ? begin * m.cols : 0,
                        {}});
      if (chunk.col_sums != nullptr) {
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
  const Coefficients<C> c{static_cast<C>(args.inv_scale), static_cast<C>(args.clip_value),
                          static_cast<C>(args.clip_coef), static_cast<C>(args.eps),
                          static_cast<C>(args.beta2),     static_cast<C>(1 - args.beta2)};
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

template <typename C>
void Sums(const DeviceContext& context, const AdaLomoArgs& args) {
  std::vector<Block> blocks = MakeBlocks(args.chunks);
  ForEachStretch<C>(context, args, blocks,
                    [&](Block& block, int64_t row, int64_t col, int64_t begin, int64_t n, C* g,
                        const Coefficients<C>&) {
                      const AdaLomoChunk& chunk = *block.chunk;
                      const C* w = static_cast<const C*>(chunk.weight) + begin;
                      block.squares += LaneSum(n, [&](int64_t i) {
                        return static_cast<double>(w[i]) * static_cast<double>(w[i]);
                      });
                      if (chunk.col_sums == nullptr) return;
                      double* cols = block.col_sums.data() + (col - block.first_col);
                      const auto square = [&](int64_t i) {
                        return static_cast<double>(g[i]) * static_cast<double>(g[i]) + args.eps;
                      };
                      for (int64_t i = 0; i < n; ++i) cols[i] += square(i);
                      chunk.row_sums[row] += LaneSum(n, square);  // no other block has this row
                    });
  for (AdaLomoChunk& chunk : args.chunks) chunk.weight_squares = 0;
  for (const Block& block : blocks) {
    block.chunk->weight_squares += block.squares;
    for (size_t i = 0; i < block.col_sums.size(); ++i) {
      block.chunk->col_sums[static_cast<size_t>(block.first_col) + i] += block.col_sums[i];
    }
  }
}

// Turns a stretch of gradients into the update u.
template <typename C, bool kStore>
void MakeUpdate(const AdaLomoChunk& chunk, int64_t row, int64_t col, int64_t begin, int64_t n, C* g,
                const Coefficients<C>& c) {
  if (chunk.exp_avg_sq == nullptr) {
    const C factor = static_cast<C>(chunk.row_factors[row]);
    const double* factors = chunk.col_factors + col;
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

template <typename C>
void UpdateNorm(const DeviceContext& context, const AdaLomoArgs& args) {
  std::vector<Block> blocks = MakeBlocks(args.chunks);
  ForEachStretch<C>(context, args, blocks,
                    [&](Block& block, int64_t row, int64_t col, int64_t begin, int64_t n, C* g,
                        const Coefficients<C>& c) {
                      MakeUpdate<C, false>(*block.chunk, row, col, begin, n, g, c);
                      block.squares += LaneSum(n, [&](int64_t i) {
                        return static_cast<double>(g[i]) * static_cast<double>(g[i]);
                      });
                    });
  for (AdaLomoChunk& chunk : args.chunks) chunk.update_squares = 0;
  for (const Block& block : blocks) block.chunk->update_squares += block.squares;
}

template <typename C>
void Run(const DeviceContext& context, const AdaLomoArgs& args) {
  std::vector<Block> blocks = MakeBlocks(args.chunks);
  ForEachStretch<C>(context, args, blocks,
                    [&](Block& block, int64_t row, int64_t col, int64_t begin, int64_t n, C* g,
                        const Coefficients<C>& c) {
                      const AdaLomoChunk& chunk = *block.chunk;
                      MakeUpdate<C, true>(chunk, row, col, begin, n, g, c);
                      C* w = static_cast<C*>(chunk.weight) + begin;
                      const C decay = static_cast<C>(chunk.decay),
                              step = static_cast<C>(chunk.step_size);
                      for (int64_t i = 0; i < n; ++i) w[i] = w[i] - decay * w[i] - step * g[i];
                      if (chunk.working != nullptr) {
                        StoreBlock(static_cast<const C*>(chunk.weight) + begin, chunk.working,
                                   chunk.working_dtype, begin, n);
                      }
                    });
}

}  // namespace

void adalomo_sums(const DeviceContext& context, const AdaLomoArgs& args) {
  args.dtype == DType::kF64 ? Sums<double>(context, args) : Sums<float>(context, args);
}
void adalomo_update_norm(const DeviceContext& context, const AdaLomoArgs& args) {
  args.dtype == DType::kF64 ? UpdateNorm<double>(context, args) : UpdateNorm<float>(context, args);
}
void adalomo(const DeviceContext& context, const AdaLomoArgs& args) {
  args.dtype == DType::kF64 ? Run<double>(context, args) : Run<float>(context, args);
}

}  // namespace apogee::optim::cpu
