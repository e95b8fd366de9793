// SPDX-License-Identifier: Apache-2.0

// Norm backward for rows that are too long for the threads' registers: one kernel for dx, and one
// for the partials of dweight and dbias.
#include "apogee/tensor/cuda/attention/held_row.cuh"
#include "apogee/tensor/cuda/kernels.h"
#include "apogee/tensor/cuda/norm/norm_backward.cuh"

namespace apogee::cuda {
namespace {

template <typename T, bool kRms, int kWidth>
__global__ void __launch_bounds__(kRowThreads) InputKernel(NormBackwardArgs args) {
  constexpr int kTeam = kRowThreads;
  const T* weight = static_cast<const T*>(args.weight);
  for (int64_t r = FirstRow<kTeam>(); r < args.rows; r += RowStep<kTeam>()) {
    const int64_t begin = r * args.cols;
    const HeldPair<T, kWidth, kTeam> row(static_cast<const T*>(args.x) + begin,
                                         static_cast<const T*>(args.dy) + begin, args.cols);
    RowGradient<T, kRms> gradient(args, r);
    row.ForEach([&]<int n>(const Vector<T, n>& x, const Vector<T, n>& dy, int64_t i) {
      gradient.Add(x, dy, LoadVector<n>(weight + i));
    });
    TeamSums<kTeam>(gradient.sum, gradient.dot);
    T* dx = static_cast<T*>(args.dx) + begin;
    row.ForEach([&]<int n>(const Vector<T, n>& x, const Vector<T, n>& dy, int64_t i) {
      StoreVector(dx + i, gradient.InputGradient(x, dy, LoadVector<n>(weight + i), args.cols));
    });
  }
}

// The partials: a thread per column and block of rows.
template <typename T, bool kRms>
__global__ void __launch_bounds__(kRowThreads)
    PartialsKernel(NormBackwardArgs args, RowBlocks blocks) {
  using C = ComputeType<T>;
  const int64_t i = int64_t{blockIdx.x} * kRowThreads + threadIdx.x;
  if (i >= args.cols) return;
  const int64_t first = int64_t{blockIdx.y} * blocks.rows_per_block;
  const int64_t last = min(args.rows, first + blocks.rows_per_block);
  C dweight = 0, dbias = 0;
#pragma unroll 4
  for (int64_t r = first; r < last; ++r) {
    const RowGradient<T, kRms> gradient(args, r);
    const T dy = static_cast<const T*>(args.dy)[r * args.cols + i];
    dweight += gradient.WeightTerm(static_cast<const T*>(args.x)[r * args.cols + i], dy);
    dbias += Load(&dy);
  }
  blocks.Partial<C>(blockIdx.y, 0, args.cols)[i] = dweight;
  if constexpr (!kRms) blocks.Partial<C>(blockIdx.y, 1, args.cols)[i] = dbias;
}

template <typename T, bool kRms>
void Run(const DeviceContext& context, const NormBackwardArgs& args, const RowBlocks& blocks,
         bool vectors) {
  if (args.dx != nullptr) {
    Launch(context, RowGrid<kRowThreads>(context, args.rows),
           vectors ? &InputKernel<T, kRms, kVectorWidth<T>> : &InputKernel<T, kRms, 1>, args);
  }
  if (blocks.partials != nullptr) {
    Launch(context,
           {.blocks = {static_cast<unsigned>(CeilDiv(args.cols, kRowThreads)),
                       static_cast<unsigned>(blocks.count)},
            .threads = {kRowThreads}},
           &PartialsKernel<T, kRms>, args, blocks);
  }
}

}  // namespace

template <typename T>
void NormBackwardOfLongRows(const DeviceContext& context, const NormBackwardArgs& args,
                            const RowBlocks& blocks, bool vectors) {
  args.rms ? Run<T, true>(context, args, blocks, vectors)
           : Run<T, false>(context, args, blocks, vectors);
}

template void NormBackwardOfLongRows<float>(const DeviceContext&, const NormBackwardArgs&,
                                            const RowBlocks&, bool);
template void NormBackwardOfLongRows<BFloat16>(const DeviceContext&, const NormBackwardArgs&,
                                               const RowBlocks&, bool);
template void NormBackwardOfLongRows<Float16>(const DeviceContext&, const NormBackwardArgs&,
                                              const RowBlocks&, bool);
template void NormBackwardOfLongRows<double>(const DeviceContext&, const NormBackwardArgs&,
                                             const RowBlocks&, bool);

}  // namespace apogee::cuda
