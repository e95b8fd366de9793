// SPDX-License-Identifier: Apache-2.0

// Activations and gated units in vector loops.
#include "apogee/tensor/cuda/activation.cuh"
#include "apogee/tensor/cuda/device/device.cuh"
#include "apogee/tensor/cuda/device/divisor.cuh"
#include "apogee/tensor/cuda/device/launch.cuh"
#include "apogee/tensor/cuda/device/vector_loop.cuh"
#include "apogee/tensor/cuda/kernels.h"

namespace apogee::cuda {
namespace {

template <typename T, typename F>
void ActivationForward(const DeviceContext& context, const ActivationForwardArgs& args) {
  MapVectors(
      context, args.n, static_cast<T*>(args.y),
      [=] __device__(ComputeType<T> x) { return F::Forward(x); }, static_cast<const T*>(args.x));
}

template <typename T, typename F>
void ActivationBackward(const DeviceContext& context, const ActivationBackwardArgs& args) {
  MapVectors(
      context, args.n, static_cast<T*>(args.dx),
      [=] __device__(ComputeType<T> x, ComputeType<T> dy) { return F::Backward(x, dy); },
      static_cast<const T*>(args.x), static_cast<const T*>(args.dy));
}

// The rows of the operands of a gate, and the place of an element in them.
struct GateRows {
  int64_t gate_stride, up_stride;
  WideDivisor cols;

  template <typename Args>
  explicit GateRows(const Args& args)
      : gate_stride(args.gate_stride),
        up_stride(args.up_stride),
        cols(args.cols, args.rows * args.cols) {}
  __device__ __forceinline__ int64_t Gate(int64_t i) const {
    const int64_t row = cols.Divide(i);
    return i + row * (gate_stride - cols.value);
  }
  __device__ __forceinline__ int64_t Up(int64_t i) const {
    const int64_t row = cols.Divide(i);
    return i + row * (up_stride - cols.value);
  }
};

// Whether the vectors of a vector loop are within rows, and aligned.
template <typename T, typename Args, typename... Pointers>
bool GateFitsVectors(const Args& args, Pointers... more) {
  const bool fit =
      args.rows == 1 || (args.cols % kWidth<T> == 0 && args.gate_stride % kWidth<T> == 0 &&
                         args.up_stride % kWidth<T> == 0);
  return fit && IsAligned16(args.gate, args.up, more...);
}

template <typename T, typename F>
void GatedForward(const DeviceContext& context, const GatedForwardArgs& args) {
  const T* gate = static_cast<const T*>(args.gate);
  const T* up = static_cast<const T*>(args.up);
  T* y = static_cast<T*>(args.y);
  const GateRows rows(args);
  ForEachVector<kWidth<T>>(
      context, args.rows * args.cols, GateFitsVectors<T>(args, args.y),
      [=] __device__(int64_t i, auto width) {
        constexpr int kCount = decltype(width)::value;
        const Vector<T, kCount> gates = LoadVector<kCount>(gate + rows.Gate(i));
        const Vector<T, kCount> ups = LoadVector<kCount>(up + rows.Up(i));
        Vector<T, kCount> ys;
#pragma unroll
        for (int k = 0; k < kCount; ++k) {
          ys.at[k] = Cast<T>(F::Forward(Load(gates.at + k)) * Load(ups.at + k));
        }
        StoreVector(y + i, ys);
      });
}

template <typename T, typename F>
void GatedBackward(const DeviceContext& context, const GatedBackwardArgs& args) {
  using C = ComputeType<T>;
  const T* gate = static_cast<const T*>(args.gate);
  const T* up = static_cast<const T*>(args.up);
  const T* dy = static_cast<const T*>(args.dy);
  T* dgate = static_cast<T*>(args.dgate);
  T* dup = static_cast<T*>(args.dup);
  const GateRows rows(args);
  ForEachVector<kWidth<T>>(context, args.rows * args.cols, GateFitsVectors<T>(args, dy, dgate, dup),
                           [=] __device__(int64_t i, auto width) {
                             constexpr int kCount = decltype(width)::value;
                             const Vector<T, kCount> gates =
                                 LoadVector<kCount>(gate + rows.Gate(i));
                             const Vector<T, kCount> ups = LoadVector<kCount>(up + rows.Up(i));
                             const Vector<T, kCount> dys = LoadVector<kCount>(dy + i);
                             Vector<T, kCount> dgates, dups;
#pragma unroll
                             for (int k = 0; k < kCount; ++k) {
                               const C g = Load(gates.at + k), d = Load(dys.at + k);
                               dups.at[k] = Cast<T>(F::Times(g, d));
                               dgates.at[k] = Cast<T>(F::Backward(g, d * Load(ups.at + k)));
                             }
                             StoreVector(dgate + i, dgates);
                             StoreVector(dup + i, dups);
                           });
}

}  // namespace

void activation_forward(const DeviceContext& context, const ActivationForwardArgs& args) {
  DispatchFloat(args.dtype, "activation_forward", [&]<typename T>() {
    DispatchActivation(args.kind, [&]<typename F>() { ActivationForward<T, F>(context, args); });
  });
}

void activation_backward(const DeviceContext& context, const ActivationBackwardArgs& args) {
  DispatchFloat(args.dtype, "activation_backward", [&]<typename T>() {
    DispatchActivation(args.kind, [&]<typename F>() { ActivationBackward<T, F>(context, args); });
  });
}

void gated_forward(const DeviceContext& context, const GatedForwardArgs& args) {
  if (args.rows * args.cols == 0) return;
  DispatchFloat(args.dtype, "gated_forward", [&]<typename T>() {
    DispatchActivation(args.kind, [&]<typename F>() { GatedForward<T, F>(context, args); });
  });
}

void gated_backward(const DeviceContext& context, const GatedBackwardArgs& args) {
  if (args.rows * args.cols == 0) return;
  DispatchFloat(args.dtype, "gated_backward", [&]<typename T>() {
    DispatchActivation(args.kind, [&]<typename F>() { GatedBackward<T, F>(context, args); });
  });
}

}  // namespace apogee::cuda
