// SPDX-License-Identifier: Apache-2.0

// StreamContext: a context on a GPU, with the stream that its kernels and copies are queued on.
// Private to the CUDA folders.
//
//   const StreamContext& gpu = StreamContext::Of(context);
//   CheckCuda(cudaMemsetAsync(data, 0, bytes, gpu.stream()), "cudaMemsetAsync");
//
// Each thread has a current device, which every call into CUDA needs: Use() sets it.
#ifndef APOGEE_TENSOR_CUDA_RUNTIME_STREAM_CONTEXT_CUH_
#define APOGEE_TENSOR_CUDA_RUNTIME_STREAM_CONTEXT_CUH_

#include <cuda_runtime_api.h>

#include <map>
#include <memory>
#include <mutex>

#include "apogee/core/device_context.h"
#include "apogee/tensor/cuda/runtime/pinned_copies.cuh"

namespace apogee {
struct CudaOptions;  // tensor/cuda/cuda_context.h
}  // namespace apogee

namespace apogee::cuda {

// Throws Error "what: <CUDA's name and text of the error>".
void CheckCuda(cudaError_t error, const char* what);

class CublasHandle;  // tensor/cuda/runtime/cublas.h

class StreamContext : public DeviceContext {
 public:
  StreamContext(std::unique_ptr<Allocator> allocator, cudaStream_t stream,
                const CudaOptions& options);
  // Another context of the rank of `main`, on the same stream, with memory of another kind.
  StreamContext(std::unique_ptr<Allocator> allocator, ContextPtr main);
  ~StreamContext() override;

  // `context` must be a GPU's. Kernels of this folder's table get no other.
  static const StreamContext& Of(const DeviceContext& context) {
    return static_cast<const StreamContext&>(context);
  }
  // Makes this context's GPU the calling thread's current device.
  void Use() const;
  cudaStream_t stream() const { return stream_; }
  // Whether its memory is pinned host memory (PinnedContext). main() is the rank's context with the
  // GPU's memory.
  bool is_pinned() const { return main_ != nullptr; }
  const StreamContext& main() const { return main_ == nullptr ? *this : Of(*main_); }
  // The GPU's number of streaming multiprocessors, which tells how many blocks fill it.
  int num_multiprocessors() const { return num_multiprocessors_; }
  // Throws Error if a block on this GPU cannot have `bytes` of shared memory, which `kernel` needs.
  void CheckSharedBytes(int64_t bytes, const char* kernel) const;
  bool allow_tf32() const { return allow_tf32_; }
  bool allow_fast_gelu() const { return allow_fast_gelu_; }
  // The first call makes the handle. Throws Error if there is no cuBLASLt.
  CublasHandle& cublas() const;

  // Returns a copy on the device of `bytes` that never change, such as a table that kernels need at
  // every call. The first call for an address makes the copy; the context keeps it.
  const void* Constant(const void* host, int64_t bytes) const;

  void CopyToHost(void* host, const void* device, int64_t bytes) const override;
  void CopyFromHost(void* device, const void* host, int64_t bytes) const override;
  void CopyWithin(void* to, const void* from, int64_t bytes) const override;
  void Synchronize() const override;

 private:
  ContextPtr main_;  // the owner of the stream; null: this context
  cudaStream_t stream_;
  mutable PinnedCopies copies_;
  int num_multiprocessors_ = 1;
  bool allow_tf32_, allow_fast_gelu_;
  mutable std::mutex cublas_mutex_;
  mutable std::unique_ptr<CublasHandle> cublas_;
  mutable std::mutex constants_mutex_;
  mutable std::map<const void*, std::unique_ptr<Workspace>> constants_;
};

}  // namespace apogee::cuda

#endif  // APOGEE_TENSOR_CUDA_RUNTIME_STREAM_CONTEXT_CUH_
