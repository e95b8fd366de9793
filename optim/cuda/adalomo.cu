// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/cuda/device/adalomo_items.cuh"
#include "apogee/optim/cuda/device/reduce.cuh"
#include "apogee/optim/cuda/device/update.cuh"
#include "apogee/optim/cuda/kernels.h"

namespace apogee::optim::cuda {
namespace {

using apogee::cuda::kWarp;
using apogee::cuda::WarpReduce;

template <typename C>
struct AdaLomoCoefficients {
  C inv_scale, limit, clip_coef, eps, beta2, one_minus_beta2;
  double exact_eps;

  explicit AdaLomoCoefficients(const AdaLomoArgs& args)
      : inv_scale(static_cast<C>(args.inv_scale)),
        limit(static_cast<C>(args.clip_value)),
        clip_coef(static_cast<C>(args.clip_coef)),
        eps(static_cast<C>(args.eps)),
        beta2(static_cast<C>(args.beta2)),
        one_minus_beta2(static_cast<C>(1 - args.beta2)),
        exact_eps(args.eps) {}

  // Loads the gradient and applies scale and clipping.
  template <typename At>
  __device__ Pack<C, kRowPack> Gradient(const AdaLomoItem& item, const At& at) const {
    Pack<C, kRowPack> g = LoadAs<C>(at, item.grad, item.grad_dtype);
#pragma unroll
    for (C& x : g.at) x = clip_coef * ClampTo(inv_scale * x, limit);
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
  AdaLomoCoefficients<C> c;

  __device__ void operator()(const AdaLomoItem& item, int64_t at_tile) const {
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
struct AddBody {
  static int64_t Tiles(const AdaLomoItem& item) {
    return 1 + CeilDiv(item.num_results() - 1, kTileThreads);
  }
  __device__ void operator()(const AdaLomoItem& item, int64_t tile) const {
    if (tile == 0) {
      double squares = 0;
      for (int64_t t = threadIdx.x; t < item.held.tiles(); t += kTileThreads) {
        squares += item.partials[t];
      }
      squares = BlockReduce<kTileThreads>(squares, Sum());
      if (threadIdx.x == 0) item.results[0] = squares;
      return;
    }
    const int64_t i = (tile - 1) * kTileThreads + threadIdx.x, rows = item.rows();
    if (i < rows) {
      item.results[1 + i] = Add(item.row_partials() + i, item.held.strips(), rows);
    } else if (i < rows + item.columns()) {
      item.results[1 + i] =
          Add(item.column_partials() + (i - rows), item.held.slabs(), item.columns());
    }
  }
  static __device__ double Add(const double* partials, int64_t count, int64_t stride) {
    double sum = 0;
    for (int64_t k = 0; k < count; ++k) sum += partials[k * stride];
    return sum;
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
      factors.at[k] = static_cast<C>(item.col_factors[tile.batch_col() + k]);
    }
  }
  tile.ForEachRow([&](int64_t row) {
    const C factor = factored ? static_cast<C>(item.row_factors[row]) : C(0);
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
  AdaLomoCoefficients<C> c;

  __device__ void operator()(const AdaLomoItem& item, int64_t at_tile) const {
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

template <typename C>
struct StepBody {
  AdaLomoCoefficients<C> c;

  __device__ void operator()(const AdaLomoItem& item, int64_t at_tile) const {
    const RowTile tile(item.held, at_tile, IsAligned(item));
    const C decay = static_cast<C>(item.decay), step = static_cast<C>(item.step_size);
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
std::vector<double> AddUp(const DeviceContext& context, const AdaLomoItems& items) {
  ForEachTile(context, items.items(), &AddBody::Tiles, AddBody{});
  return items.Results();
}

template <typename C>
void Sums(const DeviceContext& context, const AdaLomoArgs& args) {
  const AdaLomoItems items(context, args.chunks, AdaLomoSums::kAll);
  ForEachRowTile(context, items, SumsBody<C>{AdaLomoCoefficients<C>(args)});
  const std::vector<double> results = AddUp(context, items);
  const double* at = results.data();
  for (size_t i = 0; i < args.chunks.size(); ++i) {
    const AdaLomoItem& item = items.items()[i];
    args.chunks[i].weight_squares = *at++;
    if (!item.vectors) continue;
    for (int64_t r = 0; r < item.rows(); ++r) args.chunks[i].row_sums[r] += *at++;
    for (int64_t k = 0; k < item.columns(); ++k) args.chunks[i].col_sums[k] += *at++;
  }
}

template <typename C>
void UpdateNorm(const DeviceContext& context, const AdaLomoArgs& args) {
  const AdaLomoItems items(context, args.chunks, AdaLomoSums::kSquares);
  ForEachRowTile(context, items, NormBody<C>{AdaLomoCoefficients<C>(args)});
  const std::vector<double> results = AddUp(context, items);
  for (size_t i = 0; i < results.size(); ++i) args.chunks[i].update_squares = results[i];
}

template <typename C>
void RunAdaLomo(const DeviceContext& context, const AdaLomoArgs& args) {
  const AdaLomoItems items(context, args.chunks, AdaLomoSums::kNone);
  ForEachRowTile(context, items, StepBody<C>{AdaLomoCoefficients<C>(args)});
}

}  // namespace

void adalomo_sums(const DeviceContext& context, const AdaLomoArgs& args) {
  args.dtype == DType::kF64 ? Sums<double>(context, args) : Sums<float>(context, args);
}
void adalomo_update_norm(const DeviceContext& context, const AdaLomoArgs& args) {
  args.dtype == DType::kF64 ? UpdateNorm<double>(context, args) : UpdateNorm<float>(context, args);
}
void adalomo(const DeviceContext& context, const AdaLomoArgs& args) {
  args.dtype == DType::kF64 ? RunAdaLomo<double>(context, args) : RunAdaLomo<float>(context, args);
}

}  // namespace apogee::optim::cuda
