// SPDX-License-Identifier: Apache-2.0

// fill, binary and scale_add: loops bound by memory.
#include "apogee/tensor/cpu/kernels.h"
#include "apogee/tensor/cpu/loops.h"

namespace apogee::cpu {
namespace {

template <BinaryOp op, typename C>
C Apply(C a, C b) {
  if constexpr (op == BinaryOp::kAdd) return a + b;
  if constexpr (op == BinaryOp::kSub) return a - b;
  if constexpr (op == BinaryOp::kMul) return a * b;
  if constexpr (op == BinaryOp::kDiv) return a / b;
}

template <BinaryOp op, typename T>
void BinarySpan(const T* a, const T* b, T* out, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) out[i] = Cast<T>(Apply<op>(Load(a[i]), Load(b[i])));
}

template <BinaryOp op, typename T>
void BinaryScalar(const T* a, T b, T* out, int64_t n) {
  const auto value = Load(b);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) out[i] = Cast<T>(Apply<op>(Load(a[i]), value));
}

template <BinaryOp op, typename T>
void BinaryKernel(const DeviceContext& context, const BinaryArgs& args) {
  const T* a = static_cast<const T*>(args.a);
  const T* b = static_cast<const T*>(args.b);
  T* out = static_cast<T*>(args.out);
  const int64_t period = args.b_period;
  ForElements(context, args.n, [=](int64_t begin, int64_t end) {
    if (period == 1) return BinaryScalar<op>(a + begin, *b, out + begin, end - begin);
    // A thread's range may start and end within a period.
    for (int64_t i = begin; i < end;) {
      const int64_t offset = i % period;
      const int64_t count = std::min(end - i, period - offset);
      BinarySpan<op>(a + i, b + offset, out + i, count);
      i += count;
    }
  });
}

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
  DispatchAny(args.dtype, "fill", [&]<typename T>() {
    T* y = static_cast<T*>(args.y);
    const T value = Cast<T>(args.value * ReadScalar(args.factor));
    ForElements(context, args.n,
                [=](int64_t begin, int64_t end) { std::fill(y + begin, y + end, value); });
  });
}

void binary(const DeviceContext& context, const BinaryArgs& args) {
  DispatchFloat(args.dtype, "binary", [&]<typename T>() {
    switch (args.op) {
      case BinaryOp::kAdd:
        return BinaryKernel<BinaryOp::kAdd, T>(context, args);
      case BinaryOp::kSub:
        return BinaryKernel<BinaryOp::kSub, T>(context, args);
      case BinaryOp::kMul:
        return BinaryKernel<BinaryOp::kMul, T>(context, args);
      case BinaryOp::kDiv:
        return BinaryKernel<BinaryOp::kDiv, T>(context, args);
    }
  });
}

void scale_add(const DeviceContext& context, const ScaleAddArgs& args) {
  DispatchFloat(args.x_dtype, "scale_add", [&]<typename X>() {
    DispatchFloat(args.y_dtype, "scale_add",
                  [&]<typename Y>() { ScaleAddKernel<X, Y>(context, args); });
  });
}

}  // namespace apogee::cpu
