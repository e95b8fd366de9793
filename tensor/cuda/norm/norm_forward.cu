// SPDX-License-Identifier: Apache-2.0

// Layer norm and RMS norm. Rows stay in registers between three passes: for the mean, for the
// deviations from it, and for y.
#include <cmath>

#include "apogee/tensor/cuda/attention/held_row.cuh"
#include "apogee/tensor/cuda/device/rows.cuh"
#include "apogee/tensor/cuda/kernels.h"

namespace apogee::cuda {
namespace {

template <typename T, bool kRms, int kWidth, int kTeam>
__global__ void __launch_bounds__(kRowThreads) ForwardKernel(NormForwardArgs args) {
  using C = ComputeType<T>;
  const int64_t cols = args.cols;
  const C inverse_cols = C(1) / static_cast<C>(cols);
  const T* weight = static_cast<const T*>(args.weight);
  const T* bias = static_cast<const T*>(args.bias);
  const C weight_offset = static_cast<C>(args.weight_offset);
  for (int64_t r = FirstRow<kTeam>(); r < args.rows; r += RowStep<kTeam>()) {
    const HeldRow<T, kWidth, kTeam> row(static_cast<const T*>(args.x) + r * cols, cols);
    C mean = 0;
    if constexpr (!kRms) {
      C sum = 0;
      row.ForEach([&]<int n>(const Vector<T, n>& x, int64_t) {
#pragma unroll
        for (int j = 0; j < n; ++j) sum += Load(x.at + j);
      });
      mean = TeamReduce<kTeam>(sum, Sum()) * inverse_cols;
    }
    C square = 0;
    row.ForEach([&]<int n>(const Vector<T, n>& x, int64_t) {
#pragma unroll
      for (int j = 0; j < n; ++j) {
        const C centered = Load(x.at + j) - mean;
        square += centered * centered;
      }
    });
    square = TeamReduce<kTeam>(square, Sum());
    const C rstd = C(1) / std::sqrt(square * inverse_cols + static_cast<C>(args.eps));
    T* y = static_cast<T*>(args.y) + r * cols;
    row.ForEach([&]<int n>(const Vector<T, n>& x, int64_t i) {
      const Vector<T, n> w = LoadVector<n>(weight + i);
      Vector<T, n> b, out;
      if (bias != nullptr) b = LoadVector<n>(bias + i);
#pragma unroll
      for (int j = 0; j < n; ++j) {
        C value = (Load(x.at + j) - mean) * rstd * (Load(w.at + j) + weight_offset);
        if (bias != nullptr) value += Load(b.at + j);
        out.at[j] = Cast<T>(value);
      }
      StoreVector(y + i, out);
    });
    if (TeamLane<kTeam>() != 0) continue;
    if constexpr (!kRms) static_cast<C*>(args.mean)[r] = mean;
    static_cast<C*>(args.rstd)[r] = rstd;
  }
}

template <typename T>
void NormForward(const DeviceContext& context, const NormForwardArgs& args) {
  // Weights are read with the rows' indices, so both must be aligned to 16 bytes.
  const bool vectors =
      args.cols % kVectorWidth<T> == 0 && IsAligned16(args.x, args.weight, args.bias, args.y);
  DispatchRows<T>(args.cols, vectors, [&]<int kWidth, int kTeam>() {
    Launch(
        context, RowGrid<kTeam>(context, args.rows),
        args.rms ? &ForwardKernel<T, true, kWidth, kTeam> : &ForwardKernel<T, false, kWidth, kTeam>,
        args);
  });
}

}  // namespace

void norm_forward(const DeviceContext& context, const NormForwardArgs& args) {
  if (args.rows == 0) return;
  DispatchFloat(args.dtype, "norm_forward", [&]<typename T>() { NormForward<T>(context, args); });
}

}  // namespace apogee::cuda
