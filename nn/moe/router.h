// SPDX-License-Identifier: Apache-2.0

// MoeRouter: scores experts for every token, and chooses. Private to nn/moe.
//
//   auto router = std::make_shared<MoeRouter>(hidden_size, config, init);
//   Routing routing = router->Route(x);                         // x [T, hidden_size]
//
// Parameter: "weight" [num_experts, hidden_size]; with choice_bias a buffer
// "e_score_correction_bias" [num_experts]. Logits, scores and weights are f32 (f64 for f64). The
// host reads the scores, and waits for a GPU. A score that is NaN throws Error.
#ifndef APOGEE_NN_MOE_ROUTER_H_
#define APOGEE_NN_MOE_ROUTER_H_

#include <vector>

#include "apogee/nn/moe/choice.h"
#include "apogee/nn/moe/moe_config.h"

namespace apogee::nn {

struct Routing {
  Tensor logits, scores;        // [T, num_experts]
  Tensor weights;               // [T * top_k], by token, then expert
  std::vector<int64_t> chosen;  // the same order
};

class MoeRouter : public Module {
 public:
  MoeRouter(int64_t hidden_size, const MoeConfig& config, const Init& init);
  // The logits.
  Tensor Forward(const Tensor& x) override;
  Routing Route(const Tensor& x);
  const ChoiceRule& rule() const { return rule_; }
  // Null without choice_bias.
  const ParameterPtr& bias() const { return bias_; }

 private:
  std::vector<int64_t> Choose(const Tensor& scores) const;

  MoeConfig config_;
  ChoiceRule rule_;
  ParameterPtr weight_, bias_;
};

}  // namespace apogee::nn

#endif  // APOGEE_NN_MOE_ROUTER_H_
