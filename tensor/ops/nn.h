// SPDX-License-Identifier: Apache-2.0

// The fused ops of transformer layers: norms, rotary positions, attention, embedding, cross
// entropy, and random initial values. No gradient is recorded here (see autograd/functions).
//
//   auto [y, mean, rstd] = ops::NormForward(x, weight, bias, 1e-5, /*rms=*/false);
//   auto [out, lse] = ops::AttentionForward({q, k, v}, {.scale = 0.125, .causal = true});
//
// Shapes: B batch, T query tokens, S key tokens, H heads, K key/value heads, d head size, V
// vocabulary. A mismatch of shapes, dtypes or devices throws Error. On a GPU the work is queued,
// but indices (ids, targets) are checked on the host, which waits for them.
#ifndef APOGEE_TENSOR_OPS_NN_H_
#define APOGEE_TENSOR_OPS_NN_H_

#include <optional>
#include <vector>

#include "apogee/core/rng.h"
#include "apogee/tensor/tensor.h"

namespace apogee::ops {

// mean (undefined for an RMS norm) and rstd have one element per row, of f32 (f64 for f64).
struct NormResult {
  Tensor y, mean, rstd;
};
// Norms the last dim of x: an RMS norm if `rms` (the bias must be undefined), else a layer norm
// (an undefined bias: none). The factors are weight + weight_offset, added in f32 (f64 for f64).
NormResult NormForward(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps,
                       bool rms, double weight_offset = 0);

struct NormGrads {
  Tensor dx, dweight, dbias;
};
// dbias is computed if `bias`. dweight and dbias have `param_grad_dtype`.
NormGrads NormBackward(const Tensor& x, const Tensor& weight, const Tensor& mean,
                       const Tensor& rstd, const Tensor& dy, bool rms, bool bias,
                       DType param_grad_dtype, double weight_offset = 0);

struct RotaryOptions {
  double theta = 10000.0;
  int64_t first_position = 0;
  bool inverse = false;
  // Tokens from jump_at on are `jump` positions further, for a tensor that holds two runs of
  // tokens of a sequence.
  int64_t jump_at = 0, jump = 0;
  // i64 [B, T]: the position of each token, for packed documents whose positions start anew. The
  // fields first_position, jump_at and jump are then not used.
  Tensor positions = {};
  // Only the first `dims` elements of each head rotate, as a head of that size would; the others
  // are copied. Even, at most d. 0: all d.
  int64_t dims = 0;
  // The angle of each pair between two neighbouring positions, in place of theta^(-2i / dims): one
  // per pair, so half as many as elements that rotate. Empty: none. A model that scales its
  // rotary positions for longer sequences gives them.
  std::vector<double> inverse_frequencies = {};
};
// Rotate-half positions on x [B, T, H, d]; d, or options.dims, is even.
Tensor Rotary(const Tensor& x, const RotaryOptions& options);

// q [B, T, H, d], k and v [B, S, K, d]. The last dim is contiguous, the others may be strided.
struct Qkv {
  Tensor q, k, v;
};
struct AttentionOptions {
  double scale = 0;  // 0: 1 / sqrt(d)
  bool causal = true;
  // The results (out; dq, dk and dv) are f32 (f64 for f64), not q's dtype: the caller adds several
  // of them and rounds the sum once.
  bool wide = false;
  // Above 0: a query sees only the last `window` of the keys that it sees under `causal`, which
  // must be true (a sliding window).
  int64_t window = 0;
  // Broadcasts to [B, H, T, S]. u8: a query sees the keys of value 1, not those of 0. Of q's dtype:
  // added to the scaled scores (a bias); -inf hides a key. A query that sees no key gets zeros.
  // Needs scale >= 0.
  Tensor mask = {};
  // i64 [B, T]: query i of sample b sees only the keys from first_keys[b, i] on (documents that are
  // packed into one sequence). 0 or below: all that it would see anyway; S or above: none. Tiles
  // that no query sees are skipped (tensor/kernels/attention_args.h). Needs scale >= 0. The
  // elements must not change before backward has run.
  Tensor first_keys = {};
  // Above 0: the scaled scores s become soft_cap * tanh(s / soft_cap), before the mask is added and
  // keys are hidden. 0: they stay as they are.
  double soft_cap = 0;
};
// out is [B, T, H, d] and contiguous. lse [B, H, T] is the log-sum-exp of the scaled, capped and
// masked scores.
struct AttentionResult {
  Tensor out, lse;
};
AttentionResult AttentionForward(const Qkv& qkv, const AttentionOptions& options);
// Writes dq, dk and dv into `grads`, which may be views of one packed buffer. forward.out has q's
// dtype, even if the gradients are wide. Returns the gradient of a floating mask if `wants_dmask`,
// else an undefined tensor.
Tensor AttentionBackward(const Qkv& qkv, const AttentionResult& forward, const Tensor& dout,
                         const AttentionOptions& options, const Qkv& grads,
                         bool wants_dmask = false);
// Joins attention over two sets of keys (ring attention). For the same queries, `sum` becomes the
// attention over its own keys and those of `part`. Both outs are wide and may be slices over the
// queries. A lse of -inf means that there were no keys.
void AttentionMerge(const AttentionResult& sum, const AttentionResult& part);

// The part of a vocabulary of `vocab_size` ids that the rows or columns of a tensor hold: the ids
// from `first` on. Rows or columns from vocab_size on are padding.
struct VocabPart {
  int64_t first = 0;
  int64_t vocab_size = 0;
};

// The rows of weight [V, d] that `ids` (i64 [..]) name -> [.., d]. Throws Error for an id outside
// [0, V). If `weight` is only a `part` of the table, ids of other parts give zeros, and an id
// outside [0, vocab_size) throws.
Tensor EmbeddingForward(const Tensor& ids, const Tensor& weight,
                        const std::optional<VocabPart>& part = {});
// The gradient of the `vocab` rows from `first` on: [vocab, d]. Ids equal to padding_id add nothing
// to it; -1: there is none.
Tensor EmbeddingBackward(const Tensor& ids, const Tensor& dy, int64_t vocab, DType grad_dtype,
                         int64_t first = 0, int64_t padding_id = -1);

struct CrossEntropyResult {
  Tensor loss;  // scalar: the mean over the targets that are not ignored; NaN if all are (PyTorch)
  Tensor lse;   // one per row
  int64_t num_targets;
};
// logits [.., V], targets i64 [..] in [0, V) or ignore_index. With label smoothing in [0, 1], a
// target stands for probabilities: smoothing / V for every class, and the rest for the target.
CrossEntropyResult CrossEntropyForward(const Tensor& logits, const Tensor& targets,
                                       int64_t ignore_index, double label_smoothing = 0);
// The gradient of the logits:
//   dlogits = grad / num_targets * (softmax(logits) - onehot(targets))
// `grad` is the gradient of the loss, a scalar that the device reads. Overwrites the logits if
// nothing else owns them.
Tensor CrossEntropyBackward(Tensor logits, const Tensor& targets, const Tensor& lse,
                            int64_t ignore_index, const Tensor& grad, int64_t num_targets,
                            double label_smoothing = 0);

// Fill a contiguous tensor with elements of the random stream `key`, from first_element on. See
// RandomArgs.
void FillNormal(const Tensor& y, double mean, double std, PhiloxKey key, int64_t first_element = 0);
void FillUniform(const Tensor& y, double low, double high, PhiloxKey key,
                 int64_t first_element = 0);

}  // namespace apogee::ops

#endif  // APOGEE_TENSOR_OPS_NN_H_
