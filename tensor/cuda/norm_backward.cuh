// SPDX-License-Identifier: Apache-2.0

// What the two forms of norm backward share: the gradient of a row's input, and where the parts of
// dweight and dbias lie. Private to tensor/cuda/norm_backward*.cu.
//
// dx = rstd (g - mean(g) - xhat mean(g xhat)) with g = dy weight, as g rstd - (x - mean) p - q.
// dweight and dbias are sums over rows: of blocks of rows first, whose number and size depend on
// the sizes only, then over these in their order. The same bits every run.
#ifndef APOGEE_TENSOR_CUDA_NORM_BACKWARD_CUH_
#define APOGEE_TENSOR_CUDA_NORM_BACKWARD_CUH_

#include "apogee/tensor/cuda/rows.cuh"
#include "apogee/tensor/kernels/args.h"

namespace apogee::cuda {

// partials[block][0] is dweight of the block's rows, partials[block][1] dbias, `cols` each; null
// where neither is asked for.
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
  C mean, rstd;
  C sum = 0, dot = 0;  // of g, and of g (x - mean)

  __device__ __forceinline__ RowGradient(const NormBackwardArgs& args, int64_t r)
      : mean(kRms ? C(0) : static_cast<const C*>(args.mean)[r]),
        rstd(static_cast<const C*>(args.rstd)[r]) {}

  template <int n>
  __device__ __forceinline__ void Add(const Vector<T, n>& x, const Vector<T, n>& dy,
                                      const Vector<T, n>& weight) {
#pragma unroll
    for (int j = 0; j < n; ++j) {
      const C g = Load(dy.at + j) * Load(weight.at + j);
      sum += g;
      dot += g * (Load(x.at + j) - mean);
    }
  }
  // After the sums are the whole row's.
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
      const C g = Load(dy.at + j) * Load(weight.at + j);
      dx.at[j] = Cast<T>(g * rstd - (Load(x.at + j) - mean) * p - q);
    }
    return dx;
  }
  // What an element adds to dweight.
  __device__ __forceinline__ C WeightTerm(const T& x, const T& dy) const {
    return Load(&dy) * ((Load(&x) - mean) * rstd);
  }
};

// For rows too long for a thread's registers: dx and the partials each read x and dy for
// themselves. tensor/cuda/norm_backward_long.cu
template <typename T>
void NormBackwardOfLongRows(const DeviceContext& context, const NormBackwardArgs& args,
                            const RowBlocks& blocks, bool vectors);

}  // namespace apogee::cuda

#endif  // APOGEE_TENSOR_CUDA_NORM_BACKWARD_CUH_
