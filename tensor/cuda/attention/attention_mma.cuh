// SPDX-License-Identifier: Apache-2.0

// Attention on tensor cores, for bf16 and f16: helpers of its forward and backward kernels. Private
// to tensor/cuda.
//
// Each warp of a block owns 16 rows of one operand; the block loads the other operand tile by tile.
// Tiles are in shared memory in the stored type, padded with zeros to kD columns. Scores, weights
// and dS stay in registers: of 16 rows, a lane has parts of rows g and g + 8
// (tensor/cuda/attention/mma.cuh). Weights and dS are rounded to the operands' type for the next
// product, as on the CPU; sums are f32.
#ifndef APOGEE_TENSOR_CUDA_ATTENTION_ATTENTION_MMA_CUH_
#define APOGEE_TENSOR_CUDA_ATTENTION_ATTENTION_MMA_CUH_

#include "apogee/tensor/cuda/attention/attention.cuh"
#include "apogee/tensor/cuda/attention/mma.cuh"

namespace apogee::cuda {

// Elements per row in shared memory, padded so that the 8 rows of one matrix load are in different
// banks.
template <int kD>
inline constexpr int kMmaStride = kD + 8;

// Loads rows [first, first + kRows) of one head into `tile`, with zeros beyond the tokens and
// beyond head_dim. With `vectors` it starts asynchronous copies, which the caller must commit and
// wait for.
template <int kRows, int kD, int kWarps, typename T>
__device__ __forceinline__ void LoadTile(const AttentionOperand& x, int64_t batch, int64_t head,
                                         int64_t first, int64_t tokens, int64_t head_dim,
                                         bool vectors, T* tile) {
  constexpr int kChunks = kD / 8;
  const T* from = HeadOf<T>(x, batch, head);
#pragma unroll 4
  for (int i = threadIdx.x; i < kRows * kChunks; i += kWarps * kWarp) {
    const int row = i / kChunks, d = i % kChunks * 8;
    const bool there = first + row < tokens && d < head_dim;
    const T* source = from + (there ? (first + row) * x.token_stride + d : 0);
    T* to = tile + row * kMmaStride<kD> + d;
    if (vectors) {
      CopyAsync16(to, source, there);
    } else {
      for (int e = 0; e < 8; ++e) to[e] = there && d + e < head_dim ? source[e] : T{};
    }
  }
}

// sums [16, kRows] = 16 rows of `own` times the rows of `tile`.
template <int kRows, int kD, typename T>
__device__ __forceinline__ void MultiplyRows(const T* own, const T* tile,
                                             float (&sums)[kRows / 8][4]) {
#pragma unroll
  for (auto& sum : sums) {
#pragma unroll
    for (float& each : sum) each = 0;
  }
#pragma unroll
  for (int k = 0; k < kD; k += 16) {
    uint32_t a[4];
    LoadMatrices<false>(RowOfA(own + k, kMmaStride<kD>), a);
#pragma unroll
    for (int n = 0; n < kRows; n += 16) {
      uint32_t b[4];
      LoadMatrices<false>(RowOfB(tile + n * kMmaStride<kD> + k, kMmaStride<kD>), b);
      Mma<T>(a, b[0], b[1], sums[n / 8]);
      Mma<T>(a, b[2], b[3], sums[n / 8 + 1]);
    }
  }
}

// sums [16, kD] += weights [16, kRows] times the tile [kRows, kD].
template <int kRows, int kD, typename T>
__device__ __forceinline__ void AddWeightedRows(const float (&weights)[kRows / 8][4], const T* tile,
                                                float (&sums)[kD / 8][4]) {
#pragma unroll
  for (int k = 0; k < kRows; k += 16) {
    uint32_t a[4];
    PackSums<T>(weights[k / 8], weights[k / 8 + 1], a);
#pragma unroll
    for (int n = 0; n < kD; n += 16) {
      uint32_t b[4];
      LoadMatrices<true>(RowOfA(tile + k * kMmaStride<kD> + n, kMmaStride<kD>), b);
      Mma<T>(a, b[0], b[1], sums[n / 8]);
      Mma<T>(a, b[2], b[3], sums[n / 8 + 1]);
    }
  }
}

// Reduces over the four lanes that share a row.
template <typename Op>
__device__ __forceinline__ float RowReduce(float x, Op op) {
  x = op(x, __shfl_xor_sync(kFullWarp, x, 1));
  return op(x, __shfl_xor_sync(kFullWarp, x, 2));
}

// Stores this lane's parts of rows `token` and token + 8, each times its scale.
template <int kD, typename T>
__device__ __forceinline__ void StoreRows(const AttentionOperand& x, bool wide, bool vectors,
                                          int64_t batch, int64_t head, int64_t token,
                                          int64_t tokens, int64_t head_dim, const T*,
                                          const float (&scales)[2],
                                          const float (&sums)[kD / 8][4]) {
  const int pair = threadIdx.x % 4 * 2;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (token + 8 * r >= tokens) return;
    const int64_t row = (token + 8 * r) * x.token_stride;
#pragma unroll
    for (int n = 0; n < kD / 8; ++n) {
      const int d = n * 8 + pair;
      const float y[2] = {sums[n][2 * r] * scales[r], sums[n][2 * r + 1] * scales[r]};
      if (wide) {
        float* to = HeadOf<float>(x, batch, head) + row + d;
        for (int e = 0; e < 2; ++e) {
          if (d + e < head_dim) to[e] = y[e];
        }
      } else if (vectors && d < head_dim) {  // then head_dim is even
        APOGEE_CHECK_ALIGNED(HeadOf<T>(x, batch, head) + row + d, uint32_t);
        *reinterpret_cast<uint32_t*>(HeadOf<T>(x, batch, head) + row + d) = Pack<T>(y[0], y[1]);
      } else {
        T* to = HeadOf<T>(x, batch, head) + row + d;
        for (int e = 0; e < 2; ++e) {
          if (d + e < head_dim) to[e] = T(y[e]);
        }
      }
    }
  }
}

}  // namespace apogee::cuda

#endif  // APOGEE_TENSOR_CUDA_ATTENTION_ATTENTION_MMA_CUH_
