// SPDX-License-Identifier: Apache-2.0

// binary and where: element-wise kernels of several operands, which may be repeated along dims.
#include "apogee/tensor/cpu/broadcast.h"
#include "apogee/tensor/cpu/kernels.h"
#include "apogee/tensor/cpu/loops.h"
#include "apogee/tensor/kernels/binary_functions.h"

namespace apogee::cpu {
namespace {

using binary::Apply;

// Integers are compared as they are.
template <typename T>
auto LoadAny(T x) {
  if constexpr (std::is_integral_v<T>) {
    return x;
  } else {
    return Load(x);
  }
}

// The strides of a and b are 0 or 1.
template <BinaryOp op, int64_t a_stride, int64_t b_stride, typename T, typename Out>
void BinarySpan(const T* a, const T* b, Out* out, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    out[i] = Cast<Out>(Apply<op>(LoadAny(a[i * a_stride]), LoadAny(b[i * b_stride])));
  }
}

template <BinaryOp op, typename T>
void BinaryKernel(const DeviceContext& context, const BinaryArgs& args) {
  using Out = binary::Result<op, T>;
  const T* a = static_cast<const T*>(args.a);
  const T* b = static_cast<const T*>(args.b);
  Out* out = static_cast<Out*>(args.out);
  WithInnerStride(args.over, 0, [&](auto a_stride) {
    WithInnerStride(args.over, 1, [&](auto b_stride) {
      ForBroadcast<2>(context, args.over, [=](int64_t i, int64_t count, const auto& at) {
        BinarySpan<op, a_stride, b_stride>(a + at[0], b + at[1], out + i, count);
      });
    });
  });
}

template <BinaryOp op>
void BinaryOfType(const DeviceContext& context, const BinaryArgs& args) {
  if constexpr (IsComparison(op)) {
    DispatchAny(args.dtype, "compare", [&]<typename T>() { BinaryKernel<op, T>(context, args); });
  } else {
    DispatchFloat(args.dtype, "binary", [&]<typename T>() { BinaryKernel<op, T>(context, args); });
  }
}

}  // namespace

void binary(const DeviceContext& context, const BinaryArgs& args) {
  binary::DispatchBinary(args.op, [&](auto op) { BinaryOfType<op()>(context, args); });
}

void where(const DeviceContext& context, const WhereArgs& args) {
  DispatchBits(args.dtype, [&]<typename T>() {
    const uint8_t* mask = static_cast<const uint8_t*>(args.mask);
    const T* a = static_cast<const T*>(args.a);
    const T* b = static_cast<const T*>(args.b);
    T* out = static_cast<T*>(args.out);
    WithInnerStride(args.over, 0, [&](auto mask_stride) {
      WithInnerStride(args.over, 1, [&](auto a_stride) {
        WithInnerStride(args.over, 2, [&](auto b_stride) {
          ForBroadcast<3>(context, args.over, [=](int64_t first, int64_t count, const auto& at) {
#pragma omp simd
            for (int64_t i = 0; i < count; ++i) {
              const T yes = a[at[1] + i * a_stride], no = b[at[2] + i * b_stride];
              out[first + i] = mask[at[0] + i * mask_stride] != 0 ? yes : no;
            }
          });
        });
      });
    });
  });
}

}  // namespace apogee::cpu
