// SPDX-License-Identifier: Apache-2.0

// Starting kernels on a context's stream. Private to the CUDA folders' .cu files.
//
//   Launch(context, {.blocks = {rows}, .threads = {256}}, &SoftmaxKernel<T>, x, y, cols);
//   ForEach(context, n, [=] __device__(int64_t i) { y[i] = Cast<T>(Load(x + i)); });
//
// A launch does not wait. An error of the launch throws Error at once, without the kernel's name;
// an error of the kernel itself is thrown at the next synchronisation.
//
// The .cu files are compiled by nvcc, and by the host compiler against tests/cuda_emulation. So:
// - Start kernels with Launch, never with <<<>>>.
// - Take dynamic shared memory from DynamicShared.
// - Don't put a __device__ lambda inside a generic lambda (nvcc forbids it).
// - Write inline assembly only in tensor/cuda/attention/mma.cuh and device.cuh.
#ifndef APOGEE_TENSOR_CUDA_DEVICE_LAUNCH_CUH_
#define APOGEE_TENSOR_CUDA_DEVICE_LAUNCH_CUH_

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "apogee/tensor/cuda/runtime/stream_context.cuh"

namespace apogee::cuda {

struct Grid {
  dim3 blocks = {1};
  dim3 threads = {256};
  int64_t shared_bytes = 0;       // dynamic, beyond what the kernel declares
  const char* name = "a kernel";  // in the error if the GPU has less shared memory
};

template <typename... Params, typename... Args>
void Launch(const DeviceContext& context, const Grid& grid, void (*kernel)(Params...),
            Args&&... args) {
  const StreamContext& gpu = StreamContext::Of(context);
  gpu.Use();
  if (grid.shared_bytes > 48 * 1024) {
    gpu.CheckSharedBytes(grid.shared_bytes, grid.name);
    CheckCuda(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                   cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   static_cast<int>(grid.shared_bytes)),
              "cudaFuncSetAttribute");
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = grid.blocks;
  config.blockDim = grid.threads;
  config.dynamicSmemBytes = static_cast<size_t>(grid.shared_bytes);
  config.stream = gpu.stream();
  CheckCuda(cudaLaunchKernelEx(&config, kernel, static_cast<Params>(std::forward<Args>(args))...),
            "cudaLaunchKernelEx");
}

inline int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The number of blocks for a grid-stride loop over n elements, of which a block takes `per_block`
// at a time. It fills the GPU several times over, but not more.
inline unsigned GridBlocks(const DeviceContext& context, int64_t n, int64_t per_block) {
  const int64_t most = int64_t{StreamContext::Of(context).num_multiprocessors()} * 16;
  return static_cast<unsigned>(std::clamp<int64_t>(CeilDiv(n, per_block), 1, most));
}

template <typename Fn>
__global__ void ForEachKernel(int64_t n, Fn fn) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += step) fn(i);
}

// Calls fn(i) on the GPU for every i in [0, n), in no order.
template <typename Fn>
void ForEach(const DeviceContext& context, int64_t n, const Fn& fn) {
  if (n <= 0) return;
  Launch(context, {.blocks = {GridBlocks(context, n, 256)}}, &ForEachKernel<Fn>, n, fn);
}

}  // namespace apogee::cuda

#endif  // APOGEE_TENSOR_CUDA_DEVICE_LAUNCH_CUH_
