// SPDX-License-Identifier: Apache-2.0

// The functions of one element and their derivatives, one definition for all backends. Private to
// the backends.
//
//   DispatchUnary(args.op, args.first, args.second, [&](auto f) {
//     y = f.template Forward<Math>(x);
//     dx = f.template Backward<Math>(saved, dy);     // saved: x, or y if f.kSavesResult
//   });
//
// Math has the backend's Exp, Log, Log1p, Sqrt, Tanh and Pow for float and double.
#ifndef APOGEE_TENSOR_KERNELS_UNARY_FUNCTIONS_H_
#define APOGEE_TENSOR_KERNELS_UNARY_FUNCTIONS_H_

#include "apogee/core/dtype.h"
#include "apogee/tensor/ops/kinds.h"

namespace apogee::unary {

struct Exp {
  static constexpr bool kSavesResult = true;
  template <typename Math, typename C>
  APOGEE_HOST_DEVICE C Forward(C x) const {
    return Math::Exp(x);
  }
  template <typename Math, typename C>
  APOGEE_HOST_DEVICE C Backward(C y, C dy) const {
    return dy * y;
  }
};

struct Log {
  static constexpr bool kSavesResult = false;
  template <typename Math, typename C>
  APOGEE_HOST_DEVICE C Forward(C x) const {
    return Math::Log(x);
  }
  template <typename Math, typename C>
  APOGEE_HOST_DEVICE C Backward(C x, C dy) const {
    return dy / x;
  }
};

struct Log1p {
  static constexpr bool kSavesResult = false;
  template <typename Math, typename C>
  APOGEE_HOST_DEVICE C Forward(C x) const {
    return Math::Log1p(x);
  }
  template <typename Math, typename C>
  APOGEE_HOST_DEVICE C Backward(C x, C dy) const {
    return dy / (C(1) + x);
  }
};

struct Sqrt {
  static constexpr bool kSavesResult = true;
  template <typename Math, typename C>
  APOGEE_HOST_DEVICE C Forward(C x) const {
    return Math::Sqrt(x);
  }
  template <typename Math, typename C>
  APOGEE_HOST_DEVICE C Backward(C y, C dy) const {
    return C(0.5) * dy / y;
  }
};

// Takes x: the cube of a result that was rounded to 16 bits would be off by a hundredth.
struct Rsqrt {
  static constexpr bool kSavesResult = false;
  template <typename Math, typename C>
  APOGEE_HOST_DEVICE C Forward(C x) const {
    return C(1) / Math::Sqrt(x);
  }
  template <typename Math, typename C>
  APOGEE_HOST_DEVICE C Backward(C x, C dy) const {
    return C(-0.5) * dy / (x * Math::Sqrt(x));
  }
};

struct Abs {
  static constexpr bool kSavesResult = false;
  template <typename Math, typename C>
  APOGEE_HOST_DEVICE C Forward(C x) const {
    return x < 0 ? -x : x == 0 ? C(0) : x;
  }
  template <typename Math, typename C>
  APOGEE_HOST_DEVICE C Backward(C x, C dy) const {
    return x < 0 ? -dy : x == 0 ? C(0) : dy;
  }
};

struct Square {
  static constexpr bool kSavesResult = false;
  template <typename Math, typename C>
  APOGEE_HOST_DEVICE C Forward(C x) const {
    return x * x;
  }
  template <typename Math, typename C>
  APOGEE_HOST_DEVICE C Backward(C x, C dy) const {
    return C(2) * x * dy;
  }
};

// max(x, 0) + log(1 + exp(-|x|)): no exponential overflows.
struct Softplus {
  static constexpr bool kSavesResult = false;
  template <typename Math, typename C>
  APOGEE_HOST_DEVICE C Forward(C x) const {
    return (x < 0 ? C(0) : x) + Math::Log1p(Math::Exp(x < 0 ? x : -x));
  }
  template <typename Math, typename C>
  APOGEE_HOST_DEVICE C Backward(C x, C dy) const {
    return dy / (C(1) + Math::Exp(-x));
  }
};

struct Power {
  static constexpr bool kSavesResult = false;
  double exponent;
  template <typename Math, typename C>
  APOGEE_HOST_DEVICE C Forward(C x) const {
    return Math::Pow(x, C(exponent));
  }
  template <typename Math, typename C>
  APOGEE_HOST_DEVICE C Backward(C x, C dy) const {
    return exponent == 0 ? C(0) : dy * C(exponent) * Math::Pow(x, C(exponent - 1));
  }
};

// Written so that NaN stays NaN.
struct Clamp {
  static constexpr bool kSavesResult = false;
  double low, high;
  template <typename Math, typename C>
  APOGEE_HOST_DEVICE C Forward(C x) const {
    return x < C(low) ? C(low) : x > C(high) ? C(high) : x;
  }
  template <typename Math, typename C>
  APOGEE_HOST_DEVICE C Backward(C x, C dy) const {
    return x < C(low) || x > C(high) ? C(0) : dy;
  }
};

struct SoftCap {
  static constexpr bool kSavesResult = true;
  double cap;
  template <typename Math, typename C>
  APOGEE_HOST_DEVICE C Forward(C x) const {
    return C(cap) * Math::Tanh(x / C(cap));
  }
  template <typename Math, typename C>
  APOGEE_HOST_DEVICE C Backward(C y, C dy) const {
    const C t = y / C(cap);
    return dy * (C(1) - t * t);
  }
};

template <typename Fn>
decltype(auto) DispatchUnary(UnaryOp op, double first, double second, const Fn& fn) {
  switch (op) {
    case UnaryOp::kExp:
      return fn(Exp());
    case UnaryOp::kLog:
      return fn(Log());
    case UnaryOp::kLog1p:
      return fn(Log1p());
    case UnaryOp::kSqrt:
      return fn(Sqrt());
    case UnaryOp::kRsqrt:
      return fn(Rsqrt());
    case UnaryOp::kAbs:
      return fn(Abs());
    case UnaryOp::kSquare:
      return fn(Square());
    case UnaryOp::kSoftplus:
      return fn(Softplus());
    case UnaryOp::kPower:
      return fn(Power{first});
    case UnaryOp::kClamp:
      return fn(Clamp{first, second});
    case UnaryOp::kSoftCap:
      return fn(SoftCap{first});
  }
  __builtin_unreachable();
}

// Whether the derivative follows from the result.
inline bool SavesResult(UnaryOp op) {
  return DispatchUnary(op, 0, 0, [](auto f) { return f.kSavesResult; });
}

}  // namespace apogee::unary

#endif  // APOGEE_TENSOR_KERNELS_UNARY_FUNCTIONS_H_
