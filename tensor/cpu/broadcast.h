// SPDX-License-Identifier: Apache-2.0

// The loop over operands of different shapes (Broadcast). Private to tensor/cpu.
//
//   ForBroadcast<2>(context, args.over, [=](int64_t first, int64_t count, const auto& at) {
//     // out[first + i] from a[at[0] + i * inner stride of a] and b[at[1] + ...], i < count
//   });
#ifndef APOGEE_TENSOR_CPU_BROADCAST_H_
#define APOGEE_TENSOR_CPU_BROADCAST_H_

#include <array>
#include <type_traits>

#include "apogee/tensor/cpu/loops.h"
#include "apogee/tensor/kernels/elementwise_args.h"

namespace apogee::cpu {

// Calls fn(first, count, at) for runs of the innermost dim, on the context's threads.
template <int kOperands, typename Fn>
void ForBroadcast(const DeviceContext& context, const Broadcast& over, const Fn& fn) {
  const int last = over.rank - 1;
  const int64_t cols = over.sizes[last];
  ForElements(context, over.numel(), [&, last, cols](int64_t begin, int64_t end) {
    // The place of `begin`, counted up from row to row.
    int64_t place[Shape::kMaxRank];
    std::array<int64_t, kOperands> at{};
    int64_t rest = begin / cols;
    for (int d = last - 1; d >= 0; --d) {
      place[d] = rest % over.sizes[d];
      rest /= over.sizes[d];
      for (int k = 0; k < kOperands; ++k) at[k] += place[d] * over.strides[k][d];
    }
    int64_t col = begin % cols;
    for (int64_t i = begin; i < end;) {
      const int64_t count = std::min(end - i, cols - col);
      std::array<int64_t, kOperands> first = at;
      for (int k = 0; k < kOperands; ++k) first[k] += col * over.strides[k][last];
      fn(i, count, first);
      i += count;
      col = 0;
      for (int d = last - 1; d >= 0; --d) {
        for (int k = 0; k < kOperands; ++k) at[k] += over.strides[k][d];
        if (++place[d] < over.sizes[d]) break;
        place[d] = 0;
        for (int k = 0; k < kOperands; ++k) at[k] -= over.sizes[d] * over.strides[k][d];
      }
    }
  });
}

// Calls fn with an integral_constant for the operand's innermost stride: 0 (repeated) or 1.
template <typename Fn>
void WithInnerStride(const Broadcast& over, int operand, const Fn& fn) {
  if (over.strides[operand][over.rank - 1] == 0) {
    fn(std::integral_constant<int64_t, 0>());
  } else {
    fn(std::integral_constant<int64_t, 1>());
  }
}

}  // namespace apogee::cpu

#endif  // APOGEE_TENSOR_CPU_BROADCAST_H_
