// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/layers.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "apogee/autograd/functions/activation.h"
#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/functions/embedding.h"
#include "apogee/autograd/functions/norm.h"
#include "apogee/autograd/functions/shape.h"
#include "apogee/autograd/node.h"
#include "apogee/nn/head_loss.h"
#include "apogee/nn/init.h"

namespace apogee::nn {
namespace {

bool MayCast(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
}

void CheckOptions(const LinearOptions& options) {
  APOGEE_CHECK(
      !options.to_residual || !options.activation,
      "linear: a result for the residual stream (to_residual) is a sum's addend and has no "
      "activation; set one of the two");
  APOGEE_CHECK(options.activation || !options.recompute_activation,
               "linear: recompute_activation has no effect without an activation");
  if (!options.soft_cap) return;
  APOGEE_CHECK(*options.soft_cap > 0 && std::isfinite(*options.soft_cap),
               "linear: soft_cap must be above 0, got ", *options.soft_cap,
               "; leave it out for none");
  APOGEE_CHECK(!options.activation,
               "linear: soft_cap is for logits, which have no activation; set one of the two");
}

}  // namespace

Tensor CastInput(const Tensor& x, DType dtype) {
  if (x.dtype() == dtype || !MayCast(x.dtype()) || !MayCast(dtype)) return x;
  return autograd::Cast(x, dtype);
}

Tensor InputOf(const Module& layer, const Tensor& x, const Parameter& weight) {
  return layer.residual_dtype() ? CastInput(x, weight.dtype()) : x;
}

Tensor NormInput(const Module& norm, const Tensor& x, const Parameter& weight) {
  return x.dtype() == DType::kF32 ? x : InputOf(norm, x, weight);
}

Linear::Linear(int64_t in, int64_t out, const LinearOptions& options) : options_(options) {
  APOGEE_CHECK(in > 0 && out > 0, "linear: sizes must be positive, got ", in, " and ", out);
  CheckOptions(options);
  const double bound = 1.0 / std::sqrt(static_cast<double>(in));
  const Init weight_init = options.init.value_or(Init::Uniform(-bound, bound));
  const Init bias_init = options.init ? Init::Constant(0) : Init::Uniform(-bound, bound);
  const bool out_in = options.layout == WeightLayout::kOutIn;
  weight_ = RegisterParameter("weight", out_in ? Shape{out, in} : Shape{in, out}, weight_init);
  if (options.bias) bias_ = RegisterParameter("bias", {out}, bias_init);
}

Linear::Linear(ParameterPtr weight, ParameterPtr bias, const LinearOptions& options)
    : options_(options), weight_(std::move(weight)), bias_(std::move(bias)) {
  CheckOptions(options);
  const bool out_in = options.layout == WeightLayout::kOutIn;
  APOGEE_CHECK(weight_ != nullptr && weight_->shape().rank() == 2,
               "linear: a tied weight must be a parameter ", out_in ? "[out, in]" : "[in, out]");
  const Shape out{weight_->shape()[out_in ? 0 : 1]};
  APOGEE_CHECK(bias_ == nullptr || (options.bias && bias_->shape() == out),
               "linear: with the tied weight ", weight_->name(), " ", weight_->shape(),
               " the bias ", bias_->name(), " ", bias_->shape(), " must be ", out,
               ", and options.bias must be true");
  APOGEE_CHECK(!options.init, "linear: the owner of the tied weight ", weight_->name(),
               " initialises it; leave options.init out");
}

std::pair<int64_t, int64_t> Linear::sizes() const {
  const Shape& shape = weight_->shape();
  return layout() == WeightLayout::kOutIn ? std::pair{shape[1], shape[0]}
                                          : std::pair{shape[0], shape[1]};
}

void Linear::AddAdapter(const LayerAdapter& adapter) {
  const auto [in, out] = sizes();
  const double bound = 1 / std::sqrt(static_cast<double>(in));
  const auto make = [&](const char* kind, const Shape& shape, const Init& init) {
    ParameterPtr made =
        RegisterParameter(internal::Concat(kind, ".", adapter.adapter, ".weight"), shape, init);
    GiveFirstValue(*made, init, adapter.seed, *weight_);
    return made;
  };
  LoraFactors factors{.adapter = adapter.adapter,
                      .a = make("lora_A", {adapter.rank, in}, Init::Uniform(-bound, bound)),
                      .b = make("lora_B", {out, adapter.rank}, Init::Constant(0)),
                      .magnitude = nullptr,
                      .scale = adapter.scale,
                      .dropout = adapter.dropout};
  if (adapter.use_dora) {
    factors.magnitude = make("lora_magnitude_vector", {out}, Init::Constant(1));
    factors.magnitude->set_value(RowNorms(factors, {*weight_, layout()}));
  }
  adapters_.push_back(std::move(factors));
}

Tensor Linear::Merged(const LoraFactors& factors, const Parameter& weight) const {
  const Tensor merged = MergedWeight(factors, {weight, layout()}).To(weight.dtype());
  return layout() == WeightLayout::kOutIn ? merged : merged.Transpose(0, 1).Contiguous();
}

Tensor Linear::ProductBias() const {
  const bool scales = std::ranges::any_of(adapters_, [](const LoraFactors& factors) {
    return factors.is_active && factors.magnitude != nullptr;
  });
  return scales ? Tensor() : autograd::ValueOf(bias_);
}

Tensor Linear::Finish(const Tensor& x, const Tensor& product, const AdapterOps& ops) {
  Tensor y = product;
  for (const LoraFactors& factors : adapters_) {
    if (!factors.is_active) continue;
    // DoRA scales the whole product, and the norm knows the factors of one adapter only.
    APOGEE_CHECK(factors.magnitude == nullptr || IsOnlyActive(factors), "linear \"", full_name(),
                 "\": the adapter \"", factors.adapter,
                 "\" has use_dora, so no other may be active; call SetActiveAdapters with one");
    y = WithAdapter(x, y, factors, {*weight_, layout()}, ops, is_training(), generator());
  }
  if (bias_ != nullptr && !ProductBias().defined()) {
    y = autograd::Add(y, autograd::Cast(bias_->value(), y.dtype()));
  }
  if (options_.activation) y = autograd::Activate(*options_.activation, y);
  return autograd::Cast(CapLogits(y, options_.soft_cap), out_dtype().value_or(x.dtype()));
}

Tensor Linear::Forward(const Tensor& x) {
  if (head_loss_ != nullptr) return head_loss_->Of(*this, x);
  if (!adapters_.empty()) {
    const Tensor in = InputOf(*this, x, *weight_);
    const Tensor product =
        autograd::Linear(in, weight_->value(), ProductBias(),
                         {.layout = options_.layout, .out_dtype = ComputeDType(in.dtype())});
    return Finish(in, product, {.tokens = sequence_part()});
  }
  const Tensor y =
      autograd::Linear(InputOf(*this, x, *weight_), weight_->value(), autograd::ValueOf(bias_),
                       {.layout = options_.layout,
                        .activation = options_.activation,
                        .recompute_activation = options_.recompute_activation,
                        .out_dtype = out_dtype()});
  return CapLogits(y, options_.soft_cap);
}

std::optional<DType> Linear::out_dtype() const {
  return options_.to_residual && residual_dtype() == DType::kF32 ? residual_dtype() : std::nullopt;
}

Tensor CapLogits(const Tensor& logits, const std::optional<double>& soft_cap) {
  if (!soft_cap) return logits;
  return autograd::SoftCap(logits, *soft_cap);
}

Embedding::Embedding(int64_t vocab, int64_t dim, const Init& init, int64_t padding_id)
    : padding_id_(padding_id), weight_(RegisterParameter("weight", {vocab, dim}, init)) {
  APOGEE_CHECK(padding_id >= -1 && padding_id < vocab, "embedding: the padding id ", padding_id,
               " is outside [0, ", vocab, "); use -1 for none");
}

Tensor Embedding::Forward(const Tensor& tokens) {
  const auto look_up = [&](const Tensor& table) {
    return autograd::Embedding(tokens, table, {}, padding_id_);
  };
  return Finish(look_up(weight_->value()), look_up);
}

std::pair<int64_t, int64_t> Embedding::sizes() const {
  return {weight_->shape()[0], weight_->shape()[1]};
}

void Embedding::AddAdapter(const LayerAdapter& adapter) {
  const auto [vocab, dim] = sizes();
  const auto make = [&](const char* kind, const Shape& shape, const Init& init) {
    ParameterPtr made =
        RegisterParameter(internal::Concat(kind, ".", adapter.adapter), shape, init);
    GiveFirstValue(*made, init, adapter.seed, *weight_);
    return made;
  };
  adapters_.push_back({.adapter = adapter.adapter,
                       .a = make("lora_embedding_A", {adapter.rank, vocab}, Init::Constant(0)),
                       .b = make("lora_embedding_B", {dim, adapter.rank}, Init::Normal(0, 1)),
                       .magnitude = nullptr,
                       .scale = adapter.scale});
}

Tensor Embedding::Finish(const Tensor& y,
                         const std::function<Tensor(const Tensor& table)>& look_up) const {
  Tensor sum = y;
  for (const LoraFactors& factors : adapters_) {
    if (!factors.is_active) continue;
    const Tensor table = autograd::Contiguous(autograd::Transpose(factors.a->value(), 0, 1));
    const Tensor low = autograd::Scale(look_up(table), factors.scale);
    const Tensor own = autograd::Linear(autograd::Cast(low, y.dtype()), factors.b->value(), {});
    sum = autograd::Add(sum, own);
  }
  return sum;
}

Tensor Embedding::Merged(const LoraFactors& factors, const Parameter& weight) const {
  return MergedTable(factors, weight).To(weight.dtype());
}

LayerNorm::LayerNorm(int64_t dim, double eps, bool recompute)
    : eps_(eps),
      recompute_(recompute),
      weight_(RegisterParameter("weight", {dim}, Init::Constant(1))),
      bias_(RegisterParameter("bias", {dim}, Init::Constant(0))) {}

Tensor LayerNorm::Forward(const Tensor& x) {
  return autograd::LayerNorm(NormInput(*this, x, *weight_), weight_->value(), bias_->value(), eps_,
                             recompute_);
}

RmsNorm::RmsNorm(int64_t dim, double eps, double weight_offset, bool recompute)
    : eps_(eps),
      weight_offset_(weight_offset),
      recompute_(recompute),
      weight_(RegisterParameter("weight", {dim}, Init::Constant(1 - weight_offset))) {}

Tensor RmsNorm::Forward(const Tensor& x) {
  return autograd::RmsNorm(NormInput(*this, x, *weight_), weight_->value(), eps_, weight_offset_,
                           recompute_);
}

Dropout::Dropout(double p) : p_(p) {
  APOGEE_CHECK(p >= 0 && p < 1, "dropout: p must be in [0, 1), got ", p);
}

Tensor Dropout::Forward(const Tensor& x) {
  if (is_training() && p_ > 0 && autograd::IsCut(x)) RefuseCut(x);
  return is_training() ? autograd::Dropout(x, p_, generator(), {}, sequence_part()) : x;
}

void Dropout::RefuseCut(const Tensor& x) const {
  Throw("dropout \"", full_name(), "\": its input ", x.shape(),
        " holds only this rank's columns of an activation that the plan shards, between a column "
        "and a row layer, and no rule of the plan names it; add the rule {.pattern = \"",
        full_name(), "\", .style = ParallelStyle::kDropout}, or one with * for all layers");
}

void Linear::DescribeConfig(ConfigTexts& texts) const {
  if (options_.activation) texts.function["activation"] = ConfigText(*options_.activation);
  if (options_.soft_cap) texts.function["soft_cap"] = ConfigText(*options_.soft_cap);
}

void Embedding::DescribeConfig(ConfigTexts& texts) const {
  if (padding_id_ >= 0) texts.training["padding_id"] = ConfigText(padding_id_);
}

void LayerNorm::DescribeConfig(ConfigTexts& texts) const {
  texts.function["eps"] = ConfigText(eps_);
}

void RmsNorm::DescribeConfig(ConfigTexts& texts) const {
  texts.function["eps"] = ConfigText(eps_);
  if (weight_offset_ != 0) texts.function["weight_offset"] = ConfigText(weight_offset_);
}

void Dropout::DescribeConfig(ConfigTexts& texts) const { texts.training["p"] = ConfigText(p_); }

}  // namespace apogee::nn
