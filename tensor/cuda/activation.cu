// SPDX-License-Identifier: Apache-2.0

// Activations and SwiGLU in vector loops.
#include "apogee/tensor/cuda/activation.cuh"
#include "apogee/tensor/cuda/device/device.cuh"
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

template <typename T>
void SwiGluForward(const DeviceContext& context, const SwiGluForwardArgs& args) {
  MapVectors(
      context, args.n, static_cast<T*>(args.y),
      [=] __device__(ComputeType<T> gate, ComputeType<T> up) { return Silu::Forward(gate) * up; },
      static_cast<const T*>(args.gate), static_cast<const T*>(args.up));
}

template <typename T>
void SwiGluBackward(const DeviceContext& context, const SwiGluBackwardArgs& args) {
  using C = ComputeType<T>;
  const T* gate = static_cast<const T*>(args.gate);
  const T* up = static_cast<const T*>(args.up);
  const T* dy = static_cast<const T*>(args.dy);
  T* dgate = static_cast<T*>(args.dgate);
  T* dup = static_cast<T*>(args.dup);
  ForEachVector<kWidth<T>>(context, args.n, IsAligned16(gate, up, dy, dgate, dup),
                           [=] __device__(int64_t i, auto width) {
                             constexpr int kCount = decltype(width)::value;
                             const Vector<T, kCount> gates = ReadVector<kCount>(gate + i);
                             const Vector<T, kCount> ups = ReadVector<kCount>(up + i);
                             const Vector<T, kCount> dys = ReadVector<kCount>(dy + i);
                             Vector<T, kCount> dgates, dups;
#pragma unroll
                             for (int k = 0; k < kCount; ++k) {
                               const C g = Load(gates.at + k), d = Load(dys.at + k), s = Sigmoid(g);
                               dups.at[k] = Cast<T>(d * g * s);
                               dgates.at[k] =
                                   Cast<T>(d * Load(ups.at + k) * s * (C(1) + g * (C(1) - s)));
                             }
                             WriteVector(dgate + i, dgates);
                             WriteVector(dup + i, dups);
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

void swiglu_forward(const DeviceContext& context, const SwiGluForwardArgs& args) {
  DispatchFloat(args.dtype, "swiglu_forward",
                [&]<typename T>() { SwiGluForward<T>(context, args); });
}

void swiglu_backward(const DeviceContext& context, const SwiGluBackwardArgs& args) {
  DispatchFloat(args.dtype, "swiglu_backward",
                [&]<typename T>() { SwiGluBackward<T>(context, args); });
}

}  // namespace apogee::cuda
