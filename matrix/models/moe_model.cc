// SPDX-License-Identifier: Apache-2.0

#include "apogee/matrix/models/moe_model.h"

#include <utility>
#include <vector>

#include "apogee/nn/models/decoder.h"
#include "apogee/nn/moe/moe.h"

namespace apogee::matrix {
namespace {

constexpr int64_t kTokens = 8;  // of a sequence
constexpr double kFar = 1e6;    // more than any score

// The bias of each expert in the choice.
std::vector<double> BiasOf(MoeKind kind) {
  if (kind == MoeKind::kIdle) return {0, 0, 0, 0, 0, 0, -kFar, -kFar};
  return {0, 0, kFar, 0, 0, 0, 0, 0};
}

nn::MoeConfig ConfigOf(MoeKind kind) {
  nn::MoeConfig moe{.num_experts = 8, .top_k = 2, .intermediate_size = 8, .normalise = true};
  switch (kind) {
    case MoeKind::kPlain:
      moe.shared_size = 12;
      moe.shared_gate = true;
      break;
    case MoeKind::kIdle:
      // Else the gradient of an idle expert's logit is 0 in exact arithmetic, and rounding noise
      // here.
      moe.normalise = false;
      moe.choice_bias = true;
      break;
    case MoeKind::kOne:
      moe.recompute = true;
      moe.top_k = 1;
      moe.normalise = false;
      moe.choice_bias = true;
      break;
    case MoeKind::kRare:
      moe.num_experts = 16;
      moe.top_k = 1;
      moe.normalise = false;
      break;
    case MoeKind::kAux:
      moe.balance = nn::BalanceLoss::kMicroBatch;
      moe.balance_coefficient = 0.3;
      moe.z_coefficient = 0.01;
      break;
  }
  return moe;
}

}  // namespace

std::unique_ptr<nn::Module> MoeWorkload::MakeModel() const {
  nn::DecoderConfig config{
      .model_type = "moe", .vocab_size = kTinyVocab, .num_layers = 2, .max_tokens = kTokens};
  config.block.hidden_size = 16;
  config.block.intermediate_size = 24;
  config.block.num_heads = 4;
  config.block.num_kv_heads = 4;
  config.block.head_dim = 4;
  // With the usual epsilon, 20 steps of this tiny model turn rounding errors into 1e-6.
  config.block.norm_eps = 0.01;
  config.block.init = config.block.residual_init = nn::Init::Normal(0, 0.2);
  config.block.moe = ConfigOf(moe_);
  auto model = std::make_unique<nn::Decoder>(config);
  if (!config.block.moe.choice_bias) return model;
  for (nn::Moe* layer : nn::MoeLayers(*model)) {
    layer->AddPreForwardHook([kind = moe_](nn::Module& module, const Tensor&) {
      for (const auto& buffer : module.Buffers()) buffer->data().SetValues(BiasOf(kind));
    });
  }
  return model;
}

data::Batch MoeWorkload::Batch(const ContextPtr& context, const SampleRange& range) const {
  return TinyBatch(context, range, kTokens);
}

Auxiliary MoeWorkload::Auxiliary() const {
  if (moe_ != MoeKind::kAux) return nullptr;
  return nn::AuxiliaryLossOf;
}

}  // namespace apogee::matrix
