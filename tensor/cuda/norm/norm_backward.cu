// SPDX-License-Identifier: Apache-2.0

// Norm backward that reads x and dy once, for dx and for the partial sums of dweight and dbias. A
// block of threads visits a block of rows; each thread keeps the sums of its columns in registers.
#include "apogee/tensor/cuda/kernels.h"
#include "apogee/tensor/cuda/norm/norm_backward.cuh"

namespace apogee::cuda {
namespace {

// The most bytes of a row that a thread keeps in registers.
constexpr int kHeldBytes = 64;

// Two blocks per multiprocessor, so that one loads while the other computes. For 16-bit elements
// some registers are then spilled to memory.
template <typename T, bool kRms, int kWidth, int kTeam, int kHeld>
__global__ void __launch_bounds__(kRowThreads, 2)
    BackwardKernel(NormBackwardArgs args, RowBlocks blocks) {
  using C = ComputeType<T>;
  using V = Vector<T, kWidth>;
  constexpr int kTeams = kRowThreads / kTeam;
  const int team = static_cast<int>(threadIdx.x) / kTeam;
  const T* weight = static_cast<const T*>(args.weight);
  const int64_t first = int64_t{blockIdx.x} * blocks.rows_per_block;
  const int64_t last = min(args.rows, first + blocks.rows_per_block);
  const RowPart<T, kWidth, kTeam> part(weight, args.cols);
  C dweight[kHeld * kWidth] = {}, dbias[kHeld * kWidth] = {};
  for (int64_t r = first + team; r < last; r += kTeams) {
    V x[kHeld] = {}, dy[kHeld] = {};
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      if (!part.Has(k)) continue;
      const int64_t at = r * args.cols + part.IndexOf(k);
      x[k] = LoadVector<kWidth>(static_cast<const T*>(args.x) + at);
      dy[k] = LoadVector<kWidth>(static_cast<const T*>(args.dy) + at);
    }
    RowGradient<T, kRms> gradient(args, r);
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      if (!part.Has(k)) continue;
      gradient.Add(x[k], dy[k], LoadVector<kWidth>(weight + part.IndexOf(k)));
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        dweight[k * kWidth + j] += gradient.WeightTerm(x[k].at[j], dy[k].at[j]);
        dbias[k * kWidth + j] += Load(dy[k].at + j);
      }
    }
    if (args.dx == nullptr) continue;
    TeamSums<kTeam>(gradient.sum, gradient.dot);
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      if (!part.Has(k)) continue;
      const int64_t i = part.IndexOf(k);
      StoreVector(static_cast<T*>(args.dx) + r * args.cols + i,
                  gradient.InputGradient(x[k], dy[k], LoadVector<kWidth>(weight + i), args.cols));
    }
  }
  if (blocks.partials == nullptr) return;
  C* weight_sums = blocks.Partial<C>(blockIdx.x, 0, args.cols);
  C* bias_sums = blocks.Partial<C>(blockIdx.x, 1, args.cols);
  // The teams add their sums one after the other, in a fixed order; the last one has the block's.
  __shared__ C sums[kTeams > 1 ? 2 * kHeld * kWidth : 1][kWarp];
  const int lane = TeamLane<kTeam>();
  for (int t = 0; t < kTeams; ++t) {
    if (t > 0) __syncthreads();
    if (team != t) continue;
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      if (!part.Has(k)) continue;
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        const int slot = k * kWidth + j;
        const C weight_sum = dweight[slot] + (t > 0 ? sums[2 * slot][lane] : C(0));
        const C bias_sum = dbias[slot] + (t > 0 ? sums[2 * slot + 1][lane] : C(0));
        if (t < kTeams - 1) {
          sums[2 * slot][lane] = weight_sum;
          sums[2 * slot + 1][lane] = bias_sum;
        } else {
          weight_sums[part.IndexOf(k) + j] = weight_sum;
          if constexpr (!kRms) bias_sums[part.IndexOf(k) + j] = bias_sum;
        }
      }
    }
  }
}

// out[i] = the sum of the blocks' partials. A block of threads sums 32 columns in 8 groups of
// partials, then sums over the groups.
constexpr int kGroups = 8;
template <typename C, typename G>
__global__ void __launch_bounds__(kWarp* kGroups)
    CombineKernel(RowBlocks blocks, int64_t cols, G* dweight, G* dbias) {
  __shared__ C sums[kGroups][kWarp];
  const int which = static_cast<int>(blockIdx.y), group = static_cast<int>(threadIdx.y);
  G* out = which == 0 ? dweight : dbias;
  if (out == nullptr) return;
  const int64_t i = int64_t{blockIdx.x} * kWarp + threadIdx.x;
  C sum = 0;
  if (i < cols) {
#pragma unroll 8
    for (int64_t b = group; b < blocks.count; b += kGroups) {
      sum += blocks.Partial<C>(b, which, cols)[i];
    }
  }
  sums[group][threadIdx.x] = sum;
  __syncthreads();
  if (group != 0 || i >= cols) return;
#pragma unroll
  for (int g = 1; g < kGroups; ++g) sum += sums[g][threadIdx.x];
  out[i] = Cast<G>(sum);
}

template <typename C>
void Combine(const DeviceContext& context, const NormBackwardArgs& args, const RowBlocks& blocks) {
  DispatchFloat(args.param_grad_dtype, "norm_backward", [&]<typename G>() {
    Launch(context,
           {.blocks = {static_cast<unsigned>(CeilDiv(args.cols, kWarp)), 2},
            .threads = {kWarp, kGroups}},
           &CombineKernel<C, G>, blocks, args.cols, static_cast<G*>(args.dweight),
           static_cast<G*>(args.dbias));
  });
}

template <typename T, bool kRms, int kWidth>
void Rows(const DeviceContext& context, const NormBackwardArgs& args, const RowBlocks& blocks) {
  constexpr int kHeld = kHeldBytes / sizeof(T) / kWidth;
  const auto launch = [&](auto* kernel) {
    Launch(context, {.blocks = {static_cast<unsigned>(blocks.count)}, .threads = {kRowThreads}},
           kernel, args, blocks);
  };
  // The second case: rows of at most one vector per thread of a block need fewer registers, so more
  // blocks run at a time.
  const int64_t bytes = args.cols * static_cast<int64_t>(sizeof(T));
  if (bytes <= kHeldBytes * kWarp) {
    launch(&BackwardKernel<T, kRms, kWidth, kWarp, kHeld>);
  } else if (bytes <= kHeldBytes / 4 * kRowThreads) {
    launch(&BackwardKernel<T, kRms, kWidth, kRowThreads, kHeld / 4>);
  } else {
    launch(&BackwardKernel<T, kRms, kWidth, kRowThreads, kHeld>);
  }
}

template <typename T>
void NormBackward(const DeviceContext& context, const NormBackwardArgs& args) {
  using C = ComputeType<T>;
  const int64_t row_bytes = args.cols * static_cast<int64_t>(sizeof(T));
  // Enough blocks to fill every multiprocessor several times (132 of an H200), but few enough that
  // their partials are small compared to x.
  const int64_t most_blocks = 512;
  const int64_t rows_per_block = std::max<int64_t>(8, CeilDiv(args.rows, most_blocks));
  const int64_t count = CeilDiv(args.rows, rows_per_block);
  const bool param_gradients = args.dweight != nullptr || args.dbias != nullptr;
  const Workspace workspace(
      context, param_gradients ? count * 2 * args.cols * static_cast<int64_t>(sizeof(C)) : 0);
  const RowBlocks blocks{rows_per_block, count, param_gradients ? workspace.data<void>() : nullptr};
  const bool vectors =
      args.cols % kVectorWidth<T> == 0 && IsAligned16(args.x, args.weight, args.dy, args.dx);
  if (args.rows > 0) {
    if (row_bytes > kHeldBytes * kRowThreads) {
      NormBackwardOfLongRows<T>(context, args, blocks, vectors);
    } else if (vectors) {
      args.rms ? Rows<T, true, kVectorWidth<T>>(context, args, blocks)
               : Rows<T, false, kVectorWidth<T>>(context, args, blocks);
    } else {
      args.rms ? Rows<T, true, 1>(context, args, blocks) : Rows<T, false, 1>(context, args, blocks);
    }
  }
  if (param_gradients) Combine<C>(context, args, blocks);
}

}  // namespace

void norm_backward(const DeviceContext& context, const NormBackwardArgs& args) {
  if (args.cols == 0) return;
  DispatchFloat(args.dtype, "norm_backward", [&]<typename T>() { NormBackward<T>(context, args); });
}

}  // namespace apogee::cuda
