// SPDX-License-Identifier: Apache-2.0

// The loop over operands of different shapes (Broadcast). Private to tensor/cuda.
//
//   ForBroadcast<2>(context, args.over, [=] __device__(int64_t i, const int64_t(&at)[2]) {
//     out[i] = Cast<T>(Load(a + at[0]) + Load(b + at[1]));
//   });
#ifndef APOGEE_TENSOR_CUDA_DEVICE_BROADCAST_CUH_
#define APOGEE_TENSOR_CUDA_DEVICE_BROADCAST_CUH_

#include "apogee/tensor/cuda/device/divisor.cuh"
#include "apogee/tensor/cuda/device/launch.cuh"
#include "apogee/tensor/kernels/elementwise_args.h"

namespace apogee::cuda {

// Computes the operands' places for an element of the result.
template <int kOperands>
struct BroadcastPlaces {
  int rank;
  WideDivisor sizes[Shape::kMaxRank];
  int64_t strides[kOperands][Shape::kMaxRank];

  explicit BroadcastPlaces(const Broadcast& over) : rank(over.rank) {
    const int64_t n = over.numel();
    for (int d = 0; d < rank; ++d) {
      sizes[d] = WideDivisor(over.sizes[d], n);
      for (int k = 0; k < kOperands; ++k) strides[k][d] = over.strides[k][d];
    }
  }
  __device__ void Find(int64_t i, int64_t (&at)[kOperands]) const {
    for (int k = 0; k < kOperands; ++k) at[k] = 0;
    for (int d = rank - 1; d >= 0; --d) {
      const int64_t outer = d > 0 ? sizes[d].Divide(i) : 0;
      const int64_t here = i - outer * sizes[d].value;
      for (int k = 0; k < kOperands; ++k) at[k] += here * strides[k][d];
      i = outer;
    }
  }
};

template <int kOperands, typename Fn>
__global__ void BroadcastKernel(int64_t n, BroadcastPlaces<kOperands> places, Fn fn) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += step) {
    int64_t at[kOperands];
    places.Find(i, at);
    fn(i, at);
  }
}

// Calls fn(i, at) on the GPU for every element i of the result, in no order; at[k] is the place of
// operand k.
template <int kOperands, typename Fn>
void ForBroadcast(const DeviceContext& context, const Broadcast& over, const Fn& fn) {
  const int64_t n = over.numel();
  if (n <= 0) return;
  Launch(context, {.blocks = {GridBlocks(context, n, 256)}}, &BroadcastKernel<kOperands, Fn>, n,
         BroadcastPlaces<kOperands>(over), fn);
}

}  // namespace apogee::cuda

#endif  // APOGEE_TENSOR_CUDA_DEVICE_BROADCAST_CUH_
