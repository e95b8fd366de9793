// SPDX-License-Identifier: Apache-2.0

// GaLoreAdamW8bit: AdamW on the projected gradient with 8-bit block-wise moments (ColossalAI's
// class of that name, over bitsandbytes).
//
//   optim::GaLoreAdamW8bit optimizer(optim::get_galore_param_groups(
//       model.Parameters(), GaLoreAdamW8bitOptions{.lr = 1e-2, .rank = 64}));
//
// For a projected matrix, with R the projected gradient and back() as in galore.h, and moments and
// codes of R as in adamw8bit.h:
//   w += scale * back(-lr / c1 * m / (sqrt(v / c2) + eps))
//   w -= lr * weight_decay * w
// Here the decay comes after the update for both values of `kernel`. min_8bit_size counts the
// elements of R. Other parameters get AdamW8bit's step.
//
// States of a projected [m, n] matrix for std: state1, state2, absmax1 and absmax2, about
// 2.03 r max(m, n) bytes; projector, 4 r min(m, n) bytes.
#ifndef APOGEE_OPTIM_LOWRANK_GALORE_ADAMW8BIT_H_
#define APOGEE_OPTIM_LOWRANK_GALORE_ADAMW8BIT_H_

#include <array>

#include "apogee/optim/lowrank/galore.h"

namespace apogee::optim {

struct GaLoreAdamW8bitOptions {
  double lr = 1e-3;
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 1e-2;
  int64_t bits = 8;
  int64_t min_8bit_size = 4096;
  int64_t block_size = 256;
  bool block_wise = true;
  std::string kernel = "cuda";
  // The projection, see galore.h.
  bool project = true;
  int64_t rank = 128;
  int64_t update_proj_gap = 200;
  double scale = 0.25;
  std::string proj_type = "std";
  bool clamp_rank = false;
  std::string svd = "randomized";
  std::string on_refresh = "keep";

  static constexpr const char* kName = "galore_adamw8bit";
  static std::vector<OptionField<GaLoreAdamW8bitOptions>> Fields();
  void Check(OptionProblems& problems) const;
};

// The phase of R also has the scales of blocks that shards may cut.
class GaLoreAdamW8bitRule : public GaLoreRule<GaLoreAdamW8bitOptions> {
 public:
  static constexpr const char* kName = GaLoreAdamW8bitOptions::kName;
  using GaLoreRule::GaLoreRule;

  void DeclareStats(int phase, std::span<const ActiveParam> params, StatBuffer& buffer) override;
  std::string ComputeStats(int phase, const RuleStep& step, StatBuffer& buffer) override;
  void Update(const RuleStep& step) override;

 protected:
  void States(const Subject& of, std::vector<StateSpec>& specs) const override;
  // False with 8-bit codes in f32. The projection of a mean and the mean of projections differ in
  // their last bits, which may decide between two codes.
  bool ReducesOwnGrad(const ParamView& view, int group) const override;
  Tensor LowRankUpdate(const ActiveParam& param, ParamView& states, const Projected& projected,
                       const RuleStep& step) override;

 private:
  static void MoveMoments(const GaLoreAdamW8bitOptions& o, const ParamView& view,
                          const Projected& projected);
};
using GaLoreAdamW8bit = OptimizerOf<GaLoreAdamW8bitRule>;
extern template class OptimizerOf<GaLoreAdamW8bitRule>;

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_LOWRANK_GALORE_ADAMW8BIT_H_
