// SPDX-License-Identifier: Apache-2.0

// Fused scaled dot-product attention (Vaswani et al., 2017; computed block-wise as in
// FlashAttention, Dao et al., 2022: no tokens × tokens matrix is kept) and rotary positions (Su et
// al., 2021).
//
//   Tensor out = autograd::PackedAttention(qkv, /*num_heads=*/6);           // GPT-2: qkv [B, T, 3
//   d] Tensor out = autograd::Attention(Rotary(q), Rotary(k), v);             // Llama: q [B, T, H,
//   d], k [B, T, K, d]
#ifndef APOGEE_AUTOGRAD_FUNCTIONS_ATTENTION_H_
#define APOGEE_AUTOGRAD_FUNCTIONS_ATTENTION_H_

#include "apogee/tensor/ops/nn.h"

namespace apogee::autograd {

using ops::AttentionOptions;
using ops::RotaryOptions;

// q [B, T, H, d], k and v [B, S, K, d], K divides H (grouped queries) -> [B, T, H, d].
Tensor Attention(const Tensor& q, const Tensor& k, const Tensor& v,
                 const AttentionOptions& options = {});
// qkv [B, T, 3 * D], the thirds of the last dim being q, k, v of num_heads heads -> [B, T, D]. The
// gradient is written interleaved, without copies.
Tensor PackedAttention(const Tensor& qkv, int64_t num_heads, const AttentionOptions& options = {});
// The three thirds, each [B, T, H, d]: views, whose gradients are put together again without a sum.
ops::Qkv UnpackQkv(const Tensor& qkv, int64_t num_heads);
// Rotate-half positions on x [B, T, H, d].
Tensor Rotary(const Tensor& x, const RotaryOptions& options = {});

}  // namespace apogee::autograd

#endif  // APOGEE_AUTOGRAD_FUNCTIONS_ATTENTION_H_
