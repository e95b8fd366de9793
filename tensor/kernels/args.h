// SPDX-License-Identifier: Apache-2.0

// Arguments of every kernel, one struct each: raw pointers, sizes and strides (in elements), never
// a Tensor. The checked functions of tensor/ops fill them in; a backend's kernel table implements
// them.
//
// Conventions: `dtype` is the element type of every void pointer without a dtype of its own;
// kernels compute in ComputeType (f32, or f64 for f64) and round once on the store. Pointers are
// contiguous row-major unless strides are given. No two pointers may alias unless said so. Kernels
// must not throw.
#ifndef APOGEE_TENSOR_KERNELS_ARGS_H_
#define APOGEE_TENSOR_KERNELS_ARGS_H_

#include <cstdint>

#include "apogee/core/dtype.h"
#include "apogee/core/rng.h"
#include "apogee/core/shape.h"

namespace apogee {

// A number that the kernel reads on the device as it runs, so that the host need not wait for it; 1
// where there is none.
struct DeviceScalar {
  const void* value = nullptr;
  DType dtype = DType::kF32;  // floating
};
// For kernels.
constexpr double ReadScalar(const DeviceScalar& scalar) {
  if (scalar.value == nullptr) return 1;
  switch (scalar.dtype) {
    case DType::kF64:
      return *static_cast<const double*>(scalar.value);
    case DType::kBF16:
      return static_cast<double>(static_cast<float>(*static_cast<const BFloat16*>(scalar.value)));
    case DType::kF16:
      return static_cast<double>(static_cast<float>(*static_cast<const Float16*>(scalar.value)));
    default:
      return static_cast<double>(*static_cast<const float*>(scalar.value));
  }
}

// y[i] = value * factor.
struct FillArgs {
  DType dtype;
  void* y;
  int64_t n;
  double value;
  DeviceScalar factor = {};
};

// y = cast(x) between strided layouts of one shape; any pair of dtypes.
struct CopyArgs {
  DType x_dtype, y_dtype;
  const void* x;
  void* y;
  Shape shape;
  int64_t x_strides[Shape::kMaxRank];
  int64_t y_strides[Shape::kMaxRank];
};

enum class BinaryOp { kAdd, kSub, kMul, kDiv };

// out[i] = a[i] op b[i % b_period]; b_period divides n. out may be a.
struct BinaryArgs {
  BinaryOp op;
  DType dtype;
  const void* a;
  const void* b;
  void* out;
  int64_t n, b_period;
};

// y = alpha * x + beta * y; beta == 0 overwrites (NaN in y is ignored then). y may be x.
struct ScaleAddArgs {
  DType x_dtype, y_dtype;
  const void* x;
  void* y;
  int64_t n;
  double alpha, beta;
};

// kGeluTanh: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), GPT-2's; kGelu: with erf.
enum class Activation { kRelu, kGelu, kGeluTanh, kSilu, kTanh, kSigmoid };

struct ActivationForwardArgs {
  Activation kind;
  DType dtype;
  const void* x;
  void* y;
  int64_t n;
};
// dx = dy * f'(x). dx may be dy.
struct ActivationBackwardArgs {
  Activation kind;
  DType dtype;
  const void* x;
  const void* dy;
  void* dx;
  int64_t n;
};

// y = silu(gate) * up.
struct SwiGluForwardArgs {
  DType dtype;
  const void* gate;
  const void* up;
  void* y;
  int64_t n;
};
struct SwiGluBackwardArgs {
  DType dtype;
  const void* gate;
  const void* up;
  const void* dy;
  void* dgate;
  void* dup;
  int64_t n;
};

// y[i] = keep(i) ? x[i] / (1 - p) : 0, where keep(i) is ToUniform(word) > p and word is element
// (first_element + i) of the Philox stream `key` (counter = index / 4, word = index % 4), for rows
// of row_stride elements of which x has the first `row`: (first_element + i / row * row_stride + i
// % row). y may be x. The backward pass is the same kernel on dy.
struct DropoutArgs {
  DType dtype;
  const void* x;
  void* y;
  int64_t n;
  double p;
  PhiloxKey key;
  int64_t first_element;
  int64_t row, row_stride;  // row divides n
};

// y[i] from element (first_element + i) of the stream: kUniform in (low, high], kNormal with mean
// low and standard deviation high (Box-Muller over the word pairs (0,1) and (2,3) of one Philox
// block: elements 4b, 4b+1 are the cosine and sine of the first pair, 4b+2, 4b+3 of the second).
enum class Distribution { kUniform, kNormal };
struct RandomArgs {
  Distribution distribution;
  DType dtype;
  void* y;
  int64_t n;
  PhiloxKey key;
  int64_t first_element;
  double low, high;
};

// y[o, i] = scale * sum_r x[o, r, i] (+ y if accumulate); sums in f32 (f64 for f64) or wider.
struct SumArgs {
  DType x_dtype, y_dtype;
  const void* x;
  void* y;
  int64_t outer, reduce, inner;
  double scale;
  bool accumulate;
};

// Rows of `cols` elements. Softmax backward: dx = y * (dy - sum(dy * y)).
struct SoftmaxForwardArgs {
  DType dtype;
  const void* x;
  void* y;
  int64_t rows, cols;
};
struct SoftmaxBackwardArgs {
  DType dtype;
  const void* y;
  const void* dy;
  void* dx;
  int64_t rows, cols;
};

// y = (x - mean) * rstd * weight + bias per row; rms: y = x * rstd * weight (mean and bias are
// null). weight (and bias) have `dtype`; mean and rstd are f32 (f64 for f64).
struct NormForwardArgs {
  DType dtype;
  bool rms;
  const void* x;
  const void* weight;
  const void* bias;
  void* y;
  void* mean;
  void* rstd;
  int64_t rows, cols;
  double eps;
};
// dweight and dbias have param_grad_dtype and are overwritten; any of dx, dweight, dbias may be
// null.
struct NormBackwardArgs {
  DType dtype, param_grad_dtype;
  bool rms;
  const void* x;
  const void* weight;
  const void* mean;
  const void* rstd;
  const void* dy;
  void* dx;
  void* dweight;
  void* dbias;
  int64_t rows, cols;
};

// Rotate-half rotary embedding of x[batch, tokens, heads, head_dim] (strides of the first three
// dims; head_dim is contiguous): with h = head_dim / 2, f_i = theta^(-2i/head_dim), a =
// (first_position + t) f_i: y_i = x_i cos a - x_{i+h} sin a, y_{i+h} = x_{i+h} cos a + x_i sin a.
// inverse: a -> -a (the backward pass). Tokens from jump_at on are `jump` positions further.
struct RotaryArgs {
  DType dtype;
  const void* x;
  void* y;
  int64_t batch, tokens, heads, head_dim;
  int64_t x_strides[3];
  int64_t y_strides[3];
  double theta;
  int64_t first_position;
  bool inverse;
  int64_t jump_at = 0, jump = 0;
};

// y[i] = weight[ids[i] - first], zeros for an id outside [first, first + vocab): its row is in
// another part of the table. ids are checked by the caller.
struct EmbeddingForwardArgs {
  DType dtype;
  const int64_t* ids;
  const void* weight;
  void* y;
  int64_t n, dim, vocab;
  int64_t first = 0;
};
// dweight[ids[i] - first] += dy[i] for ids in [first, first + vocab); dweight [vocab, dim] of
// grad_dtype is zeroed first. Fixed order of addition per row (i ascending), accumulated in f32 or
// wider.
struct EmbeddingBackwardArgs {
  DType dtype, grad_dtype;
  const int64_t* ids;
  const void* dy;
  void* dweight;
  int64_t n, dim, vocab;
  int64_t first = 0;
};

// c[b] = alpha * op(a[b]) op(b[b]) + beta * c[b] (+ bias over columns), b in [0, batch).
// op(a) is m×k, op(b) k×n, c m×n. a_trans means a is stored k×m; ld* are row strides of the stored
// matrices; *_batch are batch strides (0 shares one matrix). a and b have `dtype`; c and bias their
// own.
struct MatMulArgs {
  DType dtype, c_dtype, bias_dtype;
  const void* a;
  const void* b;
  void* c;
  const void* bias;  // n elements or null
  int64_t batch, m, n, k;
  bool a_trans, b_trans;
  int64_t lda, ldb, ldc;
  int64_t a_batch, b_batch, c_batch;
  double alpha, beta;
};
// The product, with beta = 0 and c contiguous, and y = activation(c), of c's dtype and layout. Of c
// as it is before or after its rounding to c_dtype: whichever a backend takes for an activation and
// dtypes, it takes for all shapes, so that a part of a layer has the bits of the whole.
struct MatMulActivationArgs {
  MatMulArgs product;
  Activation activation;
  void* y;
};

// A strided [batch, tokens, heads, head_dim] operand of attention; head_dim is contiguous.
struct AttentionOperand {
  void* data;
  int64_t batch_stride, token_stride, head_stride;
};

// out = softmax(scale * q k^T + causal mask) v per head, without keeping the scores. Query head h
// reads key/value head h / (heads / kv_heads). Causal: query i of q_tokens sees keys <= i +
// kv_tokens - q_tokens. lse[batch, heads, q_tokens] (f32; f64 for f64) is the log-sum-exp of the
// scaled scores, for backward. wide: out is f32 (f64 for f64).
struct AttentionForwardArgs {
  DType dtype;
  AttentionOperand q, k, v, out;
  void* lse;
  int64_t batch, heads, kv_heads, q_tokens, kv_tokens, head_dim;
  double scale;
  bool causal;
  bool wide = false;
};
// Overwrites dq, dk, dv (which may be interleaved in one packed buffer). wide: they are f32 (f64
// for f64).
struct AttentionBackwardArgs {
  DType dtype;
  AttentionOperand q, k, v, out, dout, dq, dk, dv;
  const void* lse;
  int64_t batch, heads, kv_heads, q_tokens, kv_tokens, head_dim;
  double scale;
  bool causal;
  bool wide = false;
};
// The softmax over two sets of keys from those over each: with l = log(exp(sum_lse) + exp(lse)),
// sum becomes exp(sum_lse - l) sum + exp(lse - l) part, and sum_lse l; both -inf: nothing changes.
// All of `dtype`, f32 or f64. part_lse [batch, heads, tokens] is contiguous, rows of sum_lse are
// those of more tokens perhaps.
struct AttentionMergeArgs {
  DType dtype;
  AttentionOperand sum, part;
  void* sum_lse;
  const void* part_lse;
  int64_t sum_lse_batch, sum_lse_head;
  int64_t batch, tokens, heads, head_dim;
};

// Fused softmax + cross entropy. Per row: lse, and loss = lse - logits[target], 0 where target ==
// ignore_index. lse and loss are f32 (f64 for f64).
struct CrossEntropyForwardArgs {
  DType dtype;
  const void* logits;
  const int64_t* targets;
  int64_t ignore_index;
  void* lse;
  void* loss;
  int64_t rows, cols;
};
// dlogits = (exp(logits - lse) - onehot) * (grad / num_targets), 0 in ignored rows. dlogits may be
// logits. The columns are those from `first` on of the whole logits, each row followed by `padding`
// elements, whose dlogits are 0; a target outside [first, first + cols) has its one-hot in another
// part.
struct CrossEntropyBackwardArgs {
  DType dtype;
  const void* logits;
  const int64_t* targets;
  int64_t ignore_index;
  const void* lse;
  void* dlogits;
  int64_t rows, cols;
  double num_targets;
  int64_t first = 0, padding = 0;
  DeviceScalar grad = {};
};
// The cross entropy of logits whose columns are cut into parts, in three steps with two reductions
// between them. This one, over the columns of one part as above: lse (-inf without columns), and
// target_logits = logits[target - first], 0 for a target of another part. Both f32 (f64 for f64).
struct CrossEntropyPartForwardArgs {
  DType dtype;
  const void* logits;
  const int64_t* targets;
  void* lse;
  void* target_logits;
  int64_t rows, cols, first, padding;
};
// sums = exp(lse - max), for max = the largest lse of any part; 0 where that is -inf. All of
// `dtype`.
struct CrossEntropyPartSumsArgs {
  DType dtype;
  const void* lse;
  const void* max;
  void* sums;
  int64_t rows;
};
// For sums and target_logits added over the parts: the lse of the whole rows, max + log(sums), and
// loss = lse - target_logits, 0 where target == ignore_index. All of `dtype`.
struct CrossEntropyPartJoinArgs {
  DType dtype;
  const void* max;
  const void* sums;
  const void* target_logits;
  const int64_t* targets;
  int64_t ignore_index;
  void* lse;
  void* loss;
  int64_t rows;
};

}  // namespace apogee

#endif  // APOGEE_TENSOR_KERNELS_ARGS_H_
