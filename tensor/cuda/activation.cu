// Activations and SwiGLU: the CPU's formulas (tensor/cpu/activation.cc) in vector loops.
#include <numbers>

#include "apogee/tensor/cuda/device.cuh"
#include "apogee/tensor/cuda/kernels.h"
#include "apogee/tensor/cuda/launch.cuh"
#include "apogee/tensor/cuda/vector_loop.cuh"

namespace apogee::cuda {
namespace {

// The quick division of f32 is off by 2 ulp at most here, and keeps the loops bound by memory.
__device__ __forceinline__ float Sigmoid(float x) { return __fdividef(1.0f, 1.0f + std::exp(-x)); }
__device__ __forceinline__ double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

struct Relu {
  // In this form NaN passes.
  template <typename C>
  static __device__ C Forward(C x) {
    return x < 0 ? C(0) : x;
  }
  template <typename C>
  static __device__ C Backward(C x, C dy) {
    return x <= 0 ? C(0) : dy;
  }
};

struct Gelu {
  template <typename C>
  static __device__ C Forward(C x) {
    return C(0.5) * x * (C(1) + std::erf(x * C(0.5 * std::numbers::sqrt2)));
  }
  template <typename C>
  static __device__ C Backward(C x, C dy) {
    constexpr C kInvSqrt2Pi = C(0.5 * std::numbers::sqrt2 * std::numbers::inv_sqrtpi);
    const C cdf = C(0.5) * (C(1) + std::erf(x * C(0.5 * std::numbers::sqrt2)));
    return dy * (cdf + x * kInvSqrt2Pi * std::exp(C(-0.5) * x * x));
  }
};

// 0.5 (1 + tanh(u)) = sigmoid(2 u), which needs one exp and does not cancel for negative x.
struct GeluTanh {
  static constexpr double kTwoSqrt2OverPi = 2 * std::numbers::sqrt2 * std::numbers::inv_sqrtpi;
  static constexpr double kCubic = 0.044715;

  template <typename C>
  static __device__ C Forward(C x) {
    return x * Sigmoid(x * (C(kTwoSqrt2OverPi) + C(kTwoSqrt2OverPi * kCubic) * x * x));
  }
  template <typename C>
  static __device__ C Backward(C x, C dy) {
    const C s = Sigmoid(x * (C(kTwoSqrt2OverPi) + C(kTwoSqrt2OverPi * kCubic) * x * x));
    const C slope = C(kTwoSqrt2OverPi) + C(3 * kTwoSqrt2OverPi * kCubic) * x * x;
    return dy * (s + x * s * (C(1) - s) * slope);
  }
};

struct Silu {
  template <typename C>
  static __device__ C Forward(C x) {
    return x * Sigmoid(x);
  }
  template <typename C>
  static __device__ C Backward(C x, C dy) {
    const C s = Sigmoid(x);
    return dy * s * (C(1) + x * (C(1) - s));
  }
};

struct Tanh {
  template <typename C>
  static __device__ C Forward(C x) {
    return std::tanh(x);
  }
  template <typename C>
  static __device__ C Backward(C x, C dy) {
    const C t = std::tanh(x);
    return dy * (C(1) - t * t);
  }
};

struct Logistic {
  template <typename C>
  static __device__ C Forward(C x) {
    return Sigmoid(x);
  }
  template <typename C>
  static __device__ C Backward(C x, C dy) {
    const C s = Sigmoid(x);
    return dy * s * (C(1) - s);
  }
};

template <typename Fn>
void DispatchActivation(Activation kind, Fn&& fn) {
  switch (kind) {
    case Activation::kRelu:
      return fn.template operator()<Relu>();
    case Activation::kGelu:
      return fn.template operator()<Gelu>();
    case Activation::kGeluTanh:
      return fn.template operator()<GeluTanh>();
    case Activation::kSilu:
      return fn.template operator()<Silu>();
    case Activation::kTanh:
      return fn.template operator()<Tanh>();
    case Activation::kSigmoid:
      return fn.template operator()<Logistic>();
  }
}

template <typename T, typename F>
void Forward(const DeviceContext& context, const ActivationForwardArgs& args) {
  MapVectors(
      context, args.n, static_cast<T*>(args.y),
      [=] __device__(ComputeType<T> x) { return F::Forward(x); }, static_cast<const T*>(args.x));
}

template <typename T, typename F>
void Backward(const DeviceContext& context, const ActivationBackwardArgs& args) {
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
    DispatchActivation(args.kind, [&]<typename F>() { Forward<T, F>(context, args); });
  });
}

void activation_backward(const DeviceContext& context, const ActivationBackwardArgs& args) {
  DispatchFloat(args.dtype, "activation_backward", [&]<typename T>() {
    DispatchActivation(args.kind, [&]<typename F>() { Backward<T, F>(context, args); });
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
