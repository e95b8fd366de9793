// SPDX-License-Identifier: Apache-2.0

// The terms of a gradient's norm: squares, magnitudes, or their maximum. Private to optim/cuda.
//
//   ReduceChunks<1, Sum>(context, chunks, NormTerms<NormKind::kL2>{}, finish);
#ifndef APOGEE_OPTIM_CUDA_DEVICE_NORM_TERMS_CUH_
#define APOGEE_OPTIM_CUDA_DEVICE_NORM_TERMS_CUH_

#include "apogee/optim/core/kernels.h"
#include "apogee/optim/cuda/device/reduce.cuh"

namespace apogee::optim::cuda {

// A chunk must have `grad`, `grad_dtype` and `n`.
template <NormKind kKind>
struct NormTerms {
  template <typename Chunk>
  __device__ void operator()(const Chunk& chunk, int64_t begin, int64_t end,
                             double (&sums)[1]) const {
    switch (chunk.grad_dtype) {
      case DType::kBF16:
        return Add<BFloat16>(chunk, begin, end, sums[0]);
      case DType::kF16:
        return Add<Float16>(chunk, begin, end, sums[0]);
      case DType::kF64:
        return Add<double>(chunk, begin, end, sums[0]);
      default:
        return Add<float>(chunk, begin, end, sums[0]);
    }
  }
  // Squares in f64, in which the square of every finite f32 is finite.
  template <typename T, typename Chunk>
  static __device__ void Add(const Chunk& chunk, int64_t begin, int64_t end, double& sum) {
    const T* grad = static_cast<const T*>(chunk.grad);
    ForEachPack<kReducePack>(begin, end, AreAligned(grad), [&](const auto& at) {
      const Pack<ComputeType<T>, kReducePack> pack = at.template Load<ComputeType<T>>(grad);
#pragma unroll
      for (int k = 0; k < kReducePack; ++k) {
        const double x = pack.at[k];
        if constexpr (kKind == NormKind::kL2) sum += x * x;
        if constexpr (kKind == NormKind::kL1) sum += fabs(x);
        if constexpr (kKind == NormKind::kMax) sum = Max()(sum, fabs(x));
      }
    });
  }
};

}  // namespace apogee::optim::cuda

#endif  // APOGEE_OPTIM_CUDA_DEVICE_NORM_TERMS_CUH_
