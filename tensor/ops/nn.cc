// SPDX-License-Identifier: Apache-2.0

#include "apogee/tensor/ops/nn.h"

#include <cmath>
#include <utility>

#include "apogee/tensor/kernel_table.h"
#include "apogee/tensor/ops/check.h"
#include "apogee/tensor/ops/cross_entropy_part.h"
#include "apogee/tensor/ops/elementwise.h"
#include "apogee/tensor/ops/reduce.h"

namespace apogee::ops {

namespace {

// As kernels take it: NormForwardArgs::weight_offset.
double WeightOffset(double offset) { return offset == 0 ? -0.0 : offset; }

}  // namespace

NormResult NormForward(const Tensor& x_in, const Tensor& weight_in, const Tensor& bias_in,
                       double eps, bool rms, double weight_offset) {
  const Tensor x = Operand("norm", "x", x_in);
  const Tensor weight = Operand("norm", "weight", weight_in);
  const Tensor bias = bias_in.defined() ? Operand("norm", "bias", bias_in) : Tensor();
  CheckSameDType("norm", x, weight);
  if (bias.defined()) CheckSameDevice("norm", x, bias);
  APOGEE_CHECK(weight.rank() == 1 && weight.size(0) == x.size(-1), "norm: weight ", weight.shape(),
               " for x ", x.shape());
  const DType stat = ComputeDType(x.dtype());
  NormResult result{Tensor::EmptyLike(x), Tensor(), Tensor::Empty({Rows(x)}, stat, x.context())};
  if (!rms) result.mean = Tensor::Empty({Rows(x)}, stat, x.context());
  x.context()->kernels().norm_forward(*x.context(), {.dtype = x.dtype(),
                                                     .rms = rms,
                                                     .x = x.raw(),
                                                     .weight = weight.raw(),
                                                     .bias = bias.defined() ? bias.raw() : nullptr,
                                                     .y = result.y.raw(),
                                                     .mean = rms ? nullptr : result.mean.raw(),
                                                     .rstd = result.rstd.raw(),
                                                     .rows = Rows(x),
                                                     .cols = x.size(-1),
                                                     .eps = eps,
                                                     .weight_offset = WeightOffset(weight_offset)});
  return result;
}

NormGrads NormBackward(const Tensor& x, const Tensor& weight, const Tensor& mean,
                       const Tensor& rstd, const Tensor& dy_in, bool rms, bool bias,
                       DType param_grad_dtype, double weight_offset) {
  const Tensor dy = Operand("norm", "dy", dy_in);
  CheckSameDType("norm backward", x, dy);
  CheckSameShape("norm backward", x, dy);
  NormGrads grads{Tensor::EmptyLike(x), Tensor::EmptyLike(weight, param_grad_dtype), Tensor()};
  if (bias) grads.dbias = Tensor::EmptyLike(weight, param_grad_dtype);
  x.context()->kernels().norm_backward(*x.context(),
                                       {.dtype = x.dtype(),
                                        .param_grad_dtype = param_grad_dtype,
                                        .rms = rms,
                                        .x = x.raw(),
                                        .weight = weight.raw(),
                                        .mean = rms ? nullptr : mean.raw(),
                                        .rstd = rstd.raw(),
                                        .dy = dy.raw(),
                                        .dx = grads.dx.raw(),
                                        .dweight = grads.dweight.raw(),
                                        .dbias = bias ? grads.dbias.raw() : nullptr,
                                        .rows = Rows(x),
                                        .cols = x.size(-1),
                                        .weight_offset = WeightOffset(weight_offset)});
  return grads;
}

namespace {

// Checks a tensor with an index for each token of x [batch, tokens, ..].
void CheckPerToken(const char* what, const Tensor& index, const Tensor& x) {
  const Shape want{x.size(0), x.size(1)};
  APOGEE_CHECK(index.dtype() == DType::kI64 && index.shape() == want, what, " must be i64 ", want,
               ", [batch, tokens], got ", DTypeName(index.dtype()), " ", index.shape());
  CheckSameDevice(what, x, index);
}

}  // namespace

Tensor Rotary(const Tensor& x_in, const RotaryOptions& options) {
  APOGEE_CHECK(x_in.defined() && x_in.rank() == 4,
               "rotary: needs x [batch, tokens, heads, head size]");
  const int64_t head_dim = x_in.size(3), dims = options.dims == 0 ? head_dim : options.dims;
  APOGEE_CHECK(dims >= 0 && dims <= head_dim && dims % 2 == 0, "rotary: ", dims,
               " elements of each head of ", head_dim,
               " cannot rotate in pairs; `dims` must be even and at most the head size");
  const auto num_frequencies = static_cast<int64_t>(options.inverse_frequencies.size());
  APOGEE_CHECK(num_frequencies == 0 || num_frequencies == dims / 2, "rotary: ", num_frequencies,
               " inverse frequencies for ", dims / 2, " pairs of elements; give one per pair");
  const int64_t* positions = nullptr;
  if (options.positions.defined()) {
    CheckPerToken("rotary: positions", options.positions, x_in);
    APOGEE_CHECK(options.positions.is_contiguous(), "rotary: positions must be contiguous");
    positions = options.positions.Detach().address<int64_t>();
  }
  const Tensor x = x_in.stride(3) == 1 ? x_in.Detach() : x_in.Detach().Contiguous();
  Tensor y = Tensor::EmptyLike(x);
  x.context()->kernels().rotary(
      *x.context(),
      {.dtype = x.dtype(),
       .x = x.raw(),
       .y = y.raw(),
       .batch = x.size(0),
       .tokens = x.size(1),
       .heads = x.size(2),
       .head_dim = x.size(3),
       .x_strides = {x.stride(0), x.stride(1), x.stride(2)},
       .y_strides = {y.stride(0), y.stride(1), y.stride(2)},
       .theta = options.theta,
       .first_position = options.first_position,
       .inverse = options.inverse,
       .jump_at = options.jump_at,
       .jump = options.jump,
       .positions = positions,
       .dims = dims,
       .inverse_frequencies = num_frequencies == 0 ? nullptr : options.inverse_frequencies.data()});
  return y;
}

namespace {

AttentionOperand AsOperand(const char* name, const Tensor& x, DType dtype) {
  APOGEE_CHECK(x.defined() && x.rank() == 4 && (x.stride(3) == 1 || x.size(3) == 1),
               "attention: ", name,
               " needs [batch, tokens, heads, head size] with a contiguous last dim");
  APOGEE_CHECK(x.dtype() == dtype, "attention: ", name, " is ", DTypeName(x.dtype()), ", q is ",
               DTypeName(dtype), "; cast one of them, with autograd::Cast(x, dtype)");
  return {x.raw(), x.stride(0), x.stride(1), x.stride(2)};
}

double ScaleOf(const AttentionOptions& options, const Tensor& q) {
  return options.scale != 0 ? options.scale : 1.0 / std::sqrt(static_cast<double>(q.size(3)));
}

double SoftCapOf(const AttentionOptions& options) {
  APOGEE_CHECK(options.soft_cap >= 0 && std::isfinite(options.soft_cap),
               "attention: the soft cap must be above 0 and finite, or 0 for none; got ",
               options.soft_cap);
  return options.soft_cap;
}

// Checks the first keys.
FirstKeys FirstKeysOf(const AttentionOptions& options, const Tensor& q) {
  const Tensor& first = options.first_keys;
  if (!first.defined()) return {};
  CheckPerToken("attention: first_keys", first, q);
  APOGEE_CHECK(first.stride(1) == 1 || first.size(1) == 1,
               "attention: the tokens of first_keys must be contiguous");
  APOGEE_CHECK(ScaleOf(options, q) > 0,
               "attention: with first_keys the scale must be above 0, got ", options.scale);
  return {.data = first.Detach().address<int64_t>(), .batch_stride = first.stride(0)};
}

// Checks the mask and the window.
AttentionMask MaskOf(const AttentionOptions& options, const Tensor& q, const Tensor& k) {
  APOGEE_CHECK(options.window >= 0 && (options.window == 0 || options.causal),
               "attention: a window of ", options.window,
               options.window < 0 ? " keys; use 0 for none" : " keys needs causal attention");
  const Tensor& mask = options.mask;
  if (!mask.defined()) return {};
  mask.CheckOpen();
  const Shape scores{q.size(0), q.size(2), q.size(1), k.size(1)};
  bool fits = mask.rank() <= 4;
  for (int i = 1; fits && i <= mask.rank(); ++i) {
    fits = mask.size(-i) == 1 || mask.size(-i) == scores[-i];
  }
  APOGEE_CHECK(fits, "attention: the mask ", mask.shape(), " does not broadcast to ", scores,
               ", [batch, heads, query tokens, key tokens]");
  APOGEE_CHECK(mask.dtype() == DType::kU8 || mask.dtype() == q.dtype(),
               "attention: the mask must be u8 (1: a key is seen) or, to be added to the scores, ",
               DTypeName(q.dtype()), " as q; got ", DTypeName(mask.dtype()));
  APOGEE_CHECK(ScaleOf(options, q) > 0, "attention: with a mask the scale must be above 0, got ",
               options.scale);
  CheckSameDevice("attention", q, mask);
  const Tensor view = mask.Detach().Expand(scores);
  return {.data = view.raw(),
          .dtype = mask.dtype(),
          .strides = {view.stride(0), view.stride(1), view.stride(2), view.stride(3)}};
}

}  // namespace

AttentionResult AttentionForward(const Qkv& qkv, const AttentionOptions& options) {
  const Tensor &q = qkv.q, &k = qkv.k, &v = qkv.v;
  const AttentionOperand qo = AsOperand("q", q, q.dtype());
  const AttentionOperand ko = AsOperand("k", k, q.dtype());
  const AttentionOperand vo = AsOperand("v", v, q.dtype());
  CheckSameShape("attention (k, v)", k, v);
  CheckSameDevice("attention", q, k);
  CheckSameDevice("attention", q, v);
  APOGEE_CHECK(q.size(0) == k.size(0) && q.size(3) == k.size(3), "attention: q ", q.shape(),
               " and k ", k.shape(), " differ in batch or head size");
  APOGEE_CHECK(k.size(2) > 0 && q.size(2) % k.size(2) == 0, "attention: ", q.size(2),
               " query heads are not a multiple of ", k.size(2), " key/value heads");
  APOGEE_CHECK(!options.causal || k.size(1) >= q.size(1), "attention: causal with ", q.size(1),
               " queries needs at least as many keys, got ", k.size(1));
  const DType out_dtype = options.wide ? ComputeDType(q.dtype()) : q.dtype();
  AttentionResult result{
      Tensor::Empty(q.shape(), out_dtype, q.context()),
      Tensor::Empty({q.size(0), q.size(2), q.size(1)}, ComputeDType(q.dtype()), q.context())};
  q.context()->kernels().attention_forward(*q.context(),
                                           {.dtype = q.dtype(),
                                            .q = qo,
                                            .k = ko,
                                            .v = vo,
                                            .out = AsOperand("out", result.out, out_dtype),
                                            .lse = result.lse.raw(),
                                            .batch = q.size(0),
                                            .heads = q.size(2),
                                            .kv_heads = k.size(2),
                                            .q_tokens = q.size(1),
                                            .kv_tokens = k.size(1),
                                            .head_dim = q.size(3),
                                            .scale = ScaleOf(options, q),
                                            .causal = options.causal,
                                            .wide = options.wide,
                                            .window = options.window,
                                            .mask = MaskOf(options, q, k),
                                            .first_keys = FirstKeysOf(options, q),
                                            .soft_cap = SoftCapOf(options)});
  return result;
}

Tensor AttentionBackward(const Qkv& qkv, const AttentionResult& forward, const Tensor& dout_in,
                         const AttentionOptions& options, const Qkv& grads, bool wants_dmask) {
  const Tensor &q = qkv.q, &k = qkv.k;
  const DType dtype = q.dtype();
  const DType grad_dtype = options.wide ? ComputeDType(dtype) : dtype;
  const Tensor dout = Operand("attention", "dout", dout_in);
  CheckSameDevice("attention", dout, q);
  CheckSameShape("attention backward", forward.out, dout);
  Tensor dmask;
  if (wants_dmask) {
    dmask = Tensor::Zeros({q.size(0), q.size(2), q.size(1), k.size(1)}, dtype, q.context());
  }
  q.context()->kernels().attention_backward(*q.context(),
                                            {.dtype = dtype,
                                             .q = AsOperand("q", q, dtype),
                                             .k = AsOperand("k", k, dtype),
                                             .v = AsOperand("v", qkv.v, dtype),
                                             .out = AsOperand("out", forward.out, dtype),
                                             .dout = AsOperand("dout", dout, dtype),
                                             .dq = AsOperand("dq", grads.q, grad_dtype),
                                             .dk = AsOperand("dk", grads.k, grad_dtype),
                                             .dv = AsOperand("dv", grads.v, grad_dtype),
                                             .lse = forward.lse.raw(),
                                             .batch = q.size(0),
                                             .heads = q.size(2),
                                             .kv_heads = k.size(2),
                                             .q_tokens = q.size(1),
                                             .kv_tokens = k.size(1),
                                             .head_dim = q.size(3),
                                             .scale = ScaleOf(options, q),
                                             .causal = options.causal,
                                             .wide = options.wide,
                                             .window = options.window,
                                             .mask = MaskOf(options, q, k),
                                             .first_keys = FirstKeysOf(options, q),
                                             .dmask = wants_dmask ? dmask.raw() : nullptr,
                                             .soft_cap = SoftCapOf(options)});
  return wants_dmask ? SumTo(dmask, options.mask.shape()) : dmask;
}

void AttentionMerge(const AttentionResult& sum, const AttentionResult& part) {
  CheckSameShape("attention merge (out)", sum.out, part.out);
  CheckSameShape("attention merge (lse)", sum.lse, part.lse);
  const DType dtype = sum.lse.dtype();
  const Tensor part_lse = Operand("attention merge", "lse", part.lse);
  sum.out.context()->kernels().attention_merge(*sum.out.context(),
                                               {.dtype = dtype,
                                                .sum = AsOperand("sum", sum.out, dtype),
                                                .part = AsOperand("part", part.out, dtype),
                                                .sum_lse = sum.lse.raw(),
                                                .part_lse = part_lse.raw(),
                                                .sum_lse_batch = sum.lse.stride(0),
                                                .sum_lse_head = sum.lse.stride(1),
                                                .batch = sum.out.size(0),
                                                .tokens = sum.out.size(1),
                                                .heads = sum.out.size(2),
                                                .head_dim = sum.out.size(3)});
}

Tensor EmbeddingForward(const Tensor& ids_in, const Tensor& weight_in,
                        const std::optional<VocabPart>& part) {
  const Tensor ids = Operand("embedding", "ids", ids_in);
  const Tensor weight = Operand("embedding", "weight", weight_in);
  APOGEE_CHECK(weight.rank() == 2, "embedding: weight needs [vocab, dim], got ", weight.shape());
  APOGEE_CHECK(ids.rank() < Shape::kMaxRank, "embedding: ids have too many dims: ", ids.shape());
  CheckIndices("embedding", ids, weight, part ? part->vocab_size : weight.size(0), nullptr);
  std::array<int64_t, Shape::kMaxRank> dims{};
  std::copy(ids.shape().dims().begin(), ids.shape().dims().end(), dims.begin());
  dims[static_cast<size_t>(ids.rank())] = weight.size(1);
  Tensor y = Tensor::Empty(
      Shape(std::span<const int64_t>(dims.data(), static_cast<size_t>(ids.rank()) + 1)),
      weight.dtype(), weight.context());
  weight.context()->kernels().embedding_forward(*weight.context(),
                                                {.dtype = weight.dtype(),
                                                 .ids = ids.address<int64_t>(),
                                                 .weight = weight.raw(),
                                                 .y = y.raw(),
                                                 .n = ids.numel(),
                                                 .dim = weight.size(1),
                                                 .vocab = weight.size(0),
                                                 .first = part ? part->first : 0});
  return y;
}

Tensor EmbeddingBackward(const Tensor& ids, const Tensor& dy_in, int64_t vocab, DType grad_dtype,
                         int64_t first, int64_t padding_id) {
  const Tensor dy = Operand("embedding", "dy", dy_in);
  Tensor dweight = Tensor::Empty({vocab, dy.size(-1)}, grad_dtype, dy.context());
  dy.context()->kernels().embedding_backward(*dy.context(), {.dtype = dy.dtype(),
                                                             .grad_dtype = grad_dtype,
                                                             .ids = ids.address<int64_t>(),
                                                             .dy = dy.raw(),
                                                             .dweight = dweight.raw(),
                                                             .n = ids.numel(),
                                                             .dim = dy.size(-1),
                                                             .vocab = vocab,
                                                             .first = first,
                                                             .padding_id = padding_id});
  return dweight;
}

CrossEntropyResult CrossEntropyForward(const Tensor& logits_in, const Tensor& targets_in,
                                       int64_t ignore_index, double label_smoothing) {
  APOGEE_CHECK(label_smoothing >= 0 && label_smoothing <= 1,
               "cross_entropy: label_smoothing must be in [0, 1], got ", label_smoothing);
  const Tensor logits = Operand("cross_entropy", "logits", logits_in);
  const Tensor targets = Operand("cross_entropy", "targets", targets_in);
  const int64_t rows = Rows(logits);
  APOGEE_CHECK(targets.numel() == rows, "cross_entropy: targets ", targets.shape(), " for logits ",
               logits.shape());
  const Tensor host_targets =
      CheckIndices("cross_entropy", targets, logits, logits.size(-1), &ignore_index);
  const DType stat = ComputeDType(logits.dtype());
  const Tensor row_loss = Tensor::Empty({rows}, stat, logits.context());
  CrossEntropyResult result{Tensor(), Tensor::Empty({rows}, stat, logits.context()), 0};
  logits.context()->kernels().cross_entropy_forward(*logits.context(),
                                                    {.dtype = logits.dtype(),
                                                     .logits = logits.raw(),
                                                     .targets = targets.address<int64_t>(),
                                                     .ignore_index = ignore_index,
                                                     .lse = result.lse.raw(),
                                                     .loss = row_loss.raw(),
                                                     .rows = rows,
                                                     .cols = logits.size(-1),
                                                     .labels = {label_smoothing, logits.size(-1)}});
  result.num_targets = CountOthers(host_targets, ignore_index);
  if (GraphRecorder* const recorder = targets.context()->recorder()) {
    recorder->RequireCount("cross_entropy", targets, ignore_index, result.num_targets);
  }
  result.loss = SumLeading(row_loss, 0, stat, 1.0 / static_cast<double>(result.num_targets));
  return result;
}

Tensor CrossEntropyBackward(Tensor logits, const Tensor& targets, const Tensor& lse,
                            int64_t ignore_index, const Tensor& grad, int64_t num_targets,
                            double label_smoothing) {
  const VocabPart whole{.first = 0, .vocab_size = logits.size(-1)};
  return CrossEntropyPartBackward(std::move(logits), targets, lse, whole, ignore_index, grad,
                                  num_targets, label_smoothing);
}

namespace {

void FillRandom(Distribution distribution, const Tensor& y, double low, double high, PhiloxKey key,
                int64_t first_element) {
  APOGEE_CHECK(y.defined() && y.is_contiguous(), "random: needs a defined, contiguous tensor");
  RefuseRandomInGraph("random", y);
  if (y.numel() == 0) return;
  y.context()->kernels().random(*y.context(), {.distribution = distribution,
                                               .dtype = y.dtype(),
                                               .y = y.raw(),
                                               .n = y.numel(),
                                               .key = key,
                                               .first_element = first_element,
                                               .low = low,
                                               .high = high});
}

}  // namespace

void FillNormal(const Tensor& y, double mean, double std, PhiloxKey key, int64_t first_element) {
  FillRandom(Distribution::kNormal, y, mean, std, key, first_element);
}

void FillUniform(const Tensor& y, double low, double high, PhiloxKey key, int64_t first_element) {
  FillRandom(Distribution::kUniform, y, low, high, key, first_element);
}

}  // namespace apogee::ops
