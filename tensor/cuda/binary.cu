// SPDX-License-Identifier: Apache-2.0

// binary and where: operands of one shape, or one that is repeated as a whole, in vectors; other
// broadcasts element by element.
#include "apogee/tensor/cuda/device/broadcast.cuh"
#include "apogee/tensor/cuda/device/device.cuh"
#include "apogee/tensor/cuda/device/launch.cuh"
#include "apogee/tensor/cuda/device/vector_loop.cuh"
#include "apogee/tensor/cuda/kernels.h"
#include "apogee/tensor/kernels/binary_functions.h"

namespace apogee::cuda {
namespace {

using binary::Apply;

// Integers are compared as they are.
template <typename T>
__device__ __forceinline__ auto LoadAny(const T* x) {
  if constexpr (std::is_integral_v<T>) {
    return *x;
  } else {
    return Load(x);
  }
}

// A b that is repeated over a. Uses vectors if each lies within one repetition.
template <typename T, BinaryOp kOp>
void BinaryRepeated(const DeviceContext& context, const BinaryArgs& args, int64_t repeated) {
  const T* a = static_cast<const T*>(args.a);
  const T* b = static_cast<const T*>(args.b);
  T* out = static_cast<T*>(args.out);
  const int64_t n = args.over.numel();
  const WideDivisor period(repeated, n);
  const bool vectors = IsAligned16(a, b, out) && repeated % kWidth<T> == 0;
  ForEachVector<kWidth<T>>(context, n, vectors, [=] __device__(int64_t i, auto width) {
    constexpr int kCount = decltype(width)::value;
    Vector<T, kCount> values = LoadVector<kCount>(a + i);
    const Vector<T, kCount> others = LoadVector<kCount>(b + period.Remainder(i));
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      values.at[k] = Cast<T>(Apply<kOp>(Load(values.at + k), Load(others.at + k)));
    }
    StoreVector(out + i, values);
  });
}

template <typename T, BinaryOp kOp>
void Binary(const DeviceContext& context, const BinaryArgs& args) {
  using Out = binary::Result<kOp, T>;
  const Broadcast& over = args.over;
  const T* a = static_cast<const T*>(args.a);
  const T* b = static_cast<const T*>(args.b);
  Out* out = static_cast<Out*>(args.out);
  if constexpr (!IsComparison(kOp)) {
    using C = ComputeType<T>;
    const int64_t n = over.numel(), last = over.rank - 1;
    const bool a_whole = last == 0 && over.strides[0][0] == 1;
    if (a_whole && over.strides[1][0] == 1) {
      return MapVectors(
          context, n, out, [=] __device__(C x, C y) { return Apply<kOp>(x, y); }, a, b);
    }
    if (a_whole && over.strides[1][0] == 0) {
      return MapVectors(
          context, n, out, [=] __device__(C x) { return Apply<kOp>(x, Load(b)); }, a);
    }
    if (last == 1 && over.strides[0][0] == over.sizes[1] && over.strides[0][1] == 1 &&
        over.strides[1][0] == 0) {
      return BinaryRepeated<T, kOp>(context, args, over.sizes[1]);
    }
  }
  ForBroadcast<2>(context, over, [=] __device__(int64_t i, const int64_t(&at)[2]) {
    out[i] = Cast<Out>(Apply<kOp>(LoadAny(a + at[0]), LoadAny(b + at[1])));
  });
}

template <BinaryOp kOp>
void BinaryOfType(const DeviceContext& context, const BinaryArgs& args) {
  if constexpr (IsComparison(kOp)) {
    DispatchAny(args.dtype, "compare", [&]<typename T>() { Binary<T, kOp>(context, args); });
  } else {
    DispatchFloat(args.dtype, "binary", [&]<typename T>() { Binary<T, kOp>(context, args); });
  }
}

template <typename T>
void Where(const DeviceContext& context, const WhereArgs& args) {
  const uint8_t* mask = static_cast<const uint8_t*>(args.mask);
  const T* a = static_cast<const T*>(args.a);
  const T* b = static_cast<const T*>(args.b);
  T* out = static_cast<T*>(args.out);
  ForBroadcast<3>(context, args.over, [=] __device__(int64_t i, const int64_t(&at)[3]) {
    out[i] = mask[at[0]] != 0 ? a[at[1]] : b[at[2]];
  });
}

}  // namespace

void binary(const DeviceContext& context, const BinaryArgs& args) {
  binary::DispatchBinary(args.op, [&](auto op) { BinaryOfType<op()>(context, args); });
}

void where(const DeviceContext& context, const WhereArgs& args) {
  DispatchBits(args.dtype, [&]<typename T>() { Where<T>(context, args); });
}

}  // namespace apogee::cuda
