// SPDX-License-Identifier: Apache-2.0

// Softmax over rows, and its logarithm. A row is read from memory once; further passes hit the
// caches. A row of -inf gives NaN (-inf minus its own maximum), and so does a row with +inf or NaN.
#include "apogee/tensor/cpu/kernels.h"
#include "apogee/tensor/cpu/loops.h"
#include "apogee/tensor/cpu/row_ops.h"
#include "apogee/tensor/cpu/vec_math.h"

namespace apogee::cpu {
namespace {

template <typename T>
void ForwardRow(const T* x, T* y, int64_t cols) {
  using C = ComputeType<T>;
  const C max = RowMax(x, cols);
  if constexpr (kIsHalf<T>) {
    // y is too coarse to hold the exponentials. Computing them twice is cheaper than storing them.
    const C sum = SumOver<C>(cols, [=](int64_t i) { return FastExp(Load(x[i]) - max); });
    const C inverse = C(1) / sum;
#pragma omp simd
    for (int64_t i = 0; i < cols; ++i) y[i] = Cast<T>(FastExp(Load(x[i]) - max) * inverse);
  } else {
    const C sum = SumOver<C>(cols, [=](int64_t i) { return y[i] = FastExp(x[i] - max); });
    const C inverse = C(1) / sum;
#pragma omp simd
    for (int64_t i = 0; i < cols; ++i) y[i] *= inverse;
  }
}

// A row with an infinite maximum gives NaN, as with softmax.
template <typename T>
void LogForwardRow(const T* x, T* y, int64_t cols) {
  using C = ComputeType<T>;
  const C largest = RowMax(x, cols);
  const C log =
      FastLogOfAny(SumOver<C>(cols, [=](int64_t i) { return FastExp(Load(x[i]) - largest); }));
#pragma omp simd
  for (int64_t i = 0; i < cols; ++i) y[i] = Cast<T>((Load(x[i]) - largest) - log);
}

template <typename T>
void LogBackwardRow(const T* y, const T* dy, T* dx, int64_t cols) {
  using C = ComputeType<T>;
  const C sum = SumOver<C>(cols, [=](int64_t i) { return Load(dy[i]); });
#pragma omp simd
  for (int64_t i = 0; i < cols; ++i) dx[i] = Cast<T>(Load(dy[i]) - FastExp(Load(y[i])) * sum);
}

template <typename T>
void BackwardRow(const T* y, const T* dy, T* dx, int64_t cols) {
  using C = ComputeType<T>;
  const C dot = SumOver<C>(cols, [=](int64_t i) { return Load(y[i]) * Load(dy[i]); });
#pragma omp simd
  for (int64_t i = 0; i < cols; ++i) dx[i] = Cast<T>(Load(y[i]) * (Load(dy[i]) - dot));
}

}  // namespace

void softmax_forward(const DeviceContext& context, const SoftmaxForwardArgs& args) {
  DispatchFloat(args.dtype, "softmax_forward", [&]<typename T>() {
    const T* x = static_cast<const T*>(args.x);
    T* y = static_cast<T*>(args.y);
    const int64_t cols = args.cols;
    const bool log = args.log;
    ForRows(context, args.rows, cols, [=](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        (log ? LogForwardRow<T> : ForwardRow<T>)(x + r * cols, y + r * cols, cols);
      }
    });
  });
}

void softmax_backward(const DeviceContext& context, const SoftmaxBackwardArgs& args) {
  DispatchFloat(args.dtype, "softmax_backward", [&]<typename T>() {
    const T* y = static_cast<const T*>(args.y);
    const T* dy = static_cast<const T*>(args.dy);
    T* dx = static_cast<T*>(args.dx);
    const int64_t cols = args.cols;
    const bool log = args.log;
    ForRows(context, args.rows, cols, [=](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        (log ? LogBackwardRow<T> : BackwardRow<T>)(y + r * cols, dy + r * cols, dx + r * cols,
                                                   cols);
      }
    });
  });
}

}  // namespace apogee::cpu
