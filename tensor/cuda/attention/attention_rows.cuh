// SPDX-License-Identifier: Apache-2.0

// Attention by plain arithmetic, for any dtype: helpers of its forward and backward kernels.
// Private to tensor/cuda.
//
// A warp owns kRows rows of one operand (queries, or keys). The other operand is loaded in tiles of
// 32 rows, one for each lane. So
// - a lane holds kRows scores, and a sum over a row's scores is a sum over the warp;
// - the sums of weighted rows are spread over the lanes by columns: lane l has columns l, l + 32,
//   ... of all kRows rows.
// Tiles are in shared memory in the compute type, with zeros where there is no row or column.
#ifndef APOGEE_TENSOR_CUDA_ATTENTION_ATTENTION_ROWS_CUH_
#define APOGEE_TENSOR_CUDA_ATTENTION_ATTENTION_ROWS_CUH_

#include "apogee/tensor/cuda/attention/attention.cuh"

namespace apogee::cuda {

// Geometry of the kernels for head dims up to kD.
template <typename T, int kHeadDim>
struct AttentionRows {
  using C = ComputeType<T>;
  static constexpr int kD = kHeadDim;
  static constexpr int kWarps = 4;
  // A lane has kD / 32 sums in registers for each row, twice that in one of the kernels.
  static constexpr int kRows = sizeof(C) * kD >= 1024 ? 4 : 8;
  static constexpr int kOwn = kRows * kWarps;  // the rows that a block owns
  static constexpr int kWidth = kVectorWidth<C>;
  // Padded so that the rows that lanes read at the same time are in different banks.
  static constexpr int kStride = kD + kWidth;
  static constexpr int kOwnTile = kOwn * kStride, kLaneTile = kWarp * kStride;
  static constexpr int kWeights = kOwn * kWarp;  // a block's weights, [kOwn, 32]
  using Sums = C[kRows][kD / kWarp];
};

// Loads rows [first, first + kCount) of one head into `tile`.
template <typename Rows, int kCount, typename T, typename C>
__device__ void LoadRows(const AttentionOperand& x, int64_t batch, int64_t head, int64_t first,
                         int64_t tokens, int64_t head_dim, const T*, C* tile) {
  const T* from = HeadOf<T>(x, batch, head);
  const int lane = threadIdx.x % kWarp;
  for (int row = threadIdx.x / kWarp; row < kCount; row += Rows::kWarps) {
    const bool there = first + row < tokens;
#pragma unroll
    for (int d = lane; d < Rows::kD; d += kWarp) {
      tile[row * Rows::kStride + d] =
          there && d < head_dim ? Load(from + (first + row) * x.token_stride + d) : C(0);
    }
  }
}

// scores[r] = the warp's row r times the lane's row of the tile, over `depth` columns, a multiple
// of kWidth.
template <typename Rows, typename C>
__device__ __forceinline__ void ScoreRows(const C* own, const C* tile, int depth,
                                          C (&scores)[Rows::kRows]) {
  using V = Vector<C, Rows::kWidth>;
  const C* lane_row = tile + threadIdx.x % kWarp * Rows::kStride;
#pragma unroll
  for (C& score : scores) score = 0;
  for (int d = 0; d < depth; d += Rows::kWidth) {
    const V y = LoadVector<Rows::kWidth>(lane_row + d);
#pragma unroll
    for (int r = 0; r < Rows::kRows; ++r) {
      const V x = LoadVector<Rows::kWidth>(own + r * Rows::kStride + d);
#pragma unroll
      for (int i = 0; i < Rows::kWidth; ++i) scores[r] += x.at[i] * y.at[i];
    }
  }
}

// sums[r] += sum_j weights[r][j] * row j of the tile.
template <typename Rows, typename C>
__device__ __forceinline__ void AddRows(const C* weights, const C* tile,
                                        typename Rows::Sums& sums) {
  using V = Vector<C, Rows::kWidth>;
  const C* column = tile + threadIdx.x % kWarp;
#pragma unroll 2
  for (int j = 0; j < kWarp; j += Rows::kWidth) {
    V w[Rows::kRows];
#pragma unroll
    for (int r = 0; r < Rows::kRows; ++r) {
      w[r] = LoadVector<Rows::kWidth>(weights + r * kWarp + j);
    }
#pragma unroll
    for (int i = 0; i < Rows::kWidth; ++i) {
#pragma unroll
      for (int c = 0; c < Rows::kD / kWarp; ++c) {
        const C y = column[(j + i) * Rows::kStride + c * kWarp];
#pragma unroll
        for (int r = 0; r < Rows::kRows; ++r) sums[r][c] += w[r].at[i] * y;
      }
    }
  }
}

template <typename Rows, typename T, typename C>
__device__ __forceinline__ void StoreRow(const AttentionOperand& x, bool wide, int64_t batch,
                                         int64_t head, int64_t token, int64_t head_dim, const T*,
                                         C scale, const C (&sums)[Rows::kD / kWarp]) {
#pragma unroll
  for (int c = 0; c < Rows::kD / kWarp; ++c) {
    const int d = threadIdx.x % kWarp + c * kWarp;
    if (d >= head_dim) continue;
    const int64_t at = token * x.token_stride + d;
    if (wide) {
      HeadOf<C>(x, batch, head)[at] = sums[c] * scale;
    } else {
      HeadOf<T>(x, batch, head)[at] = Cast<T>(sums[c] * scale);
    }
  }
}

}  // namespace apogee::cuda

#endif  // APOGEE_TENSOR_CUDA_ATTENTION_ATTENTION_ROWS_CUH_
