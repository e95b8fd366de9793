// SPDX-License-Identifier: Apache-2.0

// WorkOf: the amount of work of a kernel call, from the sizes in its arguments.
//
//   KernelCall call = WorkOf("softmax_forward", softmax_args);     // flops 0, bytes of x and y
//
// Products, convolutions and attention have overloads. Other kernels are passes over memory: their
// arguments name their sizes with the usual words (`n`, `rows` and `cols`, `outer`, `reduce` and
// `inner`, `chunks`, ...), and an element counts as kPassesOverMemory operands. Arguments without
// any of these words count as one element, so name the sizes of a new kernel as the others do.
#ifndef APOGEE_TENSOR_KERNELS_WORK_H_
#define APOGEE_TENSOR_KERNELS_WORK_H_

#include <algorithm>
#include <array>
#include <cstdint>

#include "apogee/core/kernel_listener.h"
#include "apogee/tensor/kernels/args.h"
#include "apogee/tensor/kernels/attention_args.h"
#include "apogee/tensor/kernels/conv_args.h"

namespace apogee {

// Two operands read, one written.
inline constexpr double kPassesOverMemory = 3;

template <typename... Sizes>
constexpr double SizeProduct(Sizes... sizes) {
  return (static_cast<double>(sizes) * ...);
}

template <typename Args>
double ElementsOf(const Args& a) {
  if constexpr (requires { a.chunks; }) {
    double sum = 0;
    for (const auto& chunk : a.chunks) sum += ElementsOf(chunk);
    return sum;
  } else if constexpr (requires { a.over.numel(); }) {
    return SizeProduct(a.over.numel());
  } else if constexpr (requires { a.shape.numel(); }) {
    return SizeProduct(a.shape.numel());
  } else if constexpr (requires { a.matrix.rows* a.matrix.cols; }) {
    return SizeProduct(a.matrix.batch, a.matrix.rows, a.matrix.cols);
  } else if constexpr (requires { a.rows* a.cols; }) {
    return SizeProduct(a.rows, a.cols);
  } else if constexpr (requires { a.rows* a.units; }) {
    return SizeProduct(a.rows, a.units);
  } else if constexpr (requires { a.rows; }) {
    return SizeProduct(a.rows);
  } else if constexpr (requires { a.n* a.dim; }) {
    return SizeProduct(a.n, a.dim);
  } else if constexpr (requires { a.n; }) {
    return SizeProduct(a.n);
  } else if constexpr (requires { a.outer* a.reduce* a.inner; }) {
    return SizeProduct(a.outer, a.reduce, a.inner);
  } else if constexpr (requires { a.outer* a.size* a.inner; }) {
    return SizeProduct(a.outer, a.size, a.inner);
  } else if constexpr (requires { a.index.outer* a.index.count* a.index.inner; }) {
    return SizeProduct(a.index.outer, a.index.count, a.index.inner);
  } else if constexpr (requires { a.planes* a.window.out_size(); }) {
    return SizeProduct(a.planes, a.window.out_size(), a.window.kernel_size());
  } else if constexpr (requires { a.batch* a.tokens* a.heads* a.head_dim; }) {
    return SizeProduct(a.batch, a.tokens, a.heads, a.head_dim);
  } else if constexpr (requires { a.numel; }) {
    return SizeProduct(a.numel);
  } else if constexpr (requires { a.num_values; }) {
    return SizeProduct(a.num_values);
  } else if constexpr (requires { a.num_bytes; }) {
    return SizeProduct(a.num_bytes);
  } else if constexpr (requires { a.count; }) {
    return SizeProduct(a.count);
  } else {
    return 1;
  }
}

// kU8 for arguments that name no dtype.
template <typename Args>
DType DTypeOf(const Args& a) {
  if constexpr (requires { a.dtype; }) {
    return a.dtype;
  } else if constexpr (requires { a.x_dtype; }) {
    return a.x_dtype;
  } else if constexpr (requires { a.value_dtype; }) {
    return a.value_dtype;
  } else if constexpr (requires { a.error_dtype; }) {
    return a.error_dtype;
  } else if constexpr (requires { a.stat_dtype; }) {
    return a.stat_dtype;
  } else if constexpr (requires { a.scale_dtype; }) {
    return a.scale_dtype;
  } else if constexpr (requires { a.y_dtype; }) {
    return a.y_dtype;
  } else {
    return DType::kU8;
  }
}

template <typename Args>
KernelCall WorkOf(const char* name, const Args& args) {
  const DType dtype = DTypeOf(args);
  const double bytes = kPassesOverMemory * ElementsOf(args) * static_cast<double>(DTypeSize(dtype));
  return {.name = name, .dtype = dtype, .flops = 0, .bytes = bytes};
}

inline KernelCall WorkOf(const char*, const MatMulArgs& a) {
  static constexpr std::array kNames = {"matmul", "matmul_b_transposed", "matmul_a_transposed",
                                        "matmul_both_transposed"};
  const double numel = SizeProduct(a.m, a.k) + SizeProduct(a.k, a.n) + SizeProduct(a.m, a.n);
  return {.name = kNames[(a.a_trans ? 2U : 0U) + (a.b_trans ? 1U : 0U)],
          .dtype = a.dtype,
          .flops = 2 * SizeProduct(a.batch, a.m, a.n, a.k),
          .bytes = SizeProduct(a.batch, DTypeSize(a.dtype)) * numel};
}
inline KernelCall WorkOf(const char* name, const MatMulActivationArgs& a) {
  KernelCall call = WorkOf(name, a.product);
  call.name = name;
  call.bytes += SizeProduct(a.product.batch, a.product.m, a.product.n, DTypeSize(a.product.dtype));
  return call;
}

inline KernelCall WorkOf(const char* name, const MatMulGroupArgs& a) {
  KernelCall all = {.name = name, .dtype = DType::kU8, .flops = 0, .bytes = 0};
  for (int64_t i = 0; i < a.count; ++i) {
    const KernelCall one = WorkOf(name, a.products[i]);
    all = {.name = one.name,
           .dtype = one.dtype,
           .flops = all.flops + one.flops,
           .bytes = all.bytes + one.bytes};
  }
  return all;
}

// `products`: of two matrices, [q_tokens, kv_tokens, head_dim] each.
template <typename Args>
KernelCall WorkOfAttention(const char* name, const Args& a, double products) {
  const auto q = static_cast<double>(a.q_tokens), kv = static_cast<double>(a.kv_tokens);
  double pairs = q * kv;
  if (a.causal) pairs -= std::min(q, kv) * (std::min(q, kv) - 1) / 2;
  if (a.window > 0) pairs = std::min(pairs, q * static_cast<double>(a.window));
  const double numel = SizeProduct(a.batch, a.head_dim) *
                       (SizeProduct(a.heads, a.q_tokens) + SizeProduct(a.kv_heads, a.kv_tokens));
  return {.name = name,
          .dtype = a.dtype,
          .flops = products * 2 * pairs * SizeProduct(a.batch, a.heads, a.head_dim),
          .bytes = products * numel * static_cast<double>(DTypeSize(a.dtype))};
}
inline KernelCall WorkOf(const char* name, const AttentionForwardArgs& a) {
  return WorkOfAttention(name, a, 2);
}
inline KernelCall WorkOf(const char* name, const AttentionBackwardArgs& a) {
  return WorkOfAttention(name, a, 5);
}

template <typename Args>
requires requires(const Args& a) { a.sizes.out_channels; }
KernelCall WorkOf(const char* name, const Args& a) {
  const ConvSizes& s = a.sizes;
  const double outputs = SizeProduct(s.batch, s.out_channels, s.window.out_size());
  const double inputs = SizeProduct(s.batch, s.in_channels, s.window.in_size());
  const double taps = SizeProduct(s.in_channels, s.window.kernel_size()) /
                      static_cast<double>(std::max<int64_t>(1, s.groups));
  return {.name = name,
          .dtype = a.dtype,
          .flops = 2 * outputs * taps,
          .bytes = (outputs + inputs) * static_cast<double>(DTypeSize(a.dtype))};
}

}  // namespace apogee

#endif  // APOGEE_TENSOR_KERNELS_WORK_H_
