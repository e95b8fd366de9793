// SPDX-License-Identifier: Apache-2.0

// fill and scale_add: loops bound by memory.
#include "apogee/tensor/cpu/kernels.h"
#include "apogee/tensor/cpu/loops.h"

namespace apogee::cpu {
namespace {

template <typename X, typename Y>
void ScaleAddKernel(const DeviceContext& context, const ScaleAddArgs& args) {
  using C = WiderCompute<X, Y>;
  const X* x = static_cast<const X*>(args.x);
  Y* y = static_cast<Y*>(args.y);
  const C alpha = static_cast<C>(args.alpha);
  const C beta = static_cast<C>(args.beta);
  ForElements(context, args.n, [=](int64_t begin, int64_t end) {
    if (beta == 0) {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) y[i] = Cast<Y>(alpha * Cast<C>(x[i]));
    } else {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) {
        y[i] = Cast<Y>(alpha * Cast<C>(x[i]) + beta * Cast<C>(y[i]));
      }
    }
  });
}

}  // namespace

void fill(const DeviceContext& context, const FillArgs& args) {
  if (context.is_dry() && args.n > DeviceContext::kDryNumel) return;
  DispatchAny(args.dtype, "fill", [&]<typename T>() {
    T* y = static_cast<T*>(args.y);
    const T value = Cast<T>(args.value * ReadScalar(args.factor));
    ParallelFor(context.num_threads(), args.n, kGrain,
                [=](int64_t begin, int64_t end) { std::fill(y + begin, y + end, value); });
  });
}

void scale_add(const DeviceContext& context, const ScaleAddArgs& args) {
  DispatchFloat(args.x_dtype, "scale_add", [&]<typename X>() {
    DispatchFloat(args.y_dtype, "scale_add",
                  [&]<typename Y>() { ScaleAddKernel<X, Y>(context, args); });
  });
}

}  // namespace apogee::cpu
