// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/layers.h"

#include <cmath>
#include <utility>

#include "apogee/autograd/functions/activation.h"
#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/functions/embedding.h"
#include "apogee/autograd/functions/norm.h"
#include "apogee/autograd/node.h"

namespace apogee::nn {
namespace {

bool MayCast(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
}

// Norms read f32 themselves.
Tensor NormInput(const Module& norm, const Tensor& x, const Parameter& weight) {
  return x.dtype() == DType::kF32 ? x : InputOf(norm, x, weight);
}

}  // namespace

Tensor CastInput(const Tensor& x, DType dtype) {
  if (x.dtype() == dtype || !MayCast(x.dtype()) || !MayCast(dtype)) return x;
  return autograd::Cast(x, dtype);
}

Tensor InputOf(const Module& layer, const Tensor& x, const Parameter& weight) {
  return layer.residual_dtype() ? CastInput(x, weight.dtype()) : x;
}

Linear::Linear(int64_t in, int64_t out, const LinearOptions& options) : options_(options) {
  APOGEE_CHECK(in > 0 && out > 0, "linear: sizes must be positive, got ", in, " and ", out);
  APOGEE_CHECK(
      !options.to_residual || !options.activation,
      "linear: a result for the residual stream (to_residual) is a sum's addend and has no "
      "activation; set one of the two");
  const double bound = 1.0 / std::sqrt(static_cast<double>(in));
  const Init weight_init = options.init.value_or(Init::Uniform(-bound, bound));
  const Init bias_init = options.init ? Init::Constant(0) : Init::Uniform(-bound, bound);
  const bool out_in = options.layout == WeightLayout::kOutIn;
  weight_ = RegisterParameter("weight", out_in ? Shape{out, in} : Shape{in, out}, weight_init);
  if (options.bias) bias_ = RegisterParameter("bias", {out}, bias_init);
}

Linear::Linear(ParameterPtr weight) : options_{.bias = false}, weight_(std::move(weight)) {
  APOGEE_CHECK(weight_ != nullptr && weight_->shape().rank() == 2,
               "linear: a tied weight must be a parameter [out, in]");
}

Tensor Linear::Forward(const Tensor& x) {
  return autograd::Linear(
      InputOf(*this, x, *weight_), weight_->value(), autograd::ValueOf(bias_),
      {.layout = options_.layout, .activation = options_.activation, .out_dtype = out_dtype()});
}

std::optional<DType> Linear::out_dtype() const {
  return options_.to_residual && residual_dtype() == DType::kF32 ? residual_dtype() : std::nullopt;
}

Embedding::Embedding(int64_t vocab, int64_t dim, const Init& init)
    : weight_(RegisterParameter("weight", {vocab, dim}, init)) {}

Tensor Embedding::Forward(const Tensor& tokens) {
  return autograd::Embedding(tokens, weight_->value());
}

LayerNorm::LayerNorm(int64_t dim, double eps)
    : eps_(eps),
      weight_(RegisterParameter("weight", {dim}, Init::Constant(1))),
      bias_(RegisterParameter("bias", {dim}, Init::Constant(0))) {}

Tensor LayerNorm::Forward(const Tensor& x) {
  return autograd::LayerNorm(NormInput(*this, x, *weight_), weight_->value(), bias_->value(), eps_);
}

RmsNorm::RmsNorm(int64_t dim, double eps)
    : eps_(eps), weight_(RegisterParameter("weight", {dim}, Init::Constant(1))) {}

Tensor RmsNorm::Forward(const Tensor& x) {
  return autograd::RmsNorm(NormInput(*this, x, *weight_), weight_->value(), eps_);
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
}

void LayerNorm::DescribeConfig(ConfigTexts& texts) const {
  texts.function["eps"] = ConfigText(eps_);
}

void RmsNorm::DescribeConfig(ConfigTexts& texts) const { texts.function["eps"] = ConfigText(eps_); }

void Dropout::DescribeConfig(ConfigTexts& texts) const { texts.training["p"] = ConfigText(p_); }

}  // namespace apogee::nn
