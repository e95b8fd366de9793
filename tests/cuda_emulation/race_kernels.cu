// SPDX-License-Identifier: Apache-2.0

#include <map>

#include "apogee/core/error.h"
#include "apogee/tensor/cuda/attention/mma.cuh"
#include "apogee/tensor/cuda/device/device.cuh"
#include "apogee/tensor/cuda/device/launch.cuh"
#include "apogee/tests/cuda_emulation/race_kernels.h"

namespace apogee {
namespace {

using cuda::Grid;

constexpr unsigned kAll = cuda::kFullWarp;

// The last thread runs first, so the values are right without the barrier, too.
template <bool kBarrier>
__global__ void NeighbourKernel(uint32_t* words) {
  __shared__ uint32_t shared[64];
  shared[threadIdx.x] = threadIdx.x;
  if (kBarrier) __syncthreads();
  words[threadIdx.x] = threadIdx.x == 63 ? 0 : shared[threadIdx.x + 1];
}

// One warp: shared memory that an exchange orders.
template <bool kSync>
__global__ void WarpKernel(uint32_t* words) {
  uint32_t* shared = cuda::DynamicShared<uint32_t>();
  shared[threadIdx.x] = threadIdx.x;
  if (kSync) __syncwarp();
  words[threadIdx.x] = threadIdx.x == 31 ? 0 : shared[threadIdx.x + 1];
}

// An exchange orders the lanes of one warp, not two warps.
__global__ void TwoWarpsKernel(uint32_t* words) {
  words[threadIdx.x] = 1;
  __syncwarp();
  words[64 + threadIdx.x] = words[(threadIdx.x + 32) % 64];
}

// The first eight lanes exchange; then `reader` reads what they wrote.
template <unsigned kReader>
__global__ void PartKernel(uint32_t* words) {
  if (threadIdx.x < 8) {
    words[threadIdx.x] = 1;
    __shfl_xor_sync(0xffu, 1, 1);
  }
  if (threadIdx.x == kReader) words[100] = words[0];
}

// All threads have read before one of them writes.
template <bool kBarrier>
__global__ void ReadThenWriteKernel(uint32_t* words) {
  words[1 + threadIdx.x] = words[0];
  if (kBarrier) __syncthreads();
  if (threadIdx.x == 0) words[0] = 1;
}

// Blocks add to one word.
__global__ void AddKernel(uint32_t* words) {
  if (threadIdx.x == 0) words[0] += 1;
}
__global__ void AtomicAddKernel(uint32_t* words) { atomicAdd(words, 1u); }
__global__ void AtomicThenReadKernel(uint32_t* words) {
  atomicAdd(words, 1u);
  words[1 + blockIdx.x * blockDim.x + threadIdx.x] = words[0];
}

// Blocks use the same shared memory, one after the other.
__global__ void EachBlockKernel(uint32_t* words) {
  __shared__ uint32_t shared[32];
  uint32_t* dynamic = cuda::DynamicShared<uint32_t>();
  shared[threadIdx.x] = dynamic[threadIdx.x] = threadIdx.x;
  __syncthreads();
  words[blockIdx.x * 32 + threadIdx.x] = shared[31 - threadIdx.x] + dynamic[31 - threadIdx.x];
}

// The second block reads what the first one left behind.
template <bool kDynamic>
__global__ void UnwrittenKernel(uint32_t* words) {
  __shared__ uint32_t declared[32];
  uint32_t* shared = kDynamic ? cuda::DynamicShared<uint32_t>() : declared;
  if (blockIdx.x == gridDim.x - 1) shared[threadIdx.x] = 1;
  words[blockIdx.x * 32 + threadIdx.x] = shared[threadIdx.x];
}

// Neighbouring bytes belong to different threads.
template <bool kOverlap>
__global__ void BytesKernel(uint8_t* bytes) {
  bytes[threadIdx.x] = 1;
  if (kOverlap && threadIdx.x == 0) bytes[1] = 2;
}

// A tile is loaded while some warps still read the one before.
template <bool kBarrier>
__global__ void TilesKernel(const uint32_t* words, uint32_t* sums) {
  uint32_t* tile = cuda::DynamicShared<uint32_t>();
  uint32_t sum = 0;
  for (int t = 0; t < 2; ++t) {
    if (threadIdx.x < 16) cuda::CopyAsync16(tile + 4 * threadIdx.x, words + 4 * threadIdx.x, true);
    cuda::CommitCopies();
    cuda::WaitCopies<0>();
    __syncthreads();
    sum += tile[63 - threadIdx.x];
    if (kBarrier) __syncthreads();
  }
  sums[threadIdx.x] = sum;
}

template <int kOffset>
__global__ void VectorKernel(float* words) {
  using Vector = cuda::Vector<float, 4>;
  APOGEE_CHECK_ALIGNED(words + kOffset, Vector);
  words[64 + threadIdx.x] = reinterpret_cast<const Vector*>(words + kOffset)->at[threadIdx.x];
}

}  // namespace

void RunRaceKernel(const DeviceContext& gpu, const std::string& name, void* data) {
  auto* words = static_cast<uint32_t*>(data);
  const auto run = [&](const Grid& grid, void (*kernel)(uint32_t*)) {
    cuda::Launch(gpu, grid, kernel, words);
  };
  const Grid two_warps{.threads = {64}}, warp{.threads = {32}, .shared_bytes = 128},
      blocks{.blocks = {4}, .threads = {32}, .shared_bytes = 128};
  if (name == "barrier") return run(two_warps, &NeighbourKernel<true>);
  if (name == "no barrier") return run(two_warps, &NeighbourKernel<false>);
  if (name == "warp") return run(warp, &WarpKernel<true>);
  if (name == "warp without sync") return run(warp, &WarpKernel<false>);
  if (name == "two warps") return run(two_warps, &TwoWarpsKernel);
  if (name == "part of a warp") return run(warp, &PartKernel<7>);
  if (name == "outside of the part") return run(warp, &PartKernel<8>);
  if (name == "read, then write") return run(two_warps, &ReadThenWriteKernel<true>);
  if (name == "read and write") return run(two_warps, &ReadThenWriteKernel<false>);
  if (name == "two launches") {
    run(two_warps, &AtomicAddKernel);
    run({.threads = {1}}, &AddKernel);
    return run({.threads = {1}}, &AddKernel);
  }
  if (name == "blocks add") return run(blocks, &AddKernel);
  if (name == "blocks add atomically") return run(blocks, &AtomicAddKernel);
  if (name == "atomic and plain") return run(blocks, &AtomicThenReadKernel);
  if (name == "shared memory of each block") return run(blocks, &EachBlockKernel);
  if (name == "unwritten, declared") return run(blocks, &UnwrittenKernel<false>);
  if (name == "unwritten, dynamic") return run(blocks, &UnwrittenKernel<true>);
  if (name == "bytes" || name == "bytes that overlap") {
    return cuda::Launch(gpu, warp, name == "bytes" ? &BytesKernel<false> : &BytesKernel<true>,
                        static_cast<uint8_t*>(data));
  }
  if (name == "tiles" || name == "tiles too early") {
    return cuda::Launch(gpu, {.threads = {64}, .shared_bytes = 256},
                        name == "tiles" ? &TilesKernel<true> : &TilesKernel<false>, words,
                        words + 128);
  }
  if (name == "vector" || name == "vector misaligned") {
    return cuda::Launch(gpu, {.threads = {4}},
                        name == "vector" ? &VectorKernel<4> : &VectorKernel<2>,
                        static_cast<float*>(data));
  }
  Throw("no kernel is named ", name);
}

}  // namespace apogee
