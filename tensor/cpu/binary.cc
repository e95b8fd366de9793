// SPDX-License-Identifier: Apache-2.0

// binary and where: element-wise kernels of several operands, which may be repeated along dims.
#include "apogee/tensor/cpu/broadcast.h"
#include "apogee/tensor/cpu/kernels.h"
#include "apogee/tensor/cpu/loops.h"

namespace apogee::cpu {
namespace {

template <BinaryOp op, typename C>
auto Apply(C a, C b) {
  if constexpr (op == BinaryOp::kAdd) return a + b;
  if constexpr (op == BinaryOp::kSub) return a - b;
  if constexpr (op == BinaryOp::kMul) return a * b;
  if constexpr (op == BinaryOp::kDiv) return a / b;
  if constexpr (op == BinaryOp::kMax) return a != a || a > b ? a : b;
  if constexpr (op == BinaryOp::kMin) return a != a || a < b ? a : b;
  if constexpr (op == BinaryOp::kLess) return static_cast<uint8_t>(a < b);
  if constexpr (op == BinaryOp::kLessEqual) return static_cast<uint8_t>(a <= b);
  if constexpr (op == BinaryOp::kEqual) return static_cast<uint8_t>(a == b);
}

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
  using Out = std::conditional_t<IsComparison(op), uint8_t, T>;
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
  switch (args.op) {
    case BinaryOp::kAdd:
      return BinaryOfType<BinaryOp::kAdd>(context, args);
    case BinaryOp::kSub:
      return BinaryOfType<BinaryOp::kSub>(context, args);
    case BinaryOp::kMul:
      return BinaryOfType<BinaryOp::kMul>(context, args);
    case BinaryOp::kDiv:
      return BinaryOfType<BinaryOp::kDiv>(context, args);
    case BinaryOp::kMax:
      return BinaryOfType<BinaryOp::kMax>(context, args);
    case BinaryOp::kMin:
      return BinaryOfType<BinaryOp::kMin>(context, args);
    case BinaryOp::kLess:
      return BinaryOfType<BinaryOp::kLess>(context, args);
    case BinaryOp::kLessEqual:
      return BinaryOfType<BinaryOp::kLessEqual>(context, args);
    case BinaryOp::kEqual:
      return BinaryOfType<BinaryOp::kEqual>(context, args);
  }
}

// Moves the bits of the chosen element, so dtypes of one size share a loop.
void where(const DeviceContext& context, const WhereArgs& args) {
  const auto run = [&]<typename T>() {
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
  };
  switch (DTypeSize(args.dtype)) {
    case 1:
      return run.template operator()<uint8_t>();
    case 2:
      return run.template operator()<uint16_t>();
    case 4:
      return run.template operator()<uint32_t>();
    default:
      return run.template operator()<uint64_t>();
  }
}

}  // namespace apogee::cpu
