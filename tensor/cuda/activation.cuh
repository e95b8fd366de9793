// SPDX-License-Identifier: Apache-2.0

// The formulas of the activations, the same as the CPU's (tensor/cpu/activation.cc). Private to
// tensor/cuda.
//
//   DispatchActivation(kind, [&]<typename F>() {
//     y = F::Forward(x);
//     dx = F::Backward(x, dy);
//     dup = F::Times(gate, dy);
//   });
#ifndef APOGEE_TENSOR_CUDA_ACTIVATION_CUH_
#define APOGEE_TENSOR_CUDA_ACTIVATION_CUH_

#include <cmath>
#include <numbers>

#include "apogee/tensor/kernels/args.h"

namespace apogee::cuda {

// The fast division of f32 is off by at most 2 ulp here, and keeps the loops bound by memory.
__device__ __forceinline__ float Sigmoid(float x) { return __fdividef(1.0f, 1.0f + std::exp(-x)); }
__device__ __forceinline__ double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// d times the activation of x, the gradient of what a gate lets through.
template <typename F>
struct Product {
  template <typename C>
  static __device__ C Times(C x, C d) {
    return d * F::Forward(x);
  }
};

struct Relu : Product<Relu> {
  // Written so that NaN stays NaN.
  template <typename C>
  static __device__ C Forward(C x) {
    return x < 0 ? C(0) : x;
  }
  template <typename C>
  static __device__ C Backward(C x, C dy) {
    return x <= 0 ? C(0) : dy;
  }
};

struct Gelu : Product<Gelu> {
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

// 0.5 (1 + tanh(u)) = sigmoid(2 u): one exp, and no cancellation for negative x.
struct GeluTanh : Product<GeluTanh> {
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
  template <typename C>
  static __device__ C Times(C x, C d) {
    return d * x * Sigmoid(x);
  }
};

struct Tanh : Product<Tanh> {
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

struct Logistic : Product<Logistic> {
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

}  // namespace apogee::cuda

#endif  // APOGEE_TENSOR_CUDA_ACTIVATION_CUH_
