// SPDX-License-Identifier: Apache-2.0

// The arguments of every kernel, one struct each: raw pointers, sizes and strides (in elements),
// never a Tensor. The checked functions of tensor/ops fill them in; the backends' kernels take
// them. Others are in attention_args.h, conv_args.h, elementwise_args.h, recurrent_args.h and
// reduce_args.h.
//
//   context.kernels().fill(context, {.dtype = DType::kF32, .y = y, .n = n, .value = 1.0});
//
// Conventions:
// - `dtype` is the element type of every void pointer that has no dtype of its own.
// - Kernels compute in ComputeType (f32, or f64 for f64) and round once, on the store.
// - Pointers are contiguous and row-major unless strides are given.
// - No two pointers alias unless the comment allows it.
// - Kernels don't check their arguments: the ops have. They throw Error only for errors of the
//   device, such as memory that ran out.
#ifndef APOGEE_TENSOR_KERNELS_ARGS_H_
#define APOGEE_TENSOR_KERNELS_ARGS_H_

#include <cmath>
#include <cstdint>
#include <numbers>

#include "apogee/core/dtype.h"
#include "apogee/core/rng.h"
#include "apogee/core/shape.h"
#include "apogee/tensor/ops/kinds.h"

namespace apogee {

// A number that the kernel reads on the device when it runs, so that the host does not wait for it.
// Without a value it stands for 1.
struct DeviceScalar {
  const void* value = nullptr;
  DType dtype = DType::kF32;  // floating
};
// Only kernels may call it.
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

// y = alpha * x + beta * y. beta == 0 overwrites y, even a NaN in it. y may be x.
struct ScaleAddArgs {
  DType x_dtype, y_dtype;
  const void* x;
  void* y;
  int64_t n;
  double alpha, beta;
};

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

// y = f(gate) * up, of rows of `cols` elements. The rows of gate and up may lie apart, as the
// halves of one tensor do: gate_stride and up_stride elements from one row's first to the next's.
struct GatedForwardArgs {
  Activation kind;
  DType dtype;
  const void* gate;
  const void* up;
  void* y;
  int64_t rows, cols;
  int64_t gate_stride, up_stride;
};
struct GatedBackwardArgs {
  Activation kind;
  DType dtype;
  const void* gate;
  const void* up;
  const void* dy;
  void* dgate;
  void* dup;
  int64_t rows, cols;
  int64_t gate_stride, up_stride;
};

// y[i] = keep(i) ? x[i] / (1 - p) : 0
//   keep(i) = ToUniform(word(e)) > p, with e = first_element + i / row * row_stride + i % row
//   word(e) is word e % 4 at counter e / 4 of the Philox stream `key`.
// So x has the first `row` elements of every `row_stride` elements of the stream. y may be x. The
// backward pass is the same kernel on dy.
struct DropoutArgs {
  DType dtype;
  const void* x;
  void* y;
  int64_t n;
  double p;
  PhiloxKey key;
  int64_t first_element;
  int64_t row = 0, row_stride = 0;  // row divides n; both 0: one row
};

// y[i] is element first_element + i of the Philox stream `key`:
//   kUniform  in (low, high]
//   kNormal   with mean `low` and standard deviation `high`, by Box-Muller: in block b, elements 4b
//             and 4b + 1 are the cosine and sine of words 0 and 1, elements 4b + 2 and 4b + 3 those
//             of words 2 and 3.
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

// y[o, i] = scale * sum_r x[o, r, i] (+ y[o, i] if accumulate). Sums are in f32 (f64 for f64) or
// wider.
struct SumArgs {
  DType x_dtype, y_dtype;
  const void* x;
  void* y;
  int64_t outer, reduce, inner;
  double scale;
  bool accumulate;
};

// Over rows of `cols` elements: y = exp(x - max(x)) / sum(exp(x - max(x))), or its logarithm if
// `log`.
struct SoftmaxForwardArgs {
  DType dtype;
  const void* x;
  void* y;
  int64_t rows, cols;
  bool log = false;
};
// dx = y * (dy - sum(dy * y)), or dy - exp(y) * sum(dy) if `log`, the sum over a row.
struct SoftmaxBackwardArgs {
  DType dtype;
  const void* y;
  const void* dy;
  void* dx;
  int64_t rows, cols;
  bool log = false;
};

// Per row:
//   layer norm  y = (x - mean) * rstd * weight + bias   (bias may be null)
//   rms         y = x * rstd * weight                   (mean and bias are null)
// mean and rstd, one element per row, are written in f32 (f64 for f64). weight stands for
// weight + weight_offset, a sum in f32 (f64 for f64). -0.0 is no offset: x + -0.0 has x's bits for
// every x.
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
  double weight_offset = -0.0;
};
// dweight and dbias have param_grad_dtype and are overwritten. Any of dx, dweight and dbias may be
// null. weight_offset is the forward pass's.
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
  double weight_offset = -0.0;
};

// Rotate-half rotary embedding of x [batch, tokens, heads, head_dim]. The strides are those of the
// first three dims; head_dim is contiguous. For token t and i < h = dims / 2:
//   a        = (first_position + t) * theta^(-2i / dims)
//   y[i]     = x[i] cos(a) - x[i + h] sin(a)
//   y[i + h] = x[i + h] cos(a) + x[i] sin(a)
// Elements from `dims` on are copied; 0 stands for head_dim. inverse: -a instead of a (the backward
// pass). Tokens from jump_at on are `jump` positions further. positions [batch, tokens],
// contiguous: the place of each token instead of first_position + t and the jump; null: none.
// inverse_frequencies [h], in the host's memory on every device: factors in place of
// theta^(-2i / dims); null: none.
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
  const int64_t* positions = nullptr;
  int64_t dims = 0;
  const double* inverse_frequencies = nullptr;

  // Different angles: one for each token, of every sample if they differ.
  int64_t num_angles() const { return positions == nullptr ? tokens : batch * tokens; }
  int64_t num_pairs() const { return (dims == 0 ? head_dim : dims) / 2; }
  // Full turns of pair i between two neighbouring positions. For the host.
  double TurnsPerToken(int64_t i) const {
    const double exponent = -static_cast<double>(i) / static_cast<double>(num_pairs());
    const double frequency =
        inverse_frequencies == nullptr ? std::pow(theta, exponent) : inverse_frequencies[i];
    return frequency / (2 * std::numbers::pi);
  }
};

// y[i] = weight[ids[i] - first], or zeros for an id outside [first, first + vocab), whose row is in
// another part of the table. weight is [vocab, dim].
struct EmbeddingForwardArgs {
  DType dtype;
  const int64_t* ids;
  const void* weight;
  void* y;
  int64_t n, dim, vocab;
  int64_t first = 0;
};
// dweight[ids[i] - first] += dy[i] for ids in [first, first + vocab). dweight [vocab, dim] has
// grad_dtype and is zeroed first. Every row is summed in one order (ascending i), in f32 or wider.
// Ids equal to padding_id add nothing; -1: there is none.
struct EmbeddingBackwardArgs {
  DType dtype, grad_dtype;
  const int64_t* ids;
  const void* dy;
  void* dweight;
  int64_t n, dim, vocab;
  int64_t first = 0;
  int64_t padding_id = -1;
};

// For each i in [0, batch), with the bias [n] added to every row:
//   c[i] = alpha * op(a[i]) op(b[i]) + beta * c[i] + bias
// op(a) is m×k, op(b) k×n, c m×n. a_trans: a is stored as k×m; b_trans: b is stored as n×k. lda,
// ldb and ldc are the row strides of the stored matrices. *_batch are batch strides; 0 uses one
// matrix for all. a and b have `dtype`.
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
// Products of matrices (batch = 1) that do not depend on each other. The bits of each do not depend
// on the others.
struct MatMulGroupArgs {
  const MatMulArgs* products;
  int64_t count;
};
// The product c, with beta = 0 and contiguous, and y = activation(c) of c's dtype and layout.
// A backend may apply the activation before or after it rounds c to c_dtype. It makes the same
// choice for all shapes, given the activation and the dtypes: then a shard of a layer has the same
// bits as the whole layer.
struct MatMulActivationArgs {
  MatMulArgs product;
  Activation activation;
  void* y;
};

// A target of the cross entropy as probabilities of classes: `smoothing` is shared by all
// `classes`, and the target has the rest.
struct LabelSmoothing {
  double smoothing = 0;
  int64_t classes = 1;
  double OfEach() const { return smoothing / static_cast<double>(classes); }
  double OfTarget() const { return 1 - smoothing; }
};

// Fused softmax and cross entropy. Per row:
//   lse  = log(sum(exp(logits)))
//   loss = lse - logits[target], or 0 if target == ignore_index
// lse and loss are f32 (f64 for f64). With label smoothing, the logits' mean by the target's
// probabilities stands in place of the target's logit.
struct CrossEntropyForwardArgs {
  DType dtype;
  const void* logits;
  const int64_t* targets;
  int64_t ignore_index;
  void* lse;
  void* loss;
  int64_t rows, cols;
  LabelSmoothing labels = {};
};
// Per row:
//   dlogits = (exp(logits - lse) - onehot(target)) * (grad / num_targets), 0 in ignored rows
// With label smoothing, the target's probabilities stand in place of the one-hot.
// dlogits may be logits. For a part of the logits: it holds the columns from `first` on, and each
// row ends with `padding` more elements, whose dlogits are 0. The one-hot of a target outside
// [first, first + cols) is in another part.
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
  LabelSmoothing labels = {};
};
// The cross entropy of logits whose columns are split into parts: three kernels, with a reduction
// over the parts after the first (max of lse) and after the second (sums and target_logits).
//
// The first: for the columns of one part, as above,
//   lse           = log(sum(exp(logits))), -inf if there are no columns
//   target_logits = logits[target - first], 0 for a target in another part; with label smoothing,
//                   the part's share of the logits' mean by the target's probabilities
// Both are f32 (f64 for f64).
struct CrossEntropyPartForwardArgs {
  DType dtype;
  const void* logits;
  const int64_t* targets;
  void* lse;
  void* target_logits;
  int64_t rows, cols, first, padding;
  LabelSmoothing labels = {};
};
// The second: sums = exp(lse - max), where max is the largest lse of all parts; 0 if max is -inf.
// All have `dtype`.
struct CrossEntropyPartSumsArgs {
  DType dtype;
  const void* lse;
  const void* max;
  void* sums;
  int64_t rows;
};
// The third, with sums and target_logits added up over the parts:
//   lse  = max + log(sums), of the whole rows
//   loss = lse - target_logits, or 0 if target == ignore_index
// All have `dtype`.
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
