// SPDX-License-Identifier: Apache-2.0

#include "apogee/tensor/cuda/runtime/kept_uploads.cuh"

#include <cuda_runtime_api.h>

#include <cstring>

#include "apogee/tensor/cuda/runtime/stream_context.cuh"

namespace apogee::cuda {

KeptUploads::~KeptUploads() {
  for (void* block : blocks_) cudaFreeHost(block);
}

const void* KeptUploads::Keep(const void* host, int64_t bytes) {
  blocks_.push_back(nullptr);
  CheckCuda(cudaHostAlloc(&blocks_.back(), static_cast<size_t>(bytes), cudaHostAllocDefault),
            "pin memory of the host for a graph's copies");
  std::memcpy(blocks_.back(), host, static_cast<size_t>(bytes));
  return blocks_.back();
}

}  // namespace apogee::cuda
