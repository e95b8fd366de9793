// SPDX-License-Identifier: Apache-2.0

// The options of a mixture of experts (nn/moe/moe.h). docs/moe.md has the formulas.
//
//   nn::MoeConfig mixtral{.num_experts = 8, .top_k = 2, .intermediate_size = 14336,
//                         .normalise = true};
#ifndef APOGEE_NN_MOE_MOE_CONFIG_H_
#define APOGEE_NN_MOE_MOE_CONFIG_H_

#include <cstdint>
#include <string>

#include "apogee/nn/module.h"
#include "apogee/tensor/ops/kinds.h"

namespace apogee::nn {

enum class RouterScore { kSoftmax, kSigmoid };

// The auxiliary loss that keeps the experts' loads even.
enum class BalanceLoss {
  kNone,
  kMicroBatch,  // of each layer, over the micro-batch of all ranks
  kSequence,    // of each layer and sequence
  kHfLayers,    // over all layers together, as the transformers library computes it
};

// Relative to the module; dots make containers. The defaults are those of Qwen.
struct MoeNames {
  std::string gate = "gate";
  std::string experts = "experts";  // expert 3's matrices: "experts.3.gate_proj.weight"
  std::string expert_gate = "gate_proj", expert_up = "up_proj", expert_down = "down_proj";
  std::string shared = "shared_expert", shared_gate = "shared_expert_gate";
};

struct MoeConfig {
  int64_t num_experts = 0;  // 0: no mixture of experts
  int64_t top_k = 0;
  int64_t intermediate_size = 0;  // of one expert
  // Of the expert that every token takes; 0: there is none.
  int64_t shared_size = 0;
  bool shared_gate = false;  // its result is multiplied by a sigmoid of its own

  RouterScore score = RouterScore::kSoftmax;
  bool normalise = false;  // the weights of a token's experts add up to `scale`
  double scale = 1;
  // Above 1: experts are chosen from the top_groups best of these groups of neighbours.
  int64_t num_groups = 1, top_groups = 1;
  // A buffer "gate.e_score_correction_bias" is added to the scores for the choice alone.
  bool choice_bias = false;
  // Above 0: an expert takes at most ceil(factor * tokens * top_k / num_experts) choices of a
  // micro-batch, the first ones in the order of tokens.
  double capacity_factor = 0;

  // Activation checkpointing of the experts alone: keep only their rows and run them again in
  // backward, under expert parallelism with its exchanges. The results are the same.
  bool recompute = false;

  BalanceLoss balance = BalanceLoss::kNone;
  double balance_coefficient = 0;
  double z_coefficient = 0;  // of the mean of logsumexp(logits)^2

  MoeNames names = MoeNames();
};

// The problems of a configuration, one a line with a leading "\n  "; "": there is none.
std::string MoeProblems(const MoeConfig& config);

}  // namespace apogee::nn

#endif  // APOGEE_NN_MOE_MOE_CONFIG_H_
