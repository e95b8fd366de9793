// SPDX-License-Identifier: Apache-2.0

// Sums over the bytes of a message, with the result on the host. Private to comm/cuda.
//
//   double squares = SumOverBytes<double>(context, bytes, [=] __device__(int64_t b) { ... });
#ifndef APOGEE_COMM_CUDA_BYTE_SUM_CUH_
#define APOGEE_COMM_CUDA_BYTE_SUM_CUH_

#include <numeric>
#include <vector>

#include "apogee/tensor/cuda/device/device.cuh"
#include "apogee/tensor/cuda/device/launch.cuh"

namespace apogee::comm::cuda {

inline constexpr int kSumThreads = 256;
// Enough blocks to fill any GPU. A constant and not the GPU's own number: the order of additions
// must not depend on the GPU.
inline constexpr int64_t kMostSumBlocks = 2048;

template <typename S, typename Fn>
__global__ void __launch_bounds__(kSumThreads) ByteSumKernel(int64_t bytes, S* partials, Fn fn) {
  S sum = 0;
  const int64_t step = int64_t{gridDim.x} * kSumThreads;
  for (int64_t b = int64_t{blockIdx.x} * kSumThreads + threadIdx.x; b < bytes; b += step) {
    sum += fn(b);
  }
  sum = apogee::cuda::BlockReduce<kSumThreads>(sum, apogee::cuda::Sum());
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

// The sum of fn(b) over b in [0, bytes), added in an order that depends only on `bytes`. Waits for
// the GPU.
template <typename S, typename Fn>
S SumOverBytes(const DeviceContext& context, int64_t bytes, const Fn& fn) {
  if (bytes == 0) return 0;
  const int64_t blocks = std::min(apogee::cuda::CeilDiv(bytes, kSumThreads), kMostSumBlocks);
  const auto size = blocks * static_cast<int64_t>(sizeof(S));
  const Workspace partials(context, size);
  apogee::cuda::Launch(context,
                       {.blocks = {static_cast<unsigned>(blocks)}, .threads = {kSumThreads}},
                       &ByteSumKernel<S, Fn>, bytes, partials.data<S>(), fn);
  std::vector<S> sums(static_cast<size_t>(blocks));
  context.CopyToHost(sums.data(), partials.data<S>(), size);
  return std::accumulate(sums.begin(), sums.end(), S{0});
}

}  // namespace apogee::comm::cuda

#endif  // APOGEE_COMM_CUDA_BYTE_SUM_CUH_
