// SPDX-License-Identifier: Apache-2.0

// The GPU in software finds the kinds of faults that it was made to find.
#include "apogee/tests/cuda_emulation/device.h"
// device.h stands in for nvcc and comes first.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cmath>
#include <functional>
#include <limits>

#include "apogee/core/error.h"
#include "apogee/tensor/cuda/cuda_context.h"
#include "apogee/tensor/cuda/device/launch.cuh"
#include "apogee/tensor/tensor.h"

namespace apogee::cuda {
namespace emulation_test {

using ::testing::KilledBySignal;

class EmulationTest : public ::testing::Test {
 protected:
  // Streams are threads, so a death test must run in a fresh process.
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

ContextPtr Gpu() { return ValueOrThrow(CudaContext({.cache = false})); }

// Lane 0 waits for its warp, the others for the block.
__global__ void BarrierForSomeKernel() {
  if (threadIdx.x == 0) {
    __syncwarp();
  } else {
    __syncthreads();
  }
}

TEST_F(EmulationTest, ABarrierThatAThreadNeverComesTo) {
  const auto run = [] {
    const ContextPtr gpu = Gpu();
    Launch(*gpu, {.blocks = {2}, .threads = {32}}, &BarrierForSomeKernel);
    gpu->Synchronize();
  };
  EXPECT_DEATH(run(), "block \\(1, 0, 0\\) cannot go on: 0:warp\\(ffffffff\\) 1:barrier");
}

__global__ void PlacesKernel(uint32_t* count, uint32_t* places) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  places[i] = atomicAdd(count, 1u);
}

// Code that relies on the order of threads or blocks gives wrong results.
TEST_F(EmulationTest, ThreadsDoNotComeInOrder) {
  const ContextPtr gpu = Gpu();
  const Tensor count = Tensor::Zeros({1}, DType::kI32, gpu);
  const Tensor places = Tensor::Zeros({4 * 64}, DType::kI32, gpu);
  Launch(*gpu, {.blocks = {4}, .threads = {64}}, &PlacesKernel, static_cast<uint32_t*>(count.raw()),
         static_cast<uint32_t*>(places.raw()));
  const std::vector<int32_t> place = places.ToVector<int32_t>();
  EXPECT_GT(place[0], place[1]) << "threads of a warp";
  EXPECT_GT(place[0], place[32]) << "warps of a block";
  EXPECT_GT(place[0], place[64]) << "blocks";
}

// The lanes of one exchange pass different masks.
__global__ void MasksKernel() { __shfl_xor_sync(threadIdx.x < 16 ? 0xffffu : 0xffffffffu, 1, 1); }

TEST_F(EmulationTest, LanesThatDoNotAgree) {
  const auto run = [] {
    const ContextPtr gpu = Gpu();
    Launch(*gpu, {.threads = {32}}, &MasksKernel);
    gpu->Synchronize();
  };
  EXPECT_DEATH(run(), "cannot go on:.*31:warp");
}

__global__ void CopyKernel(const float* from, float* to, int n) {
  const int i = static_cast<int>(threadIdx.x);
  if (i < n) to[i] = from[i];
}

TEST_F(EmulationTest, ReadsAndWritesBeyondABuffer) {
  const auto run = [](int read, int written) {
    const ContextPtr gpu = Gpu();
    const Tensor from = Tensor::Zeros({read}, DType::kF32, gpu);
    const Tensor to = Tensor::Zeros({written}, DType::kF32, gpu);
    Launch(*gpu, {.threads = {64}}, &CopyKernel, static_cast<float*>(from.raw()),
           static_cast<float*>(to.raw()), std::max(read, written));
    gpu->Synchronize();
    std::exit(0);
  };
  EXPECT_EXIT(run(64, 64), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(run(60, 64), KilledBySignal(SIGSEGV), "");
  EXPECT_EXIT(run(64, 60), KilledBySignal(SIGSEGV), "");
}

// The reverse, device code that touches the host's memory, is not caught: a GPU may share it.
TEST_F(EmulationTest, TheHostTouchesDeviceMemory) {
  // PKEY_DISABLE_ACCESS: the emulation may get the same key next, and this thread would keep its
  // rights.
  const int key = pkey_alloc(0, PKEY_DISABLE_ACCESS);
  if (key < 0) GTEST_SKIP() << "this processor has no memory protection keys";
  pkey_free(key);
  const auto run = [](bool write) {
    const Tensor x = Tensor::Zeros({4}, DType::kF32, Gpu());
    volatile float* data = static_cast<float*>(x.raw());
    if (write) {
      data[0] = 1;
    } else {
      std::exit(data[0] == 0);
    }
  };
  EXPECT_EXIT(run(false), KilledBySignal(SIGSEGV), "");
  EXPECT_EXIT(run(true), KilledBySignal(SIGSEGV), "");
}

// Writes when the host has set *go.
__global__ void LateFillKernel(std::atomic<bool>* go, float* y) {
  while (!*go) std::this_thread::yield();
  y[0] = 1;
}

TEST_F(EmulationTest, WhatIsReadBeforeItIsWrittenIsNaN) {
  const ContextPtr gpu = Gpu(), other = Gpu();
  const Tensor x = Tensor::Empty({1}, DType::kF32, gpu);
  std::atomic<bool> go = false;
  Launch(*gpu, {.threads = {1}}, &LateFillKernel, &go, static_cast<float*>(x.raw()));
  float early = 0, late = 0;
  // Another stream does not wait for the first.
  other->CopyToHost(&early, x.raw(), sizeof(early));
  go = true;
  gpu->CopyToHost(&late, x.raw(), sizeof(late));
  EXPECT_TRUE(std::isnan(early));
  EXPECT_EQ(late, 1);
}

__global__ void SharedKernel(float* y) {
  y[threadIdx.x] = static_cast<float*>(cuda_emulation::DynamicSharedMemory())[threadIdx.x];
}

TEST_F(EmulationTest, SharedMemoryIsNotZeroAtFirst) {
  const ContextPtr gpu = Gpu();
  const Tensor y = Tensor::Zeros({32}, DType::kF32, gpu);
  Launch(*gpu, {.threads = {32}, .shared_bytes = 128}, &SharedKernel, static_cast<float*>(y.raw()));
  for (const float value : y.ToVector<float>()) EXPECT_TRUE(std::isnan(value));
}

TEST_F(EmulationTest, LaunchesThatNoGpuTakes) {
  const ContextPtr gpu = Gpu();
  const auto launch = [&](const Grid& grid) {
    Launch(*gpu, grid, &SharedKernel, static_cast<float*>(nullptr));
  };
  EXPECT_THROW(launch({.blocks = {0}}), Error);
  EXPECT_THROW(launch({.blocks = {1, 65536}}), Error);
  EXPECT_THROW(launch({.threads = {1025}}), Error);
  EXPECT_THROW(launch({.shared_bytes = 228 * 1024}), Error);
}

TEST_F(EmulationTest, CopiesOfTheWrongKind) {
  const ContextPtr gpu = Gpu();
  const Tensor x = Tensor::Zeros({1}, DType::kF32, gpu);
  float host = 1;
  const cudaStream_t stream = StreamContext::Of(*gpu).stream();
  const auto copy = [&](void* to, const void* from, cudaMemcpyKind kind) {
    return cudaMemcpyAsync(to, from, 4, kind, stream);
  };
  EXPECT_EQ(copy(x.raw(), &host, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
  EXPECT_EQ(copy(&host, x.raw(), cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(copy(&host, x.raw(), cudaMemcpyDeviceToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(copy(&host, x.raw(), cudaMemcpyDeviceToHost), cudaSuccess);
  gpu->Synchronize();
  EXPECT_EQ(host, 0);
}

__global__ void AddOneKernel(float* x) { x[0] += 1; }

TEST_F(EmulationTest, AGraphIsWhatWasAskedForAndRunsWhenLaunched) {
  const ContextPtr gpu = Gpu();
  const Tensor x = Tensor::Zeros({1}, DType::kF32, gpu),
               copy = Tensor::Zeros({1}, DType::kF32, gpu);
  const cudaStream_t stream = StreamContext::Of(*gpu).stream();
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), cudaSuccess);
  Launch(*gpu, {.threads = {1}}, &AddOneKernel, static_cast<float*>(x.raw()));
  gpu->CopyWithin(copy.raw(), x.raw(), 4);
  EXPECT_EQ(cudaStreamIsCapturing(stream, &status), cudaSuccess);
  EXPECT_EQ(status, cudaStreamCaptureStatusActive);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  EXPECT_EQ(x.Item(), 0);
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  for (int i = 1; i <= 3; ++i) {
    EXPECT_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
    EXPECT_EQ(copy.Item(), i);
  }
  EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
  EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaErrorIllegalState);
}

// Each of these calls makes the capture invalid: calls after it fail, and there is no graph.
TEST_F(EmulationTest, WhatAStreamThatCapturesRefuses) {
  const ContextPtr gpu = Gpu();
  const Tensor x = Tensor::Zeros({1}, DType::kF32, gpu);
  const cudaStream_t stream = StreamContext::Of(*gpu).stream();
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  void *block = nullptr, *pinned = nullptr;
  ASSERT_EQ(cudaMalloc(&block, 4), cudaSuccess);
  ASSERT_EQ(cudaMallocHost(&pinned, 4), cudaSuccess);
  float host = 0;
  const auto copy = [&](void* to, const void* from) {
    return cudaMemcpyAsync(to, from, 4, cudaMemcpyDefault, stream);
  };
  const std::function<cudaError_t()> calls[] = {
      [&] { return cudaStreamSynchronize(stream); },
      [&] { return cudaStreamQuery(stream); },
      [&] { return copy(&host, x.raw()); },
      [&] { return copy(x.raw(), &host); },
      [&] { return cudaEventRecord(event, stream); },
      [&] { return cudaStreamWaitEvent(stream, event, 0); },
      [&] { return cudaFree(block); },
      [&] { return cudaFreeHost(pinned); },
  };
  for (const auto& call : calls) {
    ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), cudaSuccess);
    EXPECT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), cudaErrorIllegalState);
    EXPECT_EQ(call(), cudaErrorStreamCaptureUnsupported);
    EXPECT_THROW(Launch(*gpu, {.threads = {1}}, &AddOneKernel, static_cast<float*>(x.raw())),
                 Error);
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
    EXPECT_EQ(graph, nullptr);
    EXPECT_EQ(call(), cudaSuccess) << "without a capture";
    gpu->Synchronize();
  }
  cudaEventDestroy(event);
  cudaGetLastError();
  EXPECT_EQ(x.Item(), 0);
}

// A relaxed capture lets its thread take memory, other captures do not.
TEST_F(EmulationTest, MemoryThatIsTakenInACapture) {
  const ContextPtr gpu = Gpu();
  const cudaStream_t stream = StreamContext::Of(*gpu).stream();
  cudaGraph_t graph = nullptr;
  for (const bool relaxed : {true, false}) {
    void *block = nullptr, *pinned = nullptr;
    ASSERT_EQ(cudaStreamBeginCapture(stream, relaxed ? cudaStreamCaptureModeRelaxed
                                                     : cudaStreamCaptureModeThreadLocal),
              cudaSuccess);
    EXPECT_EQ(cudaMalloc(&block, 4) == cudaSuccess, relaxed);
    EXPECT_EQ(cudaMallocHost(&pinned, 4) == cudaSuccess, relaxed);
    EXPECT_EQ(cudaStreamEndCapture(stream, &graph) == cudaSuccess, relaxed);
    cudaGraphDestroy(graph);
    EXPECT_EQ(cudaFree(block), cudaSuccess);
    EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);
  }
  cudaGetLastError();
}

}  // namespace emulation_test
}  // namespace apogee::cuda
