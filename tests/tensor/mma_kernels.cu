// SPDX-License-Identifier: Apache-2.0

#include "apogee/tensor/cuda/attention/mma.cuh"
#include "apogee/tensor/cuda/device/launch.cuh"
#include "apogee/tests/tensor/mma_kernels.h"

namespace apogee {
namespace {

using cuda::kWarp;

constexpr int kStride = 24;  // of rows in shared memory

template <typename T>
__device__ void LoadMatrix(const T* x, T* tile) {
  const int lane = threadIdx.x % kWarp;
  cuda::CopyAsync16(tile + lane / 2 * kStride + lane % 2 * 8, x + lane * 8, true);
  cuda::CommitCopies();
}

__device__ void StoreProduct(const float (&sums)[2][4], float* product) {
  const int lane = threadIdx.x % kWarp;
  for (int n = 0; n < 2; ++n) {
    for (int i = 0; i < 4; ++i) {
      product[(lane / 4 + i / 2 * 8) * 16 + n * 8 + lane % 4 * 2 + i % 2] = sums[n][i];
    }
  }
}

template <typename T>
__global__ void ProductsKernel(const T* a, const T* b, const T* b_transposed, float* products) {
  T* const a_tile = cuda::DynamicShared<T>();
  T* const b_tile = a_tile + 16 * kStride;
  T* const bt_tile = b_tile + 16 * kStride;
  LoadMatrix(a, a_tile);
  LoadMatrix(b_transposed, bt_tile);
  LoadMatrix(b, b_tile);
  cuda::WaitCopies<1>();
  __syncthreads();
  uint32_t x[4], y[4];
  float from_transpose[2][4] = {}, from_rows[2][4] = {}, twice[2][4] = {};
  cuda::LoadMatrices<false>(cuda::RowOfA(a_tile, kStride), x);
  cuda::LoadMatrices<false>(cuda::RowOfB(bt_tile, kStride), y);
  cuda::Mma<T>(x, y[0], y[1], from_transpose[0]);
  cuda::Mma<T>(x, y[2], y[3], from_transpose[1]);
  StoreProduct(from_transpose, products);
  cuda::WaitCopies<0>();
  __syncthreads();
  cuda::LoadMatrices<true>(cuda::RowOfA(b_tile, kStride), y);
  cuda::Mma<T>(x, y[0], y[1], from_rows[0]);
  cuda::Mma<T>(x, y[2], y[3], from_rows[1]);
  StoreProduct(from_rows, products + 256);
  cuda::PackSums<T>(from_rows[0], from_rows[1], x);
  cuda::Mma<T>(x, y[0], y[1], twice[0]);
  cuda::Mma<T>(x, y[2], y[3], twice[1]);
  StoreProduct(twice, products + 512);
}

template <typename T>
void Products(const DeviceContext& context, const void* a, const void* b, const void* b_transposed,
              float* products) {
  cuda::Launch(context, {.threads = {kWarp}, .shared_bytes = 3 * 16 * kStride * int64_t{sizeof(T)}},
               &ProductsKernel<T>, static_cast<const T*>(a), static_cast<const T*>(b),
               static_cast<const T*>(b_transposed), products);
}

}  // namespace

void MmaProducts(const DeviceContext& context, DType dtype, const void* a, const void* b,
                 const void* b_transposed, float* products) {
  if (dtype == DType::kBF16) return Products<BFloat16>(context, a, b, b_transposed, products);
  Products<Float16>(context, a, b, b_transposed, products);
}

}  // namespace apogee
