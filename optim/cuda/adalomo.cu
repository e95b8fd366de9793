// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/cuda/device/adalomo_items.cuh"
#include "apogee/optim/cuda/device/dispatch_stats.h"
#include "apogee/optim/cuda/device/gate.cuh"
#include "apogee/optim/cuda/device/reduce.cuh"
#include "apogee/optim/cuda/device/second_moment.cuh"
#include "apogee/optim/cuda/kernels.h"

namespace apogee::optim::cuda {
namespace {

using apogee::cuda::kWarp;
using apogee::cuda::WarpReduce;

template <typename C>
struct AdaLomoCoefficients {
  C inv_scale, limit;
  DeviceScale<C> clip;
  C eps, beta2, one_minus_beta2;
  double exact_eps;

  explicit AdaLomoCoefficients(const AdaLomoArgs& args)
      : inv_scale(static_cast<C>(args.inv_scale)),
        limit(static_cast<C>(args.clip_value)),
        clip(args.clip),
        eps(static_cast<C>(args.eps)),
        beta2(static_cast<C>(args.beta2)),
        one_minus_beta2(static_cast<C>(1 - args.beta2)),
        exact_eps(args.eps) {}

  // Loads the gradient and applies scale and clipping.
  template <typename At>
  __device__ Pack<C, kRowPack> Gradient(const AdaLomoItem& item, const At& at) const {
    Pack<C, kRowPack> g = LoadAs<C>(at, item.grad, item.grad_dtype);
#pragma unroll
    for (C& x : g.at) x = clip.value * ClampTo(inv_scale * x, limit);
    return g;
  }
};

__device__ bool IsAligned(const AdaLomoItem& item) {
  return AreAligned(item.weight, item.grad, item.working, item.exp_avg_sq);
}

__device__ void StoreSquares(const AdaLomoItem& item, int64_t tile, double squares) {
  squares = BlockReduce<kTileThreads>(squares, Sum());
  if (threadIdx.x == 0) item.partials[tile] = squares;
}

// The sums of a tile: of w^2, and of g^2 + eps per row and column.
template <typename C>
struct SumsBody {
  AdaLomoCoefficients<C> coefficients;

  __device__ void operator()(const AdaLomoItem& item, int64_t at_tile) const {
    AdaLomoCoefficients<C> c = coefficients;
    c.clip.Open();
    const RowTile tile(item.held, at_tile, IsAligned(item));
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    double squares = 0, columns[kRowPack] = {};
    tile.ForEachRow([&](int64_t row) {
      double row_sum = 0;
      tile.ForPack(row, [&](const auto& at) {
        const Pack<C, kRowPack> w = at.template Load<C>(static_cast<const C*>(item.weight));
        Pack<C, kRowPack> g = {};
        if (item.vectors) g = c.Gradient(item, at);
#pragma unroll
        for (int k = 0; k < kRowPack; ++k) {
          if (!at.Has(k)) continue;
          const double x = w.at[k], y = g.at[k];
          squares += x * x;
          const double term = y * y + c.exact_eps;
          row_sum += term;
          columns[k] += term;
        }
      });
      if (!item.vectors) return;
      row_sum = WarpReduce(row_sum, Sum());
      if (lane == 0) item.row_partials()[tile.strip() * item.rows() + row] = row_sum;
    });
    if (item.vectors) StoreColumns(item, tile, columns);
    StoreSquares(item, at_tile, squares);
  }

  // Adds up the column sums of the warps.
  static __device__ void StoreColumns(const AdaLomoItem& item, const RowTile& tile,
                                      const double (&columns)[kRowPack]) {
    static_assert(kTileCols == kTileThreads);
    __shared__ double parts[kTileWarps][kTileCols];
    const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
    for (int k = 0; k < kRowPack; ++k) {
      parts[thread / kWarp][thread % kWarp * kRowPack + k] = columns[k];
    }
    __syncthreads();
    double sum = 0;
#pragma unroll
    for (int warp = 0; warp < kTileWarps; ++warp) sum += parts[warp][thread];
    const int64_t column = tile.first_col() + thread;
    if (column < item.held.matrix.cols) {
      item.column_partials()[tile.slab() * item.columns() + tile.first_batch_col() + thread] = sum;
    }
  }
};

// Adds up the sums of the tiles in order. The first block of an item adds up the squares; the
// others add up rows and columns, with one thread for each.
template <typename S>
struct AddBody {
  static int64_t Tiles(const AdaLomoItem& item) {
    return 1 + CeilDiv(item.num_vectors(), kTileThreads);
  }
  __device__ void operator()(const AdaLomoItem& item, int64_t tile) const {
    S* sums = static_cast<S*>(item.sums);
    if (tile == 0) {
      double squares = 0;
      for (int64_t t = threadIdx.x; t < item.held.tiles(); t += kTileThreads) {
        squares += item.partials[t];
      }
      squares = BlockReduce<kTileThreads>(squares, Sum());
      if (threadIdx.x == 0) sums[item.num_vectors()] = static_cast<S>(squares);
      return;
    }
    const int64_t i = (tile - 1) * kTileThreads + threadIdx.x, rows = item.rows();
    if (i < rows) {
      sums[i] = static_cast<S>(Add(item.row_partials() + i, item.held.strips(), rows));
    } else if (i < rows + item.columns()) {
      sums[i] = static_cast<S>(
          Add(item.column_partials() + (i - rows), item.held.slabs(), item.columns()));
    }
  }
  static __device__ double Add(const double* partials, int64_t count, int64_t stride) {
    double sum = 0;
    for (int64_t k = 0; k < count; ++k) sum += partials[k * stride];
    return sum;
  }
};

// Writes the new moments into `factors`. Those of columns become factors at once.
template <typename C, typename S>
struct MomentBody {
  double beta2;
  bool store;
  const StepGate* gate;

  __device__ void operator()(const AdaLomoFactorChunk& chunk, int64_t tile) const {
    const int64_t rows = chunk.matrix.batch * chunk.matrix.rows;
    const int64_t columns = chunk.matrix.batch * chunk.matrix.cols;
    const int64_t i = tile * kTileThreads + threadIdx.x;
    if (i >= rows + columns) return;
    const bool is_row = i < rows;
    C* state = is_row ? static_cast<C*>(chunk.row) + i : static_cast<C*>(chunk.column) + (i - rows);
    const double sum = static_cast<double>(static_cast<const S*>(chunk.sums)[i]);
    const double divisor = static_cast<double>(is_row ? chunk.matrix.cols : chunk.matrix.rows);
    const double moment = beta2 * static_cast<double>(*state) + (1 - beta2) * sum / divisor;
    if (store && !(gate != nullptr && gate->skip)) *state = static_cast<C>(moment);
    chunk.factors[i] = is_row ? moment : 1 / sqrt(moment);
  }
};

// Computes the factors of the rows of one matrix. Adds them up in their order, as the CPU does.
struct AdaLomoRowFactors {
  __device__ void operator()(const AdaLomoFactorChunk& chunk, int64_t matrix) const {
    __shared__ double staged[kTileThreads];
    __shared__ double mean;
    const int64_t rows = chunk.matrix.rows;
    double* factor = chunk.factors + matrix * rows;
    double sum = 0;
    for (int64_t base = 0; base < rows; base += kTileThreads) {
      const int64_t here = rows - base < kTileThreads ? rows - base : kTileThreads;
      if (threadIdx.x < here) staged[threadIdx.x] = factor[base + threadIdx.x];
      __syncthreads();
      for (int64_t k = 0; threadIdx.x == 0 && k < here; ++k) sum += staged[k];
      __syncthreads();
    }
    if (threadIdx.x == 0) mean = sum / static_cast<double>(rows);
    __syncthreads();
    for (int64_t i = threadIdx.x; i < rows; i += kTileThreads) {
      factor[i] = 1 / sqrt(factor[i] / mean);
    }
  }
};

// Calls fn(at, u) with the update of every pack of a tile.
template <typename C, bool kStore, typename Fn>
__device__ void ForEachDirection(const AdaLomoCoefficients<C>& c, const AdaLomoItem& item,
                                 const RowTile& tile, const Fn& fn) {
  const bool factored = item.exp_avg_sq == nullptr;
  Pack<C, kRowPack> factors = {};
#pragma unroll
  for (int k = 0; k < kRowPack; ++k) {
    if (factored && tile.col() + k < item.held.matrix.cols) {
      factors.at[k] = static_cast<C>(item.factors[item.rows() + tile.batch_col() + k]);
    }
  }
  tile.ForEachRow([&](int64_t row) {
    const C factor = factored ? static_cast<C>(item.factors[row]) : C(0);
    tile.ForPack(row, [&](const auto& at) {
      Pack<C, kRowPack> v = {};
      C* moments = static_cast<C*>(item.exp_avg_sq);
      if (!factored) v = at.template Load<C>(moments);
      Pack<C, kRowPack> u = c.Gradient(item, at);
#pragma unroll
      for (int k = 0; k < kRowPack; ++k) {
        if (factored) {
          u.at[k] = u.at[k] * factor * factors.at[k];
        } else {
          v.at[k] = c.beta2 * v.at[k] + c.one_minus_beta2 * (u.at[k] * u.at[k] + c.eps);
          u.at[k] /= sqrt(v.at[k]);
        }
      }
      if (kStore && !factored) at.Store(moments, v);
      fn(at, u);
    });
  });
}

template <typename C>
struct NormBody {
  AdaLomoCoefficients<C> coefficients;

  __device__ void operator()(const AdaLomoItem& item, int64_t at_tile) const {
    AdaLomoCoefficients<C> c = coefficients;
    c.clip.Open();
    const RowTile tile(item.held, at_tile, IsAligned(item));
    double squares = 0;
    ForEachDirection<C, false>(c, item, tile, [&](const auto& at, const Pack<C, kRowPack>& u) {
#pragma unroll
      for (int k = 0; k < kRowPack; ++k) {
        const double x = u.at[k];
        if (at.Has(k)) squares += x * x;
      }
    });
    StoreSquares(item, at_tile, squares);
  }
};

template <typename C, typename S>
struct StepBody {
  AdaLomoCoefficients<C> coefficients;
  double lr, weight_decay, min_rms, clip_threshold;

  __device__ void operator()(const AdaLomoItem& item, int64_t at_tile) const {
    AdaLomoCoefficients<C> c = coefficients;
    if (!c.clip.Open()) return;
    const RowTile tile(item.held, at_tile, IsAligned(item));
    const double rate = RateOf({lr, item.weight_sum, DTypeOf<S>(), item.numel, min_rms});
    const C decay = static_cast<C>(rate * weight_decay);
    const C step =
        static_cast<C>(rate / ClipDivisor<S>(item.update_sum, item.numel, clip_threshold));
    C* weight = static_cast<C*>(item.weight);
    ForEachDirection<C, true>(c, item, tile, [&](const auto& at, const Pack<C, kRowPack>& u) {
      Pack<C, kRowPack> w = at.template Load<C>(weight);
#pragma unroll
      for (int k = 0; k < kRowPack; ++k) w.at[k] = w.at[k] - decay * w.at[k] - step * u.at[k];
      at.Store(weight, w);
      if (item.working != nullptr) StoreAs(at, item.working, item.working_dtype, w);
    });
  }
};

template <typename Body>
void ForEachRowTile(const DeviceContext& context, const AdaLomoItems& items, const Body& body) {
  ForEachTile(
      context, items.items(), [](const AdaLomoItem& item) { return item.held.tiles(); }, body);
}

template <typename C, typename S>
void Sums(const DeviceContext& context, const AdaLomoArgs& args) {
  const AdaLomoItems items(context, args.chunks, AdaLomoSums::kAll);
  ForEachRowTile(context, items, SumsBody<C>{AdaLomoCoefficients<C>(args)});
  ForEachTile(context, items.items(), &AddBody<S>::Tiles, AddBody<S>{});
}

template <typename C, typename S>
void UpdateNorm(const DeviceContext& context, const AdaLomoArgs& args) {
  const AdaLomoItems items(context, args.chunks, AdaLomoSums::kSquares);
  ForEachRowTile(context, items, NormBody<C>{AdaLomoCoefficients<C>(args)});
  ForEachTile(context, items.items(), &AddBody<S>::Tiles, AddBody<S>{});
}

template <typename C, typename S>
void RunAdaLomo(const DeviceContext& context, const AdaLomoArgs& args) {
  const AdaLomoItems items(context, args.chunks, AdaLomoSums::kNone);
  ForEachRowTile(context, items,
                 StepBody<C, S>{AdaLomoCoefficients<C>(args), args.lr, args.weight_decay,
                                args.min_rms, args.clip_threshold});
}

}  // namespace

void adalomo_sums(const DeviceContext& context, const AdaLomoArgs& args) {
  DispatchStats(args.dtype, args.stat_dtype,
                [&]<typename C, typename S>() { Sums<C, S>(context, args); });
}
void adalomo_factors(const DeviceContext& context, const AdaLomoFactorArgs& args) {
  DispatchStats(args.dtype, args.stat_dtype, [&]<typename C, typename S>() {
    ForEachTile(
        context, args.chunks,
        [](const AdaLomoFactorChunk& chunk) {
          const MatrixView& m = chunk.matrix;
          return CeilDiv(m.batch * (m.rows + m.cols), kTileThreads);
        },
        MomentBody<C, S>{args.beta2, args.store, args.gate});
  });
  ForEachTile(
      context, args.chunks, [](const AdaLomoFactorChunk& chunk) { return chunk.matrix.batch; },
      AdaLomoRowFactors{});
}
void adalomo_update_norm(const DeviceContext& context, const AdaLomoArgs& args) {
  DispatchStats(args.dtype, args.stat_dtype,
                [&]<typename C, typename S>() { UpdateNorm<C, S>(context, args); });
}
void adalomo(const DeviceContext& context, const AdaLomoArgs& args) {
  DispatchStats(args.dtype, args.stat_dtype,
                [&]<typename C, typename S>() { RunAdaLomo<C, S>(context, args); });
}

}  // namespace apogee::optim::cuda
