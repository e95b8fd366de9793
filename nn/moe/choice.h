// SPDX-License-Identifier: Apache-2.0

// Which experts each token takes, and how the choices are sorted by expert: plain numbers, no
// tensors. Private to nn/moe.
//
//   const ChoiceRule rule{.num_experts = 8, .top_k = 2};
//   std::vector<int64_t> chosen = ChooseExperts(scores, rule);
//   RowPlan plan = SortByExpert(chosen, rule);      // plan.counts[3]: the rows of expert 3
//
// docs/moe.md has the rules for ties, groups and capacity.
#ifndef APOGEE_NN_MOE_CHOICE_H_
#define APOGEE_NN_MOE_CHOICE_H_

#include <cstdint>
#include <vector>

namespace apogee::nn {

struct ChoiceRule {
  int64_t num_experts = 0;
  int64_t top_k = 0;
  // Experts are chosen from the `top_groups` best of `num_groups` groups of neighbours.
  int64_t num_groups = 1, top_groups = 1;
};

// scores: num_experts per token. Returns top_k experts per token, ascending. No score may be NaN.
std::vector<int64_t> ChooseExperts(const std::vector<double>& scores, const ChoiceRule& rule);
// The choices of a plan without values: experts take turns, so all get equally many tokens.
std::vector<int64_t> TakeTurns(int64_t num_tokens, const ChoiceRule& rule);

// The choices sorted by expert, then token.
struct RowPlan {
  std::vector<int64_t> counts = {};   // by expert
  std::vector<int64_t> tokens = {};   // by row
  std::vector<int64_t> choices = {};  // by row: its place in `chosen`, token * top_k + j
};
// `capacity`: the most rows of an expert; the first ones in the order of tokens stay. 0: no limit.
RowPlan SortByExpert(const std::vector<int64_t>& chosen, const ChoiceRule& rule,
                     int64_t capacity = 0);

}  // namespace apogee::nn

#endif  // APOGEE_NN_MOE_CHOICE_H_
