// SPDX-License-Identifier: Apache-2.0

// What kernels and copies on a GPU need of a context: its stream. Private to the CUDA folders.
//
//   const StreamContext& gpu = StreamContext::Of(context);
//   CheckCuda(cudaMemsetAsync(data, 0, bytes, gpu.stream()), "cudaMemsetAsync");
//
// The current device is a thread's: Use() sets it, and every call into CUDA needs it set.
#ifndef APOGEE_TENSOR_CUDA_STREAM_CONTEXT_CUH_
#define APOGEE_TENSOR_CUDA_STREAM_CONTEXT_CUH_

#include <cuda_runtime_api.h>

#include <map>
#include <memory>
#include <mutex>

#include "apogee/core/device_context.h"
#include "apogee/tensor/cuda/pinned_copies.cuh"

namespace apogee {
struct CudaOptions;  // tensor/cuda/cuda_context.h
}  // namespace apogee

namespace apogee::cuda {

// Throws Error "what: <CUDA's name and text of the error>".
void CheckCuda(cudaError_t error, const char* what);

class CublasHandle;  // tensor/cuda/cublas.h

class StreamContext : public DeviceContext {
 public:
  StreamContext(std::unique_ptr<Allocator> allocator, cudaStream_t stream,
                const CudaOptions& options);
  // The same rank's, on the stream of `main`, with other memory.
  StreamContext(std::unique_ptr<Allocator> allocator, ContextPtr main);
  ~StreamContext() override;

  // The context must be one of a GPU: kernels of tables of this folder get no other.
  static const StreamContext& Of(const DeviceContext& context) {
    return static_cast<const StreamContext&>(context);
  }
  // Makes this context's GPU the calling thread's.
  void Use() const;
  cudaStream_t stream() const { return stream_; }
  // Whether its memory is the host's (PinnedContext); main() is the context whose is the GPU's.
  bool is_pinned() const { return main_ != nullptr; }
  const StreamContext& main() const { return main_ == nullptr ? *this : Of(*main_); }
  // Streaming multiprocessors of the GPU: how many blocks fill it.
  int num_multiprocessors() const { return num_multiprocessors_; }
  bool allow_tf32() const { return allow_tf32_; }
  // Made by the first call, which throws Error where there is no cuBLASLt.
  CublasHandle& cublas() const;

  // A copy of `bytes` of the host that never change, made by the first call for this address and
  // kept as long as the context: a table that kernels need at every call costs no wait.
  const void* Constant(const void* host, int64_t bytes) const;

  void CopyToHost(void* host, const void* device, int64_t bytes) const override;
  void CopyFromHost(void* device, const void* host, int64_t bytes) const override;
  void CopyWithin(void* to, const void* from, int64_t bytes) const override;
  void Synchronize() const override;

 private:
  ContextPtr main_;  // whose stream it is; null: its own
  cudaStream_t stream_;
  mutable PinnedCopies copies_;
  int num_multiprocessors_ = 1;
  bool allow_tf32_;
  mutable std::mutex cublas_mutex_;
  mutable std::unique_ptr<CublasHandle> cublas_;
  mutable std::mutex constants_mutex_;
  mutable std::map<const void*, std::unique_ptr<Workspace>> constants_;
};

}  // namespace apogee::cuda

#endif  // APOGEE_TENSOR_CUDA_STREAM_CONTEXT_CUH_
