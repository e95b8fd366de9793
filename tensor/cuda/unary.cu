// SPDX-License-Identifier: Apache-2.0

// unary_forward and unary_backward: the functions of tensor/kernels/unary_functions.h in vector
// loops.
#include <cmath>

#include "apogee/tensor/cuda/device/device.cuh"
#include "apogee/tensor/cuda/device/launch.cuh"
#include "apogee/tensor/cuda/device/vector_loop.cuh"
#include "apogee/tensor/cuda/kernels.h"
#include "apogee/tensor/kernels/unary_functions.h"

namespace apogee::cuda {
namespace {

struct Math {
  template <typename C>
  static __host__ __device__ C Exp(C x) {
    return std::exp(x);
  }
  template <typename C>
  static __host__ __device__ C Log(C x) {
    return std::log(x);
  }
  template <typename C>
  static __host__ __device__ C Log1p(C x) {
    return std::log1p(x);
  }
  template <typename C>
  static __host__ __device__ C Sqrt(C x) {
    return std::sqrt(x);
  }
  template <typename C>
  static __host__ __device__ C Tanh(C x) {
    return std::tanh(x);
  }
  template <typename C>
  static __host__ __device__ C Pow(C x, C exponent) {
    return std::pow(x, exponent);
  }
};

template <typename T, typename F>
void Forward(const DeviceContext& context, const UnaryForwardArgs& args, F f) {
  using C = ComputeType<T>;
  MapVectors(
      context, args.n, static_cast<T*>(args.y),
      [=] __device__(C x) { return f.template Forward<Math>(x); }, static_cast<const T*>(args.x));
}

template <typename T, typename F>
void Backward(const DeviceContext& context, const UnaryBackwardArgs& args, F f) {
  using C = ComputeType<T>;
  MapVectors(
      context, args.n, static_cast<T*>(args.dx),
      [=] __device__(C saved, C dy) { return f.template Backward<Math>(saved, dy); },
      static_cast<const T*>(args.saved), static_cast<const T*>(args.dy));
}

}  // namespace

void unary_forward(const DeviceContext& context, const UnaryForwardArgs& args) {
  DispatchFloat(args.dtype, "unary_forward", [&]<typename T>() {
    unary::DispatchUnary(args.op, args.first, args.second,
                         [&](auto f) { Forward<T>(context, args, f); });
  });
}

void unary_backward(const DeviceContext& context, const UnaryBackwardArgs& args) {
  DispatchFloat(args.dtype, "unary_backward", [&]<typename T>() {
    unary::DispatchUnary(args.op, args.first, args.second,
                         [&](auto f) { Backward<T>(context, args, f); });
  });
}

}  // namespace apogee::cuda
