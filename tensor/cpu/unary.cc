// SPDX-License-Identifier: Apache-2.0

// unary_forward and unary_backward: the functions of tensor/kernels/unary_functions.h in loops.
#include <cmath>

#include "apogee/tensor/cpu/kernels.h"
#include "apogee/tensor/cpu/loops.h"
#include "apogee/tensor/cpu/vec_math.h"
#include "apogee/tensor/kernels/unary_functions.h"

namespace apogee::cpu {
namespace {

struct Math {
  template <typename C>
  static inline C Exp(C x) {
    return FastExp(x);
  }
  template <typename C>
  static inline C Log(C x) {
    return FastLogOfAny(x);
  }
  template <typename C>
  static inline C Log1p(C x) {
    return FastLog1p(x);
  }
  template <typename C>
  static inline C Sqrt(C x) {
    return std::sqrt(x);
  }
  template <typename C>
  static inline C Tanh(C x) {
    return FastTanh(x);
  }
  template <typename C>
  static inline C Pow(C x, C exponent) {
    return FastPow(x, exponent);
  }
};

}  // namespace

void unary_forward(const DeviceContext& context, const UnaryForwardArgs& args) {
  DispatchFloat(args.dtype, "unary_forward", [&]<typename T>() {
    unary::DispatchUnary(args.op, args.first, args.second, [&](auto f) {
      const T* x = static_cast<const T*>(args.x);
      T* y = static_cast<T*>(args.y);
      ForElements(context, args.n, [=](int64_t begin, int64_t end) {
        const auto own = f;  // so that its parameters stay in registers
#pragma omp simd
        for (int64_t i = begin; i < end; ++i) {
          y[i] = Cast<T>(own.template Forward<Math>(Load(x[i])));
        }
      });
    });
  });
}

void unary_backward(const DeviceContext& context, const UnaryBackwardArgs& args) {
  DispatchFloat(args.dtype, "unary_backward", [&]<typename T>() {
    unary::DispatchUnary(args.op, args.first, args.second, [&](auto f) {
      const T* saved = static_cast<const T*>(args.saved);
      const T* dy = static_cast<const T*>(args.dy);
      T* dx = static_cast<T*>(args.dx);
      ForElements(context, args.n, [=](int64_t begin, int64_t end) {
        const auto own = f;
#pragma omp simd
        for (int64_t i = begin; i < end; ++i) {
          dx[i] = Cast<T>(own.template Backward<Math>(Load(saved[i]), Load(dy[i])));
        }
      });
    });
  });
}

}  // namespace apogee::cpu
