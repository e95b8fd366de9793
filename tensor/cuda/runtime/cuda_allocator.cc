// SPDX-License-Identifier: Apache-2.0

#include "apogee/tensor/cuda/runtime/cuda_allocator.cuh"

#include <algorithm>
#include <bit>
#include <sstream>
#include <utility>
#include <vector>

#include "apogee/core/error.h"
#include "apogee/tensor/cuda/runtime/stream_context.cuh"

namespace apogee::cuda {

CudaAllocator::CudaAllocator(int device, cudaStream_t stream, bool cache, CudaMemory memory)
    : device_(device), stream_(stream), keep_(cache), memory_(memory) {}

CudaAllocator::~CudaAllocator() { ReleaseCache(); }

int64_t CudaAllocator::RoundUp(int64_t bytes) const {
  if (!keep_) return std::max<int64_t>(bytes, 1);
  const int64_t eighth =
      static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(std::max<int64_t>(bytes, 1)))) / 8;
  const int64_t step = std::max(kAlignment, std::min<int64_t>(eighth, 2 << 20));
  return std::max(step, (bytes + step - 1) / step * step);
}

void* CudaAllocator::TakeCached(int64_t rounded) {
  std::lock_guard lock(mutex_);
  const auto found = cache_.find(rounded);
  if (found == cache_.end()) return nullptr;
  void* block = found->second;
  cache_.erase(found);
  ledger_.AddSlack(-rounded);
  return block;
}

void* CudaAllocator::AskDriver(int64_t rounded) {
  void* block = nullptr;
  const auto bytes = static_cast<size_t>(rounded);
  const cudaError_t error = memory_ == CudaMemory::kDevice
                                ? cudaMalloc(&block, bytes)
                                : cudaHostAlloc(&block, bytes, cudaHostAllocPortable);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // clears the error, so that the next call does not report it
    return nullptr;
  }
  CheckCuda(error, memory_ == CudaMemory::kDevice ? "cudaMalloc" : "cudaHostAlloc");
  return block;
}

void CudaAllocator::GiveBack(void* block) {
  memory_ == CudaMemory::kDevice ? cudaFree(block) : cudaFreeHost(block);
}

void* CudaAllocator::Allocate(int64_t bytes, MemoryCategory category) {
  APOGEE_CHECK(bytes >= 0, "allocate: negative size ", bytes);
  CheckCuda(cudaSetDevice(device_), "cudaSetDevice");
  const int64_t rounded = RoundUp(bytes);
  void* block = TakeFreedInGraph(rounded);
  if (block == nullptr) block = TakeCached(rounded);
  if (block == nullptr) block = AskDriver(rounded);
  if (block == nullptr) {
    ReleaseCache();
    block = AskDriver(rounded);
  }
  if (block == nullptr) ThrowOutOfMemory(bytes, category);
  GiveToGraph(block);
  try {
    ledger_.Add(category, bytes);
  } catch (...) {
    if (KeepForGraphs(block, rounded)) {
      ledger_.AddSlack(rounded);
    } else {
      GiveBack(block);
    }
    throw;
  }
  ledger_.AddSlack(rounded - bytes);
  return block;
}

void CudaAllocator::Free(void* block, int64_t bytes, MemoryCategory category) {
  const int64_t rounded = RoundUp(bytes);
  ledger_.Remove(category, bytes);
  if (KeepForGraphs(block, rounded)) {
    ledger_.AddSlack(bytes);
    return;
  }
  if (!keep_ && !holds_frees_) {
    // Queued work may still use the block: cudaFree waits for the GPU.
    ledger_.AddSlack(bytes - rounded);
    cudaSetDevice(device_);
    cudaStreamSynchronize(stream_);
    GiveBack(block);
    return;
  }
#ifndef NDEBUG
  // A use after release reads NaN, not the old values.
  cudaSetDevice(device_);
  cudaMemsetAsync(block, CpuAllocator::kPoison, static_cast<size_t>(bytes), stream_);
#endif
  ledger_.AddSlack(bytes);
  std::lock_guard lock(mutex_);
  cache_.emplace(rounded, block);
}

void CudaAllocator::ReleaseCache() {
  std::lock_guard lock(mutex_);
  // While a graph is captured, waiting is not allowed, and the driver may wait.
  if (cache_.empty() || IsCapturing()) return;
  cudaSetDevice(device_);
  cudaStreamSynchronize(stream_);
  for (const auto& [bytes, block] : cache_) {
    GiveBack(block);
    ledger_.AddSlack(-bytes);
  }
  cache_.clear();
}

void CudaAllocator::ThrowOutOfMemory(int64_t bytes, MemoryCategory category) {
  APOGEE_CHECK(
      memory_ == CudaMemory::kDevice, "out of host memory that can be pinned for cuda:", device_,
      ": ", bytes, " bytes for ", MemoryCategoryName(category), "; this rank has ",
      ledger_.live_total_bytes(), " bytes of it; offload less to the host, or use more machines");
  size_t free_bytes = 0, total_bytes = 0;
  cudaMemGetInfo(&free_bytes, &total_bytes);
  std::vector<std::pair<int64_t, MemoryCategory>> live;
  for (int i = 0; i < kNumMemoryCategories; ++i) {
    const auto each = static_cast<MemoryCategory>(i);
    live.emplace_back(ledger_.live_bytes(each), each);
  }
  std::ranges::sort(live, std::greater<>(), &std::pair<int64_t, MemoryCategory>::first);
  std::ostringstream top;
  for (size_t i = 0; i < 3; ++i) {
    top << (i == 0 ? "" : ", ") << live[i].first << " of " << MemoryCategoryName(live[i].second);
  }
  Throw("out of memory on cuda:", device_, ": ", bytes, " bytes for ", MemoryCategoryName(category),
        ", ", free_bytes, " of ", total_bytes, " free; this rank has ", ledger_.live_total_bytes(),
        " bytes live, most of them ", top.str(), "; use a smaller batch or model, or shard it");
}

}  // namespace apogee::cuda
