// SPDX-License-Identifier: Apache-2.0

// The arguments of attention's kernels; args.h has those of the others, and the conventions.
//
//   context.kernels().attention_forward(context, {.dtype = dtype, .q = q, .k = k, .v = v, ...});
#ifndef APOGEE_TENSOR_KERNELS_ATTENTION_ARGS_H_
#define APOGEE_TENSOR_KERNELS_ATTENTION_ARGS_H_

#include <cstdint>

#include "apogee/core/dtype.h"

namespace apogee {

// A strided operand of attention, [batch, tokens, heads, head_dim]. head_dim is contiguous.
struct AttentionOperand {
  void* data;
  int64_t batch_stride, token_stride, head_stride;
};

// A mask of the scores [batch, heads, q_tokens, kv_tokens], with strides of 0 along the dims over
// which it is repeated. u8: a key of value 0 is not seen. A floating dtype, that of q: the numbers
// are added to the scaled scores. Null: none.
struct AttentionMask {
  const void* data = nullptr;
  DType dtype = DType::kU8;
  int64_t strides[4] = {};
};

// The documents of packed sequences: query i of sample b sees only keys from at(b, i) on, where
// at(b, i) = data[b * batch_stride + i]. Below 1: no key is left out; kv_tokens or more: the query
// sees no key. Null: none.
//
// A document gets the results that it would get alone, up to rounding; on the CPU with the same
// bits (but for signs of zeros) if it begins at a multiple of 64 in queries and keys. Tiles of 64
// keys that no query of a tile of 64 sees cost nothing: causal attention over documents of L tokens
// takes a time of T (L + 64) for T tokens, not of T^2.
struct FirstKeys {
  const int64_t* data = nullptr;
  int64_t batch_stride = 0;
};

// Per head, without keeping the scores:
//   out = softmax(cap(scale * q k^T) + mask) v
//   cap(s) = soft_cap * tanh(s / soft_cap), or s if soft_cap is 0
// Query head h reads key/value head h / (heads / kv_heads). Causal: query i sees the keys
// j <= i + kv_tokens - q_tokens; of these, with a window above 0, the last `window` ones. A query
// that sees no key gets zeros. lse [batch, heads, q_tokens], f32 (f64 for f64), is the log-sum-exp
// of the masked scores; backward needs it. wide: out is f32 (f64 for f64).
struct AttentionForwardArgs {
  DType dtype;
  AttentionOperand q, k, v, out;
  void* lse;
  int64_t batch, heads, kv_heads, q_tokens, kv_tokens, head_dim;
  double scale;
  bool causal;
  bool wide = false;
  int64_t window = 0;
  AttentionMask mask = {};
  FirstKeys first_keys = {};
  double soft_cap = 0;
};
// Overwrites dq, dk and dv, which may be interleaved in one packed buffer. wide: they are f32 (f64
// for f64). dmask [batch, heads, q_tokens, kv_tokens], of the mask's floating dtype, is the
// gradient of the masked scores; it is zeroed before, and may be null.
struct AttentionBackwardArgs {
  DType dtype;
  AttentionOperand q, k, v, out, dout, dq, dk, dv;
  const void* lse;
  int64_t batch, heads, kv_heads, q_tokens, kv_tokens, head_dim;
  double scale;
  bool causal;
  bool wide = false;
  int64_t window = 0;
  AttentionMask mask = {};
  FirstKeys first_keys = {};
  void* dmask = nullptr;
  double soft_cap = 0;
};
// Joins attention over two sets of keys into attention over both. With
//   l = log(exp(sum_lse) + exp(part_lse))
// this sets
//   sum     = exp(sum_lse - l) * sum + exp(part_lse - l) * part
//   sum_lse = l
// Nothing changes where both are -inf. All have `dtype`, f32 or f64. part_lse [batch, heads,
// tokens] is contiguous. sum_lse may be a slice over the tokens, with strides sum_lse_batch and
// sum_lse_head.
struct AttentionMergeArgs {
  DType dtype;
  AttentionOperand sum, part;
  void* sum_lse;
  const void* part_lse;
  int64_t sum_lse_batch, sum_lse_head;
  int64_t batch, tokens, heads, head_dim;
};

}  // namespace apogee

#endif  // APOGEE_TENSOR_KERNELS_ATTENTION_ARGS_H_
