// SPDX-License-Identifier: Apache-2.0

// The fused ops of transformer layers: norms, rotary positions, attention, embedding, cross
// entropy. Shapes: B batch, T tokens, H heads, K key/value heads, d = head size. No gradient is
// recorded here.
//
//   auto [y, mean, rstd] = ops::LayerNormForward(x, weight, bias, 1e-5);
//   auto [out, lse] = ops::AttentionForward({q, k, v}, {.scale = 0.125, .causal = true});
#ifndef APOGEE_TENSOR_OPS_NN_H_
#define APOGEE_TENSOR_OPS_NN_H_

#include <optional>

#include "apogee/core/rng.h"
#include "apogee/tensor/tensor.h"

namespace apogee::ops {

struct NormResult {
  Tensor y, mean,
      rstd;  // mean is undefined for RMS norm; mean and rstd are f32 (f64 for f64), one per row
};
// Over the last dim of x. An undefined bias makes it an RMS norm when `rms`, else a norm without
// bias.
NormResult NormForward(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps,
                       bool rms);

struct NormGrads {
  Tensor dx, dweight, dbias;
};
// `bias` says whether dbias is wanted. dweight and dbias have `param_grad_dtype`.
NormGrads NormBackward(const Tensor& x, const Tensor& weight, const Tensor& mean,
                       const Tensor& rstd, const Tensor& dy, bool rms, bool bias,
                       DType param_grad_dtype);

struct RotaryOptions {
  double theta = 10000.0;
  int64_t first_position = 0;
  bool inverse = false;
  // Tokens from jump_at on are so many positions further: two runs of a sequence.
  int64_t jump_at = 0, jump = 0;
};
// Rotate-half positions on x [B, T, H, d], d even.
Tensor Rotary(const Tensor& x, const RotaryOptions& options);

// Views of q [B, T, H, d] and k, v [B, S, K, d]; the last dim is contiguous, the rest may be
// strided.
struct Qkv {
  Tensor q, k, v;
};
struct AttentionOptions {
  double scale = 0;  // 0: 1 / sqrt(d)
  bool causal = true;
  // Results (out; dq, dk and dv) are addends of sums that are to be rounded once: they are f32 (f64
  // for f64).
  bool wide = false;
};
struct AttentionResult {
  Tensor out, lse;  // [B, T, H, d] contiguous; [B, H, T]
};
AttentionResult AttentionForward(const Qkv& qkv, const AttentionOptions& options);
// Writes dq, dk, dv into `grads`, which may be views of one packed buffer. forward.out is rounded
// to q's dtype also when the gradients are wide.
void AttentionBackward(const Qkv& qkv, const AttentionResult& forward, const Tensor& dout,
                       const AttentionOptions& options, const Qkv& grads);
// Attention over keys in parts: `sum` becomes that over its keys and those of `part`, for the same
// queries. Both outs wide; views of queries are allowed. A lse of -inf stands for no keys.
void AttentionMerge(const AttentionResult& sum, const AttentionResult& part);

// Which part of a vocabulary of `vocab_size` ids a tensor's rows or columns hold: those from
// `first` on, as many as it has. What lies beyond vocab_size is padding.
struct VocabPart {
  int64_t first = 0;
  int64_t vocab_size = 0;
};

// weight [V, d] rows of ids (i64, any shape) -> [.., d]. Throws Error for an id outside [0, V). For
// a `part` of the table: zeros for ids of other parts, Error for one outside [0, vocab_size).
Tensor EmbeddingForward(const Tensor& ids, const Tensor& weight,
                        const std::optional<VocabPart>& part = {});
// [vocab, d]: the gradient of the rows from `first` on.
Tensor EmbeddingBackward(const Tensor& ids, const Tensor& dy, int64_t vocab, DType grad_dtype,
                         int64_t first = 0);

struct CrossEntropyResult {
  Tensor loss;  // scalar, mean over the targets that are not ignored (NaN if all are, as PyTorch)
  Tensor lse;   // one per row
  int64_t num_targets;
};
// logits [.., V], targets i64 [..] in [0, V) or ignore_index.
CrossEntropyResult CrossEntropyForward(const Tensor& logits, const Tensor& targets,
                                       int64_t ignore_index);
// grad / num_targets * (softmax - onehot), `grad` being the loss' gradient: a scalar, which the
// host does not read. Overwrites logits when nothing else owns them.
Tensor CrossEntropyBackward(Tensor logits, const Tensor& targets, const Tensor& lse,
                            int64_t ignore_index, const Tensor& grad, int64_t num_targets);

// Fills a contiguous tensor from the stream `key`; see RandomArgs.
void FillNormal(const Tensor& y, double mean, double std, PhiloxKey key, int64_t first_element = 0);
void FillUniform(const Tensor& y, double low, double high, PhiloxKey key,
                 int64_t first_element = 0);

}  // namespace apogee::ops

#endif  // APOGEE_TENSOR_OPS_NN_H_
