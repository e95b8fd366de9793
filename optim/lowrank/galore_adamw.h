// SPDX-License-Identifier: Apache-2.0

// GaLoreAdamW (Zhao et al., "GaLore", ICML 2024): AdamW in the form of Hugging Face on the
// projected gradient.
//
//   optim::GaLoreAdamW optimizer(optim::get_galore_param_groups(
//       model.Parameters(), GaLoreAdamWOptions{.lr = 1e-2, .rank = 64, .update_proj_gap = 200}));
//
// With R the projected gradient and back() as in galore.h, c1 = 1 - beta1^t and c2 = 1 - beta2^t
// (both 1 without correct_bias):
//   m = beta1 m + (1 - beta1) R
//   v = beta2 v + (1 - beta2) R^2
//   w -= lr sqrt(c2) / c1 * scale * back(m / (sqrt(v) + eps))
//   w -= lr * weight_decay * w
// Parameters that are not projected get the same update with R the gradient, without scale and
// back.
//
// States of a projected [m, n] matrix for std: exp_avg and exp_avg_sq, 8 r max(m, n) bytes;
// projector, 4 r min(m, n) bytes. Of other parameters: 8 bytes per element.
#ifndef APOGEE_OPTIM_LOWRANK_GALORE_ADAMW_H_
#define APOGEE_OPTIM_LOWRANK_GALORE_ADAMW_H_

#include <array>

#include "apogee/optim/lowrank/galore.h"

namespace apogee::optim {

struct GaLoreAdamWOptions {
  double lr = 1e-3;
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-6;
  double weight_decay = 0;
  bool correct_bias = true;
  // The projection, see galore.h.
  bool project = true;
  int64_t rank = 128;
  int64_t update_proj_gap = 200;
  double scale = 0.25;
  std::string proj_type = "std";
  bool clamp_rank = false;
  std::string svd = "randomized";
  std::string on_refresh = "keep";

  static constexpr const char* kName = "galore_adamw";
  static std::vector<OptionField<GaLoreAdamWOptions>> Fields();
  void Check(OptionProblems& problems) const { CheckGaLore(GaLoreOf(*this), problems); }
};

class GaLoreAdamWRule : public GaLoreRule<GaLoreAdamWOptions> {
 public:
  static constexpr const char* kName = GaLoreAdamWOptions::kName;
  using GaLoreRule::GaLoreRule;

  void Update(const RuleStep& step) override;

 protected:
  void States(const Subject& of, std::vector<StateSpec>& specs) const override;
  Tensor LowRankUpdate(const ActiveParam& param, ParamView& states, const Projected& projected,
                       const RuleStep& step) override;
};
using GaLoreAdamW = OptimizerOf<GaLoreAdamWRule>;
extern template class OptimizerOf<GaLoreAdamWRule>;

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_LOWRANK_GALORE_ADAMW_H_
