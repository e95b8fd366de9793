// SPDX-License-Identifier: Apache-2.0

#include "apogee/tensor/cuda/runtime/kept_uploads.cuh"

#include <cuda_runtime_api.h>

#include <cstring>

#include "apogee/tensor/cuda/runtime/stream_context.cuh"

namespace apogee::cuda {

KeptUploads::~KeptUploads() {
  for (const Copy& copy : copies_) cudaFreeHost(copy.block);
  FreeOthers();
}

void KeptUploads::FreeOthers() {
  for (void* block : others_) cudaFreeHost(block);
  others_.clear();
}

const void* KeptUploads::Keep(const void* host, int64_t bytes) {
  const size_t at = next_++;
  if (at == copies_.size()) copies_.push_back({nullptr, 0});
  Copy& copy = copies_[at];
  if (copy.bytes == bytes && std::memcmp(copy.block, host, static_cast<size_t>(bytes)) == 0) {
    return copy.block;
  }
  void* block = nullptr;
  CheckCuda(cudaHostAlloc(&block, static_cast<size_t>(bytes), cudaHostAllocDefault),
            "pin memory of the host for a graph's copies");
  std::memcpy(block, host, static_cast<size_t>(bytes));
  if (copy.block != nullptr) others_.push_back(copy.block);
  copy = {block, bytes};
  return block;
}

}  // namespace apogee::cuda
