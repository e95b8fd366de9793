// SPDX-License-Identifier: Apache-2.0

// gather and scatter_add: an index into the middle dim of [outer, size, inner].
#include "apogee/tensor/cpu/kernels.h"
#include "apogee/tensor/cpu/loops.h"

namespace apogee::cpu {
namespace {

template <typename T>
void GatherKernel(const DeviceContext& context, const GatherArgs& args) {
  const T* x = static_cast<const T*>(args.x);
  T* y = static_cast<T*>(args.y);
  const DimIndex index = args.index;
  ForRows(context, index.outer * index.count, index.inner, [=](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t o = row / index.count, j = row % index.count;
      const int64_t* at = index.values + o * index.strides[0] + j * index.strides[1];
      const T* from = x + o * index.size * index.inner;
      T* to = y + row * index.inner;
      if (index.strides[2] == 0) {
        std::copy_n(from + *at * index.inner, index.inner, to);
      } else {
        for (int64_t i = 0; i < index.inner; ++i) {
          to[i] = from[at[i * index.strides[2]] * index.inner + i];
        }
      }
    }
  });
}

template <typename T>
void ScatterAddKernel(const DeviceContext& context, const ScatterAddArgs& args) {
  using C = ComputeType<T>;
  const T* x = static_cast<const T*>(args.x);
  T* y = static_cast<T*>(args.y);
  const DimIndex index = args.index;
  // Sums of 16-bit elements need memory of their own.
  const int64_t n = index.outer * index.size * index.inner;
  const Workspace workspace(context, kIsHalf<T> ? n * static_cast<int64_t>(sizeof(C)) : 0);
  C* sums;
  if constexpr (kIsHalf<T>) {
    sums = workspace.data<C>();
  } else {
    sums = y;
  }
  const int64_t rows = index.count + index.size;
  ForTiles<512>(context, index.outer, rows, index.inner, [=](int64_t o, int64_t first, int64_t n) {
    const int64_t last = first + n;
    C* const sum = sums + o * index.size * index.inner;
    for (int64_t r = 0; r < index.size; ++r) {
      std::fill(sum + r * index.inner + first, sum + r * index.inner + last, C(0));
    }
    for (int64_t j = 0; j < index.count; ++j) {
      const int64_t* at = index.values + o * index.strides[0] + j * index.strides[1];
      const T* from = x + (o * index.count + j) * index.inner;
      for (int64_t i = first; i < last; ++i) {
        sum[at[i * index.strides[2]] * index.inner + i] += Load(from[i]);
      }
    }
  });
  if constexpr (kIsHalf<T>) {
    ForElements(context, n, [=](int64_t begin, int64_t end) {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) y[i] = Cast<T>(sums[i]);
    });
  }
}

}  // namespace

void gather(const DeviceContext& context, const GatherArgs& args) {
  DispatchBits(args.dtype, [&]<typename T>() { GatherKernel<T>(context, args); });
}

void scatter_add(const DeviceContext& context, const ScatterAddArgs& args) {
  DispatchFloat(args.dtype, "scatter_add",
                [&]<typename T>() { ScatterAddKernel<T>(context, args); });
}

}  // namespace apogee::cpu
