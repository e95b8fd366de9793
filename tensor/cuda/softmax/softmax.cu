// SPDX-License-Identifier: Apache-2.0

// Softmax over rows, and its logarithm. A row that fits into the threads' registers is read once. A
// row of -inf gives NaN (-inf minus its own maximum), and so does a row with +inf or NaN.
#include "apogee/tensor/cuda/attention/held_row.cuh"
#include "apogee/tensor/cuda/attention/log_sum_exp.cuh"
#include "apogee/tensor/cuda/device/rows.cuh"
#include "apogee/tensor/cuda/kernels.h"

namespace apogee::cuda {
namespace {

template <bool kLog, typename T, int kWidth, int kTeam>
__global__ void __launch_bounds__(kRowThreads)
    ForwardKernel(const T* x, T* y, int64_t rows, int64_t cols) {
  using C = ComputeType<T>;
  for (int64_t r = FirstRow<kTeam>(); r < rows; r += RowStep<kTeam>()) {
    T* to = y + r * cols;
    const HeldRow<T, kWidth, kTeam> row(x + r * cols, cols);
    LogSumExp<T> sum;
    row.ForEach([&]<int n>(const Vector<T, n>& v, int64_t) { sum.Add(v); });
    sum.template OverTeam<kTeam>();
    const C last = kLog ? std::log(sum.sum) : C(1) / sum.sum;
    row.ForEach([&]<int n>(const Vector<T, n>& v, int64_t i) {
      Vector<T, n> out;
#pragma unroll
      for (int j = 0; j < n; ++j) {
        const C rest = Load(v.at + j) - sum.max;
        out.at[j] = Cast<T>(kLog ? rest - last : Exp<T>(rest) * last);
      }
      StoreVector(to + i, out);
    });
  }
}

// At least two blocks per multiprocessor. Otherwise the compiler would hold both rows of f16 in
// registers as f32.
template <bool kLog, typename T, int kWidth, int kTeam>
__global__ void __launch_bounds__(kRowThreads, 2)
    BackwardKernel(const T* y, const T* dy, T* dx, int64_t rows, int64_t cols) {
  using C = ComputeType<T>;
  for (int64_t r = FirstRow<kTeam>(); r < rows; r += RowStep<kTeam>()) {
    T* to = dx + r * cols;
    const HeldPair<T, kWidth, kTeam> row(y + r * cols, dy + r * cols, cols);
    C dot = 0;  // the sum of dy if kLog
    row.ForEach([&]<int n>(const Vector<T, n>& v, const Vector<T, n>& grad, int64_t) {
#pragma unroll
      for (int j = 0; j < n; ++j) dot += (kLog ? C(1) : Load(v.at + j)) * Load(grad.at + j);
    });
    dot = TeamReduce<kTeam>(dot, Sum());
    row.ForEach([&]<int n>(const Vector<T, n>& v, const Vector<T, n>& grad, int64_t i) {
      Vector<T, n> out;
#pragma unroll
      for (int j = 0; j < n; ++j) {
        const C result = Load(v.at + j), dy_j = Load(grad.at + j);
        out.at[j] = Cast<T>(kLog ? dy_j - Exp<T>(result) * dot : result * (dy_j - dot));
      }
      StoreVector(to + i, out);
    });
  }
}

template <bool kLog, typename T>
void SoftmaxForward(const DeviceContext& context, const SoftmaxForwardArgs& args) {
  const T* x = static_cast<const T*>(args.x);
  T* y = static_cast<T*>(args.y);
  DispatchRows<T>(args.cols, LieAlike(x, y), [&]<int kWidth, int kTeam>() {
    Launch(context, RowGrid<kTeam>(context, args.rows), &ForwardKernel<kLog, T, kWidth, kTeam>, x,
           y, args.rows, args.cols);
  });
}

template <bool kLog, typename T>
void SoftmaxBackward(const DeviceContext& context, const SoftmaxBackwardArgs& args) {
  const T* y = static_cast<const T*>(args.y);
  const T* dy = static_cast<const T*>(args.dy);
  T* dx = static_cast<T*>(args.dx);
  DispatchRows<T>(args.cols, LieAlike(y, dy) && LieAlike(y, dx), [&]<int kWidth, int kTeam>() {
    Launch(context, RowGrid<kTeam>(context, args.rows), &BackwardKernel<kLog, T, kWidth, kTeam>, y,
           dy, dx, args.rows, args.cols);
  });
}

}  // namespace

void softmax_forward(const DeviceContext& context, const SoftmaxForwardArgs& args) {
  if (args.rows == 0 || args.cols == 0) return;
  DispatchFloat(args.dtype, "softmax_forward", [&]<typename T>() {
    args.log ? SoftmaxForward<true, T>(context, args) : SoftmaxForward<false, T>(context, args);
  });
}

void softmax_backward(const DeviceContext& context, const SoftmaxBackwardArgs& args) {
  if (args.rows == 0 || args.cols == 0) return;
  DispatchFloat(args.dtype, "softmax_backward", [&]<typename T>() {
    args.log ? SoftmaxBackward<true, T>(context, args) : SoftmaxBackward<false, T>(context, args);
  });
}

}  // namespace apogee::cuda
