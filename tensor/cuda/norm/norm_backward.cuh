// SPDX-License-Identifier: Apache-2.0

// Helpers of the two forms of norm backward: the gradient of a row's input, and the partial sums of
// dweight and dbias. Private to tensor/cuda/norm/norm_backward*.cu.
//
// With g = dy * (weight + weight_offset) and xhat = (x - mean) rstd:
//   dx = rstd (g - mean(g) - xhat mean(g xhat))
//      = g rstd - (x - mean) p - q
//   p  = rstd^3 mean(g (x - mean))
//   q  = rstd mean(g), 0 for an RMS norm
// dweight and dbias are sums over rows: first within blocks of rows, then over the blocks in order.
// The number and size of the blocks depend only on the sizes, so every run gives the same bits.
#ifndef APOGEE_TENSOR_CUDA_NORM_NORM_BACKWARD_CUH_
#define APOGEE_TENSOR_CUDA_NORM_NORM_BACKWARD_CUH_

#include "apogee/tensor/cuda/device/rows.cuh"
#include "apogee/tensor/kernels/args.h"

namespace apogee::cuda {

// partials[block][0] is the dweight of the block's rows, partials[block][1] their dbias, [cols]
// each. Null if neither is asked for.
struct RowBlocks {
  int64_t rows_per_block, count;
  void* partials;

  template <typename C>
  __device__ __forceinline__ C* Partial(int64_t block, int which, int64_t cols) const {
    return static_cast<C*>(partials) + (block * 2 + which) * cols;
  }
};

// A row's statistics and its dx.
template <typename T, bool kRms>
struct RowGradient {
  using C = ComputeType<T>;
  C mean, rstd, weight_offset;
  C sum = 0, dot = 0;  // of g, and of g (x - mean)

  __device__ __forceinline__ RowGradient(const NormBackwardArgs& args, int64_t r)
      : mean(kRms ? C(0) : static_cast<const C*>(args.mean)[r]),
        rstd(static_cast<const C*>(args.rstd)[r]),
        weight_offset(static_cast<C>(args.weight_offset)) {}

  template <int n>
  __device__ __forceinline__ void Add(const Vector<T, n>& x, const Vector<T, n>& dy,
                                      const Vector<T, n>& weight) {
#pragma unroll
    for (int j = 0; j < n; ++j) {
      const C g = Load(dy.at + j) * (Load(weight.at + j) + weight_offset);
      sum += g;
      dot += g * (Load(x.at + j) - mean);
    }
  }
  // Call it when sum and dot are those of the whole row.
  template <int n>
  __device__ __forceinline__ Vector<T, n> InputGradient(const Vector<T, n>& x,
                                                        const Vector<T, n>& dy,
                                                        const Vector<T, n>& weight,
                                                        int64_t cols) const {
    const C p = dot * rstd * rstd * rstd / static_cast<C>(cols);
    const C q = kRms ? C(0) : sum * rstd / static_cast<C>(cols);
    Vector<T, n> dx;
#pragma unroll
    for (int j = 0; j < n; ++j) {
      const C g = Load(dy.at + j) * (Load(weight.at + j) + weight_offset);
      dx.at[j] = Cast<T>(g * rstd - (Load(x.at + j) - mean) * p - q);
    }
    return dx;
  }
  // The term that one element adds to dweight.
  __device__ __forceinline__ C WeightTerm(const T& x, const T& dy) const {
    return Load(&dy) * ((Load(&x) - mean) * rstd);
  }
};

// For rows that are too long for the threads' registers: dx and the partials each read x and dy
// again. Defined in tensor/cuda/norm/norm_backward_long.cu.
template <typename T>
void NormBackwardOfLongRows(const DeviceContext& context, const NormBackwardArgs& args,
                            const RowBlocks& blocks, bool vectors);

}  // namespace apogee::cuda

#endif  // APOGEE_TENSOR_CUDA_NORM_NORM_BACKWARD_CUH_
