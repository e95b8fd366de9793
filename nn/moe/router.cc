// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/moe/router.h"

#include <cmath>

#include "apogee/autograd/functions/activation.h"
#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/functions/embedding.h"
#include "apogee/autograd/functions/shape.h"
#include "apogee/nn/layers.h"

namespace apogee::nn {
namespace {

// Added to the sum of sigmoid scores, which may all be 0.
constexpr double kSigmoidEps = 1e-20;

Tensor Normalised(const Tensor& weights, RouterScore score) {
  Tensor sum = autograd::Sum(weights, {1}, /*keep_dims=*/true);
  if (score == RouterScore::kSigmoid) {
    sum = autograd::Add(sum, Tensor::Full({1}, sum.dtype(), kSigmoidEps, sum.context()));
  }
  return autograd::Div(weights, sum);
}

}  // namespace

MoeRouter::MoeRouter(int64_t hidden_size, const MoeConfig& config, const Init& init)
    : config_(config),
      rule_{.num_experts = config.num_experts,
            .top_k = config.top_k,
            .num_groups = config.num_groups,
            .top_groups = config.top_groups},
      weight_(RegisterParameter("weight", {config.num_experts, hidden_size}, init)) {
  if (!config.choice_bias) return;
  bias_ = RegisterBuffer("e_score_correction_bias", {config.num_experts}, Init::Constant(0));
}

Tensor MoeRouter::Forward(const Tensor& x) {
  const DType dtype = weight_->dtype() == DType::kF64 ? DType::kF64 : DType::kF32;
  return autograd::Linear(InputOf(*this, x, *weight_), weight_->value(), {}, {.out_dtype = dtype});
}

std::vector<int64_t> MoeRouter::Choose(const Tensor& scores) const {
  const int64_t num_tokens = scores.size(0);
  if (scores.context()->is_dry()) return TakeTurns(num_tokens, rule_);
  std::vector<double> values = scores.ToVector<double>();
  const auto num_experts = static_cast<size_t>(rule_.num_experts);
  for (size_t i = 0; i < values.size(); ++i) {
    APOGEE_CHECK(!std::isnan(values[i]), "mixture of experts \"", full_name(),
                 "\": the score of expert ", i % num_experts, " for token ", i / num_experts,
                 " in ", progress().empty() ? "this forward" : progress(),
                 " is not a number; the values before this layer, or its weights, "
                 "are infinite or not numbers. Lower the learning rate or set max_norm");
  }
  if (bias_ != nullptr) {
    const std::vector<double> bias = bias_->data().ToVector<double>();
    for (size_t i = 0; i < values.size(); ++i) values[i] += bias[i % num_experts];
  }
  return ChooseExperts(values, rule_);
}

Routing MoeRouter::Route(const Tensor& x) {
  Routing routing;
  routing.logits = (*this)(x);
  routing.scores = config_.score == RouterScore::kSoftmax ? autograd::Softmax(routing.logits)
                                                          : autograd::Sigmoid(routing.logits);
  routing.chosen = Choose(routing.scores.Detach());
  const Shape shape{x.size(0), rule_.top_k};
  const Tensor index = Tensor::FromVector<int64_t>(routing.chosen, shape, x.context());
  Tensor weights = autograd::Gather(routing.scores, 1, index);
  if (config_.normalise) weights = Normalised(weights, config_.score);
  if (config_.scale != 1) weights = autograd::Scale(weights, config_.scale);
  routing.weights = autograd::View(weights, {shape.numel()});
  return routing;
}

}  // namespace apogee::nn
