// SPDX-License-Identifier: Apache-2.0

#include "apogee/autograd/functions/norm.h"
#include "apogee/autograd/recompute.h"
#include "apogee/nn/layers.h"
#include "apogee/tensor/ops/elementwise.h"

namespace apogee::nn {
namespace {

void CheckWholeChannels(const char* norm, const Module& module, const Tensor& x, int64_t channels) {
  APOGEE_CHECK(!autograd::IsCut(x), norm, " \"", module.full_name(), "\": its input ", x.shape(),
               " holds only this rank's part of the channels, between a column and a row layer of "
               "the plan; put the norm behind the row layer, or use style column_gather");
  APOGEE_CHECK(x.rank() >= 2 && x.size(1) == channels, norm, " \"", module.full_name(),
               "\": needs [samples, ", channels, ", ..], got ", x.shape());
}

}  // namespace

GroupNorm::GroupNorm(int64_t num_groups, int64_t channels, double eps)
    : num_groups_(num_groups),
      eps_(eps),
      weight_(RegisterParameter("weight", {channels}, Init::Constant(1))),
      bias_(RegisterParameter("bias", {channels}, Init::Constant(0))) {
  APOGEE_CHECK(channels > 0 && num_groups > 0 && channels % num_groups == 0,
               "group norm: ", channels, " channels cannot be cut into ", num_groups,
               " equal groups");
}

Tensor GroupNorm::Forward(const Tensor& x_in) {
  CheckWholeChannels("group norm", *this, x_in, weight_->shape()[0]);
  const Tensor x = InputOf(*this, x_in, *weight_);
  return autograd::GroupNorm(x, num_groups_, weight_->value(), bias_->value(), eps_);
}

void GroupNorm::DescribeConfig(ConfigTexts& texts) const {
  texts.function["num_groups"] = ConfigText(num_groups_);
  texts.function["eps"] = ConfigText(eps_);
}

BatchNorm::BatchNorm(int64_t channels, const BatchNormOptions& options)
    : options_(options),
      weight_(RegisterParameter("weight", {channels}, Init::Constant(1))),
      bias_(RegisterParameter("bias", {channels}, Init::Constant(0))),
      mean_(RegisterBuffer("running_mean", {channels}, Init::Constant(0))),
      var_(RegisterBuffer("running_var", {channels}, Init::Constant(1))) {
  APOGEE_CHECK(channels > 0, "batch norm: the number of channels must be positive, got ", channels);
  APOGEE_CHECK(options.momentum > 0 && options.momentum <= 1,
               "batch norm: momentum must be in (0, 1], got ", options.momentum);
}

Tensor BatchNorm::Forward(const Tensor& x_in) {
  CheckWholeChannels("batch norm", *this, x_in, weight_->shape()[0]);
  const Tensor x = InputOf(*this, x_in, *weight_);
  const Tensor weight = weight_->value(), bias = bias_->value();
  if (!is_training()) {
    return autograd::NormalizeChannels(x, mean_->data(), var_->data(), weight, bias, options_.eps);
  }
  autograd::SumFunction sum;
  if (shares_batch()) sum = [this](const Tensor& part) { return SumOverBatch(part); };
  const autograd::BatchNormResult result = autograd::BatchNorm(x, weight, bias, options_.eps, sum);
  if (!autograd::IsRecomputing()) {
    UpdateRunning(result.mean.Detach(), result.var.Detach(), result.count);
  }
  return result.y;
}

void BatchNorm::UpdateRunning(const Tensor& mean, const Tensor& var, const Tensor& count) const {
  const Tensor one = Tensor::Full({1}, count.dtype(), 1, count.context());
  // A variance of one element is 0, and stays so.
  const Tensor divisor = ops::Maximum(ops::Sub(count, one), one);
  const Tensor unbiased = ops::Mul(var, ops::Div(count, divisor));
  const auto update = [momentum = options_.momentum](const Tensor& running, const Tensor& batch) {
    running.CopyFrom(ops::Scale(running, 1 - momentum));
    ops::Accumulate(running, batch, momentum);
  };
  update(mean_->data(), mean);
  update(var_->data(), unbiased);
}

void BatchNorm::DescribeConfig(ConfigTexts& texts) const {
  texts.function["eps"] = ConfigText(options_.eps);
  texts.training["momentum"] = ConfigText(options_.momentum);
}

}  // namespace apogee::nn
