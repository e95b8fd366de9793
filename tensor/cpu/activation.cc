// SPDX-License-Identifier: Apache-2.0

// Activations and SwiGLU. Each activation is a struct with two functions of one element; the loops
// are shared.
#include <numbers>

#include "apogee/tensor/cpu/kernels.h"
#include "apogee/tensor/cpu/loops.h"
#include "apogee/tensor/cpu/vec_math.h"

namespace apogee::cpu {
namespace {

struct Relu {
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

struct Gelu {
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
struct GeluTanh {
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
};

struct Tanh {
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

struct Logistic {
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

}  // namespace

void activation_forward(const DeviceContext& context, const ActivationForwardArgs& args) {
  DispatchFloat(args.dtype, "activation_forward", [&]<typename T>() {
    DispatchActivation(args.kind, [&]<typename F>() {
      const T* x = static_cast<const T*>(args.x);
      T* y = static_cast<T*>(args.y);
      ForElements(context, args.n, [=](int64_t begin, int64_t end) {
#pragma omp simd
        for (int64_t i = begin; i < end; ++i) y[i] = Cast<T>(F::Forward(Load(x[i])));
      });
    });
  });
}

void activation_backward(const DeviceContext& context, const ActivationBackwardArgs& args) {
  DispatchFloat(args.dtype, "activation_backward", [&]<typename T>() {
    DispatchActivation(args.kind, [&]<typename F>() {
      const T* x = static_cast<const T*>(args.x);
      const T* dy = static_cast<const T*>(args.dy);
      T* dx = static_cast<T*>(args.dx);
      ForElements(context, args.n, [=](int64_t begin, int64_t end) {
#pragma omp simd
        for (int64_t i = begin; i < end; ++i) dx[i] = Cast<T>(F::Backward(Load(x[i]), Load(dy[i])));
      });
    });
  });
}

void swiglu_forward(const DeviceContext& context, const SwiGluForwardArgs& args) {
  DispatchFloat(args.dtype, "swiglu_forward", [&]<typename T>() {
    const T* gate = static_cast<const T*>(args.gate);
    const T* up = static_cast<const T*>(args.up);
    T* y = static_cast<T*>(args.y);
    ForElements(context, args.n, [=](int64_t begin, int64_t end) {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) {
        y[i] = Cast<T>(Silu::Forward(Load(gate[i])) * Load(up[i]));
      }
    });
  });
}

void swiglu_backward(const DeviceContext& context, const SwiGluBackwardArgs& args) {
  DispatchFloat(args.dtype, "swiglu_backward", [&]<typename T>() {
    using C = ComputeType<T>;
    const T* gate = static_cast<const T*>(args.gate);
    const T* up = static_cast<const T*>(args.up);
    const T* dy = static_cast<const T*>(args.dy);
    T* dgate = static_cast<T*>(args.dgate);
    T* dup = static_cast<T*>(args.dup);
    ForElements(context, args.n, [=](int64_t begin, int64_t end) {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) {
        const C g = Load(gate[i]);
        const C d = Load(dy[i]);
        const C s = Sigmoid(g);
        dup[i] = Cast<T>(d * g * s);
        dgate[i] = Cast<T>(d * Load(up[i]) * s * (C(1) + g * (C(1) - s)));
      }
    });
  });
}

}  // namespace apogee::cpu
