// SPDX-License-Identifier: Apache-2.0

// Makes a rank's context on a GPU.
//
//   absl::StatusOr<ContextPtr> context = CudaContext({.device = 0});
//   if (!context.ok()) return context.status();          // no driver, no GPU, wrong architecture
//   Tensor x = Tensor::Zeros({4, 8}, DType::kF32, *context);
//   std::vector<float> values = x.ToVector<float>();     // waits for the GPU
//
// A context has its own stream and allocator, so several ranks may share one GPU. Kernels and
// copies within the GPU are queued on the stream and run while the caller goes on. Calls that read
// values on the host (ToVector, Item, ToHost) wait for them. An error of the GPU is thrown as
// apogee::Error by the next call that notices it.
#ifndef APOGEE_TENSOR_CUDA_CUDA_CONTEXT_H_
#define APOGEE_TENSOR_CUDA_CUDA_CONTEXT_H_

#include "apogee/core/device_context.h"
#include "apogee/core/status.h"
#include "apogee/tensor/cuda/cuda_products.h"

namespace apogee {

struct CudaOptions {
  int device = 0;
  // Threads of the rank's host context.
  int num_threads = 1;
  // Keep freed blocks for later requests. false asks the driver for every block: that is slow, but
  // a memory checker then sees where each tensor ends.
  bool cache = true;
  // Let matrix products of f32 round their operands to TF32 (10 bits of mantissa). This is several
  // times as fast on tensor cores, but no longer f32. Other dtypes are not affected.
  bool allow_tf32 = false;
  // Let cuBLASLt compute the tanh GELU of a linear layer in bf16 when it stores the product: of the
  // f32 sums, not of the rounded product that is kept for backward, and on an H200 up to 0.88 units
  // in the last place off (0.5 is nearest). So recomputed activations then differ from those of
  // forward. false: a kernel computes it from what is kept, as for every other dtype and device.
  bool allow_fast_gelu = false;
};

// Errors:
//   FailedPrecondition  this build has no CUDA, there is no driver or GPU, or the kernels were not
//                       compiled for the GPU's architecture
//   InvalidArgument     there is no such device
absl::StatusOr<ContextPtr> CudaContext(const CudaOptions& options = {});

// Makes another context of the rank of `gpu`, on the same device and stream, whose tensors are in
// pinned host memory: kernels read and write them over the bus (offload). For tensors that do not
// fit on the GPU and are used once a step. The context has a memory ledger of its own. Throws Error
// if `gpu` is not a GPU's context. Allocations throw Error if the system cannot pin more memory.
ContextPtr PinnedContext(const ContextPtr& gpu);

// The matrix products of a context so far. Throws Error if `gpu` is not a GPU's context, or if
// there is no cuBLASLt.
CudaProducts CudaProductsOf(const ContextPtr& gpu);

// The number of GPUs that this process sees; 0 without a driver.
int NumCudaDevices();

}  // namespace apogee

#endif  // APOGEE_TENSOR_CUDA_CUDA_CONTEXT_H_
