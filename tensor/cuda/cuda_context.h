// SPDX-License-Identifier: Apache-2.0

// Makes a rank's context on a GPU.
//
//   absl::StatusOr<ContextPtr> context = CudaContext({.device = 0});
//   if (!context.ok()) ...;                              // no driver, no GPU, wrong architecture
//   Tensor x = Tensor::Zeros({4, 8}, DType::kF32, *context);
//   std::vector<float> values = x.ToVector<float>();     // waits for the GPU
//
// A context has a stream and an allocator of its own: several ranks may share one GPU. Kernels and
// copies within the GPU are queued on the stream and run while the caller goes on; what reads
// values on the host (ToVector, Item, ToHost) waits for them. An error of the GPU is thrown as
// apogee::Error by the next call that notices it.
#ifndef APOGEE_TENSOR_CUDA_CUDA_CONTEXT_H_
#define APOGEE_TENSOR_CUDA_CUDA_CONTEXT_H_

#include "apogee/core/device_context.h"
#include "apogee/core/status.h"

namespace apogee {

struct CudaOptions {
  int device = 0;
  // Threads of the rank's host context.
  int num_threads = 1;
  // Keep freed blocks for later requests. Without it every block is asked from the driver anew:
  // slow, but memory checkers then see each tensor's ends.
  bool cache = true;
  // Let matrix products of f32 round their operands to TF32 (10 bits of mantissa): several times as
  // fast on tensor cores, and no longer f32. Other dtypes are not affected.
  bool allow_tf32 = false;
};

// FailedPrecondition: this build has no CUDA, there is no driver or GPU, or the GPU is of an
// architecture that the kernels were not compiled for. InvalidArgument: no such device.
absl::StatusOr<ContextPtr> CudaContext(const CudaOptions& options = {});

// Another context of the rank of `gpu`, on the same device and stream, whose memory is the host's:
// pinned, so that kernels read and write it where it lies, over the bus. For what does not fit on
// the GPU and is used once a step. Its ledger is its own. Throws Error for anything but a GPU's
// context, and when the system has no memory to pin.
ContextPtr PinnedContext(const ContextPtr& gpu);

// GPUs that this process sees; 0 without a driver.
int NumCudaDevices();

}  // namespace apogee

#endif  // APOGEE_TENSOR_CUDA_CUDA_CONTEXT_H_
