// SPDX-License-Identifier: Apache-2.0

// float8_encode, float8_decode and float8_scale.
#include <algorithm>
#include <atomic>
#include <bit>

#include "apogee/tensor/cpu/kernels.h"
#include "apogee/tensor/cpu/loops.h"

namespace apogee::cpu {
namespace {

template <typename X, typename Y>
void Encode(const DeviceContext& context, const Float8EncodeArgs& args) {
  const X* const x = static_cast<const X*>(args.x);
  Y* const y = static_cast<Y*>(args.y);
  ForElements(context, args.n,
              [=, scalar = args.scale, overflow = args.overflow](int64_t begin, int64_t end) {
                const auto scale = static_cast<ComputeType<X>>(ReadScalar(scalar));
                for (int64_t i = begin; i < end; ++i) y[i] = Y(Load(x[i]) * scale, overflow);
              });
}

// C: the compute type, in which a power of two and its inverse are exact.
template <typename C, typename X, typename Y>
void Decode(const DeviceContext& context, const Float8DecodeArgs& args) {
  const X* const x = static_cast<const X*>(args.x);
  Y* const y = static_cast<Y*>(args.y);
  ForElements(context, args.n, [=, scalar = args.scale](int64_t begin, int64_t end) {
    const auto inverse = static_cast<C>(1 / ReadScalar(scalar));
    for (int64_t i = begin; i < end; ++i) y[i] = Cast<Y>(static_cast<C>(x[i]) * inverse);
  });
}

// The magnitudes' bits are compared, in whose order NaN comes last. So the largest one tells
// whether there is a NaN or an infinity, and a maximum has the same bits for every split.
template <typename X>
void Scale(const DeviceContext& context, const Float8ScaleArgs& args) {
  using C = ComputeType<X>;
  using Bits = typename FloatFields<C>::Bits;
  if (context.is_dry()) return;
  const X* const x = static_cast<const X*>(args.x);
  std::atomic<Bits> largest = 0;
  ForElements(context, args.n, [x, &largest](int64_t begin, int64_t end) {
    Bits here = 0;
    for (int64_t i = begin; i < end; ++i) {
      here = std::max(here, std::bit_cast<Bits>(Load(x[i])) & FloatFields<C>::kMagnitude);
    }
    Bits known = largest.load();
    while (known < here && !largest.compare_exchange_weak(known, here)) {
    }
  });
  DispatchFloat8(args.stored, "float8_scale", [&]<typename Stored>() {
    *static_cast<C*>(args.scale) = Float8Scale<Stored>(std::bit_cast<C>(largest.load()));
  });
}

}  // namespace

void float8_encode(const DeviceContext& context, const Float8EncodeArgs& args) {
  DispatchFloat(args.x_dtype, "float8_encode", [&]<typename X>() {
    DispatchFloat8(args.y_dtype, "float8_encode",
                   [&]<typename Y>() { Encode<X, Y>(context, args); });
  });
}

void float8_decode(const DeviceContext& context, const Float8DecodeArgs& args) {
  DispatchFloat8(args.x_dtype, "float8_decode", [&]<typename X>() {
    DispatchFloat(args.y_dtype, "float8_decode", [&]<typename Y>() {
      args.scale.dtype == DType::kF64 ? Decode<double, X, Y>(context, args)
                                      : Decode<float, X, Y>(context, args);
    });
  });
}

void float8_scale(const DeviceContext& context, const Float8ScaleArgs& args) {
  DispatchFloat(args.x_dtype, "float8_scale", [&]<typename X>() { Scale<X>(context, args); });
}

}  // namespace apogee::cpu
