// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/cuda/device/second_moment.cuh"
#include "apogee/optim/cuda/kernels.h"

namespace apogee::optim::cuda {
namespace {

// Writes the averages into `factors`. Those of columns become factors at once.
template <typename C, typename S>
struct AverageBody {
  C eps;
  bool store;
  const StepGate* gate;

  __device__ void operator()(const FactorChunk& chunk, int64_t tile) const {
    const int64_t rows = chunk.matrix.batch * chunk.matrix.rows;
    const int64_t columns = chunk.matrix.batch * chunk.matrix.cols;
    const int64_t i = tile * kTileThreads + threadIdx.x;
    if (i >= rows + columns) return;
    const bool is_row = i < rows;
    const S inv_count = S{1} / static_cast<S>(is_row ? chunk.matrix.cols : chunk.matrix.rows);
    C* state = is_row ? static_cast<C*>(chunk.row) + i : static_cast<C*>(chunk.column) + (i - rows);
    const C square = static_cast<C>(static_cast<const S*>(chunk.sums)[i] * inv_count);
    const C average =
        static_cast<C>(chunk.beta2) * *state + static_cast<C>(1 - chunk.beta2) * (square + eps);
    if (store && !(gate != nullptr && gate->skip)) *state = average;
    static_cast<C*>(chunk.factors)[i] = is_row ? average : C(1) / sqrt(average);
  }
};

// Computes the factors of the rows of one matrix.
template <typename C>
struct RowFactorBody {
  double mean_floor;

  __device__ void operator()(const FactorChunk& chunk, int64_t matrix) const {
    const int64_t rows = chunk.matrix.rows;
    C* factor = static_cast<C*>(chunk.factors) + matrix * rows;
    double mean = 0;
    for (int64_t i = threadIdx.x; i < rows; i += kTileThreads) {
      mean += static_cast<double>(factor[i]);
    }
    mean = apogee::cuda::BlockReduce<kTileThreads>(mean, apogee::cuda::Sum());
    mean /= static_cast<double>(rows);
    const C numerator = static_cast<C>(mean < mean_floor ? mean_floor : mean);
    for (int64_t i = threadIdx.x; i < rows; i += kTileThreads) {
      factor[i] = sqrt(numerator / factor[i]);
    }
  }
};

}  // namespace

void factor_moments(const DeviceContext& context, const FactorArgs& args) {
  DispatchStats(args.dtype, args.stat_dtype, [&]<typename C, typename S>() {
    ForEachTile(
        context, args.chunks,
        [](const FactorChunk& chunk) {
          const MatrixView& m = chunk.matrix;
          return CeilDiv(m.batch * (m.rows + m.cols), kTileThreads);
        },
        AverageBody<C, S>{static_cast<C>(args.eps), args.store, args.gate});
    ForEachTile(
        context, args.chunks, [](const FactorChunk& chunk) { return chunk.matrix.batch; },
        RowFactorBody<C>{args.mean_floor});
  });
}

}  // namespace apogee::optim::cuda
