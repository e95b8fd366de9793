// SPDX-License-Identifier: Apache-2.0

// Fused scaled dot-product attention (Vaswani et al., 2017) and rotary positions (Su et al., 2021).
// Attention is computed in blocks as in FlashAttention (Dao et al., 2022): no tokens × tokens
// matrix is kept.
//
//   // GPT-2: qkv [B, T, 3 * D]
//   Tensor out = autograd::PackedAttention(qkv, /*num_heads=*/6);
//   // Llama: q [B, T, H, d], k and v [B, T, K, d]
//   Tensor out = autograd::Attention(autograd::Rotary(q), autograd::Rotary(k), v);
//   // With padding (u8 [B, 1, 1, S], 1 for a word), or a sliding window:
//   Tensor out = autograd::Attention(q, k, v, {.causal = false, .mask = is_word});
//   Tensor out = autograd::Attention(q, k, v, {.window = 1024});
//   // Documents packed into one sequence; starts: i64 [B, T], where each token's document begins.
//   Tensor out = autograd::Attention(q, k, v, {.first_keys = starts});
//
// Shapes: B batch, T query tokens, S key tokens, H heads, K key/value heads, d head size, D = H d.
// A mismatch of shapes or dtypes throws Error.
#ifndef APOGEE_AUTOGRAD_FUNCTIONS_ATTENTION_H_
#define APOGEE_AUTOGRAD_FUNCTIONS_ATTENTION_H_

#include "apogee/tensor/ops/nn.h"

namespace apogee::autograd {

using ops::AttentionOptions;
using ops::RotaryOptions;

// q [B, T, H, d], k and v [B, S, K, d] -> [B, T, H, d]. K divides H (grouped queries). A floating
// options.mask gets a gradient, if it is in a graph.
Tensor Attention(const Tensor& q, const Tensor& k, const Tensor& v,
                 const AttentionOptions& options = {});
// qkv [B, T, 3 * D] -> [B, T, D]. The thirds of the last dim are q, k and v, of num_heads heads
// each. The gradient is written into one packed tensor, without copies.
Tensor PackedAttention(const Tensor& qkv, int64_t num_heads, const AttentionOptions& options = {});
// The three thirds of qkv as views, each [B, T, H, d]. Backward copies their gradients into one
// packed tensor.
ops::Qkv UnpackQkv(const Tensor& qkv, int64_t num_heads);
// Rotate-half positions on x [B, T, H, d]; d, or options.dims, is even.
Tensor Rotary(const Tensor& x, const RotaryOptions& options = {});

}  // namespace apogee::autograd

#endif  // APOGEE_AUTOGRAD_FUNCTIONS_ATTENTION_H_
