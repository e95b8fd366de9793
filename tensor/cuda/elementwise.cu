// Fill, arithmetic of two operands, scaled addition.
#include "apogee/tensor/cuda/device.cuh"
#include "apogee/tensor/cuda/kernels.h"
#include "apogee/tensor/cuda/launch.cuh"

namespace apogee::cuda {
namespace {

template <typename T>
void Fill(const DeviceContext& context, const FillArgs& args) {
  T* y = static_cast<T*>(args.y);
  T value;
  if constexpr (std::is_integral_v<T> || sizeof(T) > 2) {
    value = static_cast<T>(args.value);
  } else {
    value = static_cast<T>(static_cast<float>(args.value));
  }
  ForEach(context, args.n, [=] __device__(int64_t i) { y[i] = value; });
}

template <BinaryOp kOp, typename C>
__device__ __forceinline__ C Apply(C a, C b) {
  if constexpr (kOp == BinaryOp::kAdd) return a + b;
  if constexpr (kOp == BinaryOp::kSub) return a - b;
  if constexpr (kOp == BinaryOp::kMul) return a * b;
  if constexpr (kOp == BinaryOp::kDiv) return a / b;
}

template <typename T, BinaryOp kOp>
void Binary(const DeviceContext& context, const BinaryArgs& args) {
  const T* a = static_cast<const T*>(args.a);
  const T* b = static_cast<const T*>(args.b);
  T* out = static_cast<T*>(args.out);
  const int64_t period = args.b_period;
  if (period == args.n) {
    ForEach(context, args.n,
            [=] __device__(int64_t i) { out[i] = Cast<T>(Apply<kOp>(Load(a + i), Load(b + i))); });
  } else {
    ForEach(context, args.n, [=] __device__(int64_t i) {
      out[i] = Cast<T>(Apply<kOp>(Load(a + i), Load(b + i % period)));
    });
  }
}

template <typename T>
void BinaryOf(const DeviceContext& context, const BinaryArgs& args) {
  switch (args.op) {
    case BinaryOp::kAdd:
      return Binary<T, BinaryOp::kAdd>(context, args);
    case BinaryOp::kSub:
      return Binary<T, BinaryOp::kSub>(context, args);
    case BinaryOp::kMul:
      return Binary<T, BinaryOp::kMul>(context, args);
    case BinaryOp::kDiv:
      return Binary<T, BinaryOp::kDiv>(context, args);
  }
}

template <typename X, typename Y>
void ScaleAdd(const DeviceContext& context, const ScaleAddArgs& args) {
  using C =
      std::conditional_t<std::is_same_v<X, double> || std::is_same_v<Y, double>, double, float>;
  const X* x = static_cast<const X*>(args.x);
  Y* y = static_cast<Y*>(args.y);
  const C alpha = static_cast<C>(args.alpha), beta = static_cast<C>(args.beta);
  if (args.beta == 0) {
    ForEach(context, args.n,
            [=] __device__(int64_t i) { y[i] = Cast<Y>(alpha * static_cast<C>(Load(x + i))); });
  } else {
    ForEach(context, args.n, [=] __device__(int64_t i) {
      y[i] = Cast<Y>(alpha * static_cast<C>(Load(x + i)) + beta * static_cast<C>(Load(y + i)));
    });
  }
}

}  // namespace

void fill(const DeviceContext& context, const FillArgs& args) {
  DispatchAny(args.dtype, "fill", [&]<typename T>() { Fill<T>(context, args); });
}

void binary(const DeviceContext& context, const BinaryArgs& args) {
  DispatchFloat(args.dtype, "binary", [&]<typename T>() { BinaryOf<T>(context, args); });
}

void scale_add(const DeviceContext& context, const ScaleAddArgs& args) {
  DispatchFloat(args.x_dtype, "scale_add", [&]<typename X>() {
    DispatchFloat(args.y_dtype, "scale_add", [&]<typename Y>() { ScaleAdd<X, Y>(context, args); });
  });
}

}  // namespace apogee::cuda
