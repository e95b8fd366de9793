// SPDX-License-Identifier: Apache-2.0

// The functions of two elements, one definition for all backends. Private to the backends.
//
//   DispatchBinary(args.op, [&](auto op) { out[i] = Cast<Out>(Apply<op()>(a[i], b[i])); });
#ifndef APOGEE_TENSOR_KERNELS_BINARY_FUNCTIONS_H_
#define APOGEE_TENSOR_KERNELS_BINARY_FUNCTIONS_H_

#include <cstdint>
#include <type_traits>

#include "apogee/core/dtype.h"
#include "apogee/tensor/ops/kinds.h"

namespace apogee::binary {

template <BinaryOp kOp, typename C>
APOGEE_HOST_DEVICE auto Apply(C a, C b) {
  if constexpr (kOp == BinaryOp::kAdd) return a + b;
  if constexpr (kOp == BinaryOp::kSub) return a - b;
  if constexpr (kOp == BinaryOp::kMul) return a * b;
  if constexpr (kOp == BinaryOp::kDiv) return a / b;
  if constexpr (kOp == BinaryOp::kMax) return a != a || a > b ? a : b;
  if constexpr (kOp == BinaryOp::kMin) return a != a || a < b ? a : b;
  if constexpr (kOp == BinaryOp::kLess) return static_cast<uint8_t>(a < b);
  if constexpr (kOp == BinaryOp::kLessEqual) return static_cast<uint8_t>(a <= b);
  if constexpr (kOp == BinaryOp::kEqual) return static_cast<uint8_t>(a == b);
}

// The type of the results for operands of type T.
template <BinaryOp kOp, typename T>
using Result = std::conditional_t<IsComparison(kOp), uint8_t, T>;

// Calls fn with an integral_constant.
template <typename Fn>
void DispatchBinary(BinaryOp op, const Fn& fn) {
  using enum BinaryOp;
  const auto call = [&]<BinaryOp kOp>() { fn(std::integral_constant<BinaryOp, kOp>()); };
  switch (op) {
    case kAdd:
      return call.template operator()<kAdd>();
    case kSub:
      return call.template operator()<kSub>();
    case kMul:
      return call.template operator()<kMul>();
    case kDiv:
      return call.template operator()<kDiv>();
    case kMax:
      return call.template operator()<kMax>();
    case kMin:
      return call.template operator()<kMin>();
    case kLess:
      return call.template operator()<kLess>();
    case kLessEqual:
      return call.template operator()<kLessEqual>();
    case kEqual:
      return call.template operator()<kEqual>();
  }
}

}  // namespace apogee::binary

#endif  // APOGEE_TENSOR_KERNELS_BINARY_FUNCTIONS_H_
