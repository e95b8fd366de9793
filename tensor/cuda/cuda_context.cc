// SPDX-License-Identifier: Apache-2.0

#include "apogee/tensor/cuda/cuda_context.h"

#include <cuda_runtime_api.h>

#include <string>
#include <utility>

#include "apogee/core/error.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tensor/cuda/kernel_table.h"
#include "apogee/tensor/cuda/runtime/cublas.h"
#include "apogee/tensor/cuda/runtime/cuda_allocator.cuh"
#include "apogee/tensor/cuda/runtime/kept_uploads.cuh"
#include "apogee/tensor/cuda/runtime/stream_context.cuh"

namespace apogee {
namespace cuda {

void CheckCuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  Throw(what, ": ", cudaGetErrorName(error), " (", cudaGetErrorString(error), ")");
}

StreamContext::StreamContext(std::unique_ptr<Allocator> allocator, cudaStream_t stream,
                             const CudaOptions& options)
    : DeviceContext(Device{DeviceType::kCuda, options.device}, std::move(allocator),
                    CudaKernelTable(), options.num_threads,
                    CpuContext({.num_threads = options.num_threads})),
      stream_(stream),
      copies_(stream),
      allow_tf32_(options.allow_tf32),
      allow_fast_gelu_(options.allow_fast_gelu) {
  CheckCuda(
      cudaDeviceGetAttribute(&num_multiprocessors_, cudaDevAttrMultiProcessorCount, options.device),
      "cudaDeviceGetAttribute");
}

StreamContext::StreamContext(std::unique_ptr<Allocator> allocator, ContextPtr main)
    : DeviceContext(main->device(), std::move(allocator), CudaKernelTable(), main->num_threads(),
                    HostOf(main)),
      main_(std::move(main)),
      stream_(Of(*main_).stream()),
      copies_(stream_),
      num_multiprocessors_(Of(*main_).num_multiprocessors_),
      allow_tf32_(Of(*main_).allow_tf32_),
      allow_fast_gelu_(Of(*main_).allow_fast_gelu_) {}

StreamContext::~StreamContext() {
  cudaSetDevice(device().index);
  cudaStreamSynchronize(stream_);
  cublas_.reset();
  constants_.clear();
  allocator().ReleaseCache();
  if (main_ == nullptr) cudaStreamDestroy(stream_);
}

void StreamContext::Use() const { CheckCuda(cudaSetDevice(device().index), "cudaSetDevice"); }

void StreamContext::CheckSharedBytes(int64_t bytes, const char* kernel) const {
  int most = 0;
  CheckCuda(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device().index),
            "cudaDeviceGetAttribute");
  APOGEE_CHECK(bytes <= most, kernel, ": its blocks need ", bytes, " bytes of shared memory, and ",
               device().ToString(), " has ", most,
               "; take a smaller dtype or head dim, or another GPU");
}

CublasHandle& StreamContext::cublas() const {
  if (main_ != nullptr) return main().cublas();
  std::lock_guard lock(cublas_mutex_);
  if (cublas_ == nullptr) {
    Use();
    cublas_ = std::make_unique<CublasHandle>();
  }
  return *cublas_;
}

const void* StreamContext::Constant(const void* host, int64_t bytes) const {
  if (main_ != nullptr) return main().Constant(host, bytes);
  std::lock_guard lock(constants_mutex_);
  std::unique_ptr<Workspace>& copy = constants_[host];
  if (copy == nullptr) {
    APOGEE_CHECK(
        recorder() == nullptr,
        "kernels need a table that does not exist yet, and a CUDA graph is being captured; "
        "run the captured function once before the capture");
    auto made = std::make_unique<Workspace>(*this, bytes);
    CopyFromHost(made->data<void>(), host, bytes);
    copy = std::move(made);
  }
  return copy->data<void>();
}

void StreamContext::CopyToHost(void* host, const void* device, int64_t bytes) const {
  if (bytes == 0) return;
  internal::RefuseHostRead(*this, "a copy to the host (To, ToHost, CopyFrom)");
  Use();
  main().copies_.Download(host, device, bytes);
}

void StreamContext::CopyFromHost(void* device, const void* host, int64_t bytes) const {
  if (bytes == 0) return;
  Use();
  if (GraphRecorder* const graph = recorder()) {
    const void* kept = static_cast<CudaGraphRecorder*>(graph)->uploads.Keep(host, bytes);
    CheckCuda(cudaMemcpyAsync(device, kept, static_cast<size_t>(bytes), cudaMemcpyDefault, stream_),
              "copy from the host");
    return;
  }
  main().copies_.Upload(device, host, bytes);
}

void StreamContext::CopyWithin(void* to, const void* from, int64_t bytes) const {
  if (bytes == 0) return;
  Use();
  CheckCuda(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, stream_),
            "copy within the GPU");
}

void StreamContext::Synchronize() const {
  internal::RefuseHostRead(*this, "Synchronize");
  Use();
  CheckCuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
}

}  // namespace cuda

namespace {

absl::Status NoDevice(const std::string& why) {
  return absl::FailedPreconditionError("device cuda: " + why +
                                       "; use device cpu, or run on a machine "
                                       "with an NVIDIA GPU and its driver");
}

std::string Describe(cudaError_t error) {
  return std::string(cudaGetErrorName(error)) + " (" + cudaGetErrorString(error) + ")";
}

}  // namespace

int NumCudaDevices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  return count;
}

absl::StatusOr<ContextPtr> CudaContext(const CudaOptions& options) {
  int count = 0;
  cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorInsufficientDriver) {
    cudaGetLastError();
    return NoDevice("there is no NVIDIA driver, or one older than this build's CUDA " +
                    std::to_string(CUDART_VERSION / 1000) + "." +
                    std::to_string(CUDART_VERSION % 1000 / 10));
  }
  if (error != cudaSuccess || count == 0) {
    cudaGetLastError();
    return NoDevice(error == cudaSuccess ? "there is no GPU" : "no GPU: " + Describe(error));
  }
  if (options.device < 0 || options.device >= count) {
    return absl::InvalidArgumentError("device cuda:" + std::to_string(options.device) +
                                      ": there are GPUs 0 to " + std::to_string(count - 1));
  }
  if (error = cudaSetDevice(options.device); error != cudaSuccess) {
    cudaGetLastError();
    return NoDevice("cuda:" + std::to_string(options.device) + ": " + Describe(error));
  }
  if (!cuda::KernelsFitThisGpu()) {
    int major = 0, minor = 0;
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, options.device);
    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, options.device);
    const std::string arch = std::to_string(major) + std::to_string(minor);
    return absl::FailedPreconditionError("device cuda:" + std::to_string(options.device) +
                                         ": the kernels of this build do not run on "
                                         "its architecture " +
                                         arch +
                                         "; configure with -DCMAKE_CUDA_ARCHITECTURES=" + arch);
  }
  cudaStream_t stream = nullptr;
  if (error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking); error != cudaSuccess) {
    cudaGetLastError();
    return NoDevice("cuda:" + std::to_string(options.device) + ": no stream: " + Describe(error));
  }
  return std::make_shared<cuda::StreamContext>(
      std::make_unique<cuda::CudaAllocator>(options.device, stream, options.cache), stream,
      options);
}

CudaProducts CudaProductsOf(const ContextPtr& gpu) {
  APOGEE_CHECK(gpu != nullptr && gpu->device().type == DeviceType::kCuda,
               "CudaProductsOf: needs the context of a GPU, got ",
               gpu == nullptr ? "none" : gpu->device().ToString());
  return cuda::StreamContext::Of(*gpu).cublas().products();
}

ContextPtr PinnedContext(const ContextPtr& gpu) {
  APOGEE_CHECK(gpu != nullptr && gpu->device().type == DeviceType::kCuda,
               "PinnedContext: needs the context of a GPU, got ",
               gpu == nullptr ? "none" : gpu->device().ToString());
  auto allocator = std::make_unique<cuda::CudaAllocator>(
      gpu->device().index, cuda::StreamContext::Of(*gpu).stream(), /*cache=*/true,
      cuda::CudaMemory::kPinnedHost);
  return std::make_shared<cuda::StreamContext>(std::move(allocator), gpu);
}

}  // namespace apogee
