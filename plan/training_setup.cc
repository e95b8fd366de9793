// SPDX-License-Identifier: Apache-2.0

#include "apogee/plan/training_setup.h"

#include <algorithm>
#include <utility>

#include "apogee/nn/models/decoder.h"
#include "apogee/nn/models/hf_config.h"
#include "apogee/nn/models/hf_model.h"

namespace apogee::plan {

absl::StatusOr<TrainingSetup> SetupOfConfig(const std::string& json, const std::string& path,
                                            const ModelOptions& options) {
  APOGEE_ASSIGN_OR_RETURN(const nn::HfModel known, nn::MakeHfModel(json, path, [](auto&) {}));
  if (known.vocab_size == 0) {
    return InvalidArgument(path, ": a model of type ", known.model_type,
                           " takes no tokens; price your own loop with plan::DryRun "
                           "(plan/dry_run.h)");
  }
  TrainingSetup setup{
      .model = known.model_type, .max_tokens = known.max_tokens, .vocab_size = known.vocab_size};
  if (options.head_chunks < 0) {
    return InvalidArgument(path, ": head_chunks must be 0 (whole logits) or more, got ",
                           options.head_chunks);
  }
  if (known.task != nn::HfTask::kCausalLm) {
    if (options.head_chunks > 0 || options.recompute_activations) {
      return InvalidArgument(path, ": a model of type ", known.model_type,
                             " has neither head_chunks nor recompute_activations");
    }
    setup.can_recompute = false;
    setup.make_model = [json, path](bool) {
      return std::move(ValueOrThrow(nn::MakeHfModel(json, path, [](auto&) {})).module);
    };
    return setup;
  }
  APOGEE_ASSIGN_OR_RETURN(nn::DecoderConfig config,
                          nn::ParseDecoderHfConfig(json, path, [](auto&) {}));
  setup.num_layers = config.num_layers;
  setup.num_kv_heads = config.block.num_kv_heads;
  setup.num_experts = config.block.moe.num_experts;
  if (setup.num_experts > 0) {
    setup.assumption =
        internal::Concat("the ", setup.num_experts, " experts of a layer get equally many tokens");
  }
  config.head_chunks = options.head_chunks;
  setup.make_model = [config, options](bool recompute) {
    nn::DecoderConfig chosen = config;
    chosen.recompute = recompute;
    chosen.block.recompute_activations = options.recompute_activations && !recompute;
    return std::make_unique<nn::Decoder>(chosen);
  };
  return setup;
}

absl::Status CheckSetup(const TrainingSetup& setup) {
  std::string problems;
  const auto demand = [&](bool holds, const auto&... parts) {
    if (!holds) problems += internal::Concat("\n  ", parts...);
  };
  demand(setup.make_model != nullptr || setup.train != nullptr, "there is no model");
  demand(setup.batch >= 1, "batch is ", setup.batch, "; it must be at least 1");
  demand(setup.accumulate >= 1, "accumulate is ", setup.accumulate, "; it must be at least 1");
  demand(setup.accumulate < 1 || setup.batch % setup.accumulate == 0, "batch ", setup.batch,
         " is not divisible by accumulate ", setup.accumulate);
  demand(setup.tokens >= 1, "tokens is ", setup.tokens, "; it must be at least 1");
  demand(setup.max_tokens == 0 || setup.tokens <= setup.max_tokens, "tokens is ", setup.tokens,
         ", the model takes at most ", setup.max_tokens);
  demand(!setup.recompute || setup.can_recompute, "the model has no recompute");
  if (problems.empty()) return absl::OkStatus();
  return InvalidArgument("plan: the setup has problems:", problems);
}

}  // namespace apogee::plan
