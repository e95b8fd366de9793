// SPDX-License-Identifier: Apache-2.0

// The activations and their derivatives, each a struct with functions of one element. Private to
// tensor/cpu.
//
//   DispatchActivation(kind, [&]<typename F>() {
//     y = F::Forward(x);
//     dx = F::Backward(x, dy);
//     dup = F::Times(gate, dy);
//   });
#ifndef APOGEE_TENSOR_CPU_ACTIVATION_FUNCTIONS_H_
#define APOGEE_TENSOR_CPU_ACTIVATION_FUNCTIONS_H_

#include <numbers>

#include "apogee/tensor/cpu/vec_math.h"
#include "apogee/tensor/ops/kinds.h"

namespace apogee::cpu {

// d times the activation of x, the gradient of what a gate lets through.
template <typename F>
struct Product {
  template <typename C>
  static C Times(C x, C d) {
    return d * F::Forward(x);
  }
};

struct Relu : Product<Relu> {
  // Written so that NaN stays NaN.
  template <typename C>
  static C Forward(C x) {
    return x < 0 ? C(0) : x;
  }
  template <typename C>
  static C Backward(C x, C dy) {
    return x <= 0 ? C(0) : dy;
  }
};

struct Gelu : Product<Gelu> {
  template <typename C>
  static C Forward(C x) {
    return C(0.5) * x * (C(1) + FastErf(x * C(0.5 * std::numbers::sqrt2)));
  }
  template <typename C>
  static C Backward(C x, C dy) {
    constexpr C kInvSqrt2Pi = C(0.5 * std::numbers::sqrt2 * std::numbers::inv_sqrtpi);
    const C cdf = C(0.5) * (C(1) + FastErf(x * C(0.5 * std::numbers::sqrt2)));
    return dy * (cdf + x * kInvSqrt2Pi * FastExp(C(-0.5) * x * x));
  }
};

// 0.5 (1 + tanh(u)) = sigmoid(2 u): one exp, and no cancellation for negative x.
struct GeluTanh : Product<GeluTanh> {
  static constexpr double kTwoSqrt2OverPi = 2 * std::numbers::sqrt2 * std::numbers::inv_sqrtpi;
  static constexpr double kCubic = 0.044715;

  template <typename C>
  static C Forward(C x) {
    return x * Sigmoid(x * (C(kTwoSqrt2OverPi) + C(kTwoSqrt2OverPi * kCubic) * x * x));
  }
  template <typename C>
  static C Backward(C x, C dy) {
    const C s = Sigmoid(x * (C(kTwoSqrt2OverPi) + C(kTwoSqrt2OverPi * kCubic) * x * x));
    const C slope = C(kTwoSqrt2OverPi) + C(3 * kTwoSqrt2OverPi * kCubic) * x * x;
    return dy * (s + x * s * (C(1) - s) * slope);
  }
};

struct Silu {
  template <typename C>
  static C Forward(C x) {
    return x * Sigmoid(x);
  }
  template <typename C>
  static C Backward(C x, C dy) {
    const C s = Sigmoid(x);
    return dy * s * (C(1) + x * (C(1) - s));
  }
  template <typename C>
  static C Times(C x, C d) {
    return d * x * Sigmoid(x);
  }
};

struct Tanh : Product<Tanh> {
  template <typename C>
  static C Forward(C x) {
    return FastTanh(x);
  }
  template <typename C>
  static C Backward(C x, C dy) {
    const C t = FastTanh(x);
    return dy * (C(1) - t * t);
  }
};

struct Logistic : Product<Logistic> {
  template <typename C>
  static C Forward(C x) {
    return Sigmoid(x);
  }
  template <typename C>
  static C Backward(C x, C dy) {
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

}  // namespace apogee::cpu

#endif  // APOGEE_TENSOR_CPU_ACTIVATION_FUNCTIONS_H_
