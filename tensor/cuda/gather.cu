// SPDX-License-Identifier: Apache-2.0

// gather and scatter_add: an index into the middle dim of [outer, size, inner]. In scatter_add a
// thread owns a column, so that sums have one order and no atomic additions.
#include "apogee/tensor/cuda/device/device.cuh"
#include "apogee/tensor/cuda/device/launch.cuh"
#include "apogee/tensor/cuda/kernels.h"

namespace apogee::cuda {
namespace {

template <typename T>
void Gather(const DeviceContext& context, const GatherArgs& args) {
  const T* x = static_cast<const T*>(args.x);
  T* y = static_cast<T*>(args.y);
  const DimIndex index = args.index;
  ForEach(context, index.outer * index.count * index.inner, [=] __device__(int64_t k) {
    const int64_t i = k % index.inner, row = k / index.inner;
    const int64_t j = row % index.count, o = row / index.count;
    const int64_t at =
        index.values[o * index.strides[0] + j * index.strides[1] + i * index.strides[2]];
    y[k] = x[(o * index.size + at) * index.inner + i];
  });
}

template <typename T>
void ScatterAdd(const DeviceContext& context, const ScatterAddArgs& args) {
  using C = ComputeType<T>;
  const T* x = static_cast<const T*>(args.x);
  T* y = static_cast<T*>(args.y);
  const DimIndex index = args.index;
  // Sums of 16-bit elements need memory of their own.
  constexpr bool kOwnSums = sizeof(T) == 2;
  const int64_t n = index.outer * index.size * index.inner;
  const Workspace workspace(context, kOwnSums ? n * static_cast<int64_t>(sizeof(C)) : 0);
  C* sums;
  if constexpr (kOwnSums) {
    sums = workspace.data<C>();
  } else {
    sums = y;
  }
  ForEach(context, index.outer * index.inner, [=] __device__(int64_t column) {
    const int64_t o = column / index.inner, i = column % index.inner;
    const int64_t first = o * index.size * index.inner + i;
    for (int64_t r = 0; r < index.size; ++r) sums[first + r * index.inner] = C(0);
    for (int64_t j = 0; j < index.count; ++j) {
      const int64_t at =
          index.values[o * index.strides[0] + j * index.strides[1] + i * index.strides[2]];
      sums[first + at * index.inner] += Load(x + (o * index.count + j) * index.inner + i);
    }
  });
  if (!kOwnSums) return;
  ForEach(context, n, [=] __device__(int64_t i) { y[i] = Cast<T>(sums[i]); });
}

}  // namespace

void gather(const DeviceContext& context, const GatherArgs& args) {
  DispatchBits(args.dtype, [&]<typename T>() { Gather<T>(context, args); });
}

void scatter_add(const DeviceContext& context, const ScatterAddArgs& args) {
  DispatchFloat(args.dtype, "scatter_add", [&]<typename T>() { ScatterAdd<T>(context, args); });
}

}  // namespace apogee::cuda
