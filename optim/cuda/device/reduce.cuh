// SPDX-License-Identifier: Apache-2.0

// Sums or maxima over each of many tensors, in f64: one or several numbers per chunk. Private to
// optim/cuda.
//
//   struct Squares {                                  // adds this thread's terms to `sums`
//     __device__ void operator()(const NormChunk& chunk, int64_t begin, int64_t end,
//                                double (&sums)[1]) const;
//   };
//   std::vector<double> totals = ReduceToHost<1, Sum>(context, chunks, Squares{});
//
// First a block of threads adds up each tile; then a block per chunk adds up its tiles in order.
// The tiles depend only on the size, so the bits are the same in every run. Numbers start at 0, so
// maxima are of numbers >= 0.
#ifndef APOGEE_OPTIM_CUDA_DEVICE_REDUCE_CUH_
#define APOGEE_OPTIM_CUDA_DEVICE_REDUCE_CUH_

#include <vector>

#include "apogee/optim/cuda/device/packs.cuh"

namespace apogee::optim::cuda {

using apogee::cuda::BlockReduce;
using apogee::cuda::Max;
using apogee::cuda::Sum;

// Eight elements of 16 bits each are 16 bytes, one vector.
inline constexpr int kReducePack = 8;
inline constexpr int64_t kReduceTile = int64_t{kTileThreads} * kReducePack * 8;

template <int kSums, typename Op, typename List, typename Terms>
__global__ void __launch_bounds__(kTileThreads)
    TilePartialsKernel(const List __grid_constant__ list, const Terms terms, double* partials) {
  const int64_t tile = blockIdx.x;
  const int at = list.Find(tile);
  const int64_t begin = (tile - list.first[at]) * kReduceTile;
  const int64_t n = list.items[at].n;
  double sums[kSums] = {};
  terms(list.items[at], begin, begin + kReduceTile < n ? begin + kReduceTile : n, sums);
#pragma unroll
  for (int k = 0; k < kSums; ++k) {
    const double sum = BlockReduce<kTileThreads>(sums[k], Op());
    if (threadIdx.x == 0) partials[tile * kSums + k] = sum;
  }
}

// One block of threads per item.
template <int kSums, typename Op, typename List, typename Finish>
__global__ void __launch_bounds__(kTileThreads)
    AddPartialsKernel(const List __grid_constant__ list, const double* partials,
                      const Finish finish) {
  const int at = static_cast<int>(blockIdx.x);
  double totals[kSums] = {};
  for (int64_t t = list.first[at] + threadIdx.x; t < list.first[at + 1]; t += kTileThreads) {
#pragma unroll
    for (int k = 0; k < kSums; ++k) totals[k] = Op()(totals[k], partials[t * kSums + k]);
  }
#pragma unroll
  for (int k = 0; k < kSums; ++k) totals[k] = BlockReduce<kTileThreads>(totals[k], Op());
  if (threadIdx.x == 0) finish(list.items[at], list.items_before + at, totals);
}

// Calls finish(chunk, its index, totals) on the GPU, in one thread per chunk, also for chunks
// without elements.
template <int kSums, typename Op, typename Chunk, typename Terms, typename Finish>
void ReduceChunks(const DeviceContext& context, std::span<const Chunk> chunks, const Terms& terms,
                  const Finish& finish) {
  const auto tiles = [](const Chunk& chunk) { return CeilDiv(chunk.n, kReduceTile); };
  ForEachTileList(chunks, tiles, [&](const auto& list) {
    using List = std::remove_cvref_t<decltype(list)>;
    const int64_t n = list.num_tiles();
    const Workspace partials(context, n * kSums * int64_t{sizeof(double)});
    if (n > 0) {
      Launch(context, {.blocks = {static_cast<unsigned>(n)}, .threads = {unsigned{kTileThreads}}},
             &TilePartialsKernel<kSums, Op, List, Terms>, list, terms, partials.data<double>());
    }
    Launch(context,
           {.blocks = {static_cast<unsigned>(list.count)}, .threads = {unsigned{kTileThreads}}},
           &AddPartialsKernel<kSums, Op, List, Finish>, list, partials.data<double>(), finish);
  });
}

template <int kSums>
struct StoreTotals {
  double* out;
  template <typename Chunk>
  __device__ void operator()(const Chunk&, int64_t index, const double (&totals)[kSums]) const {
    for (int k = 0; k < kSums; ++k) out[index * kSums + k] = totals[k];
  }
};

// Returns kSums numbers per chunk on the host. Waits for the GPU once.
template <int kSums, typename Op, typename Chunk, typename Terms>
std::vector<double> ReduceToHost(const DeviceContext& context, std::span<const Chunk> chunks,
                                 const Terms& terms) {
  std::vector<double> totals(chunks.size() * kSums);
  if (totals.empty()) return totals;
  const auto bytes = static_cast<int64_t>(totals.size() * sizeof(double));
  const Workspace results(context, bytes);
  ReduceChunks<kSums, Op>(context, chunks, terms, StoreTotals<kSums>{results.data<double>()});
  context.CopyToHost(totals.data(), results.data<double>(), bytes);
  return totals;
}

}  // namespace apogee::optim::cuda

#endif  // APOGEE_OPTIM_CUDA_DEVICE_REDUCE_CUH_
