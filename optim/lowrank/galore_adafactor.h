// SPDX-License-Identifier: Apache-2.0

// GaLoreAdafactor (Zhao et al., "GaLore", ICML 2024): Adafactor on the projected gradient. Most of
// a matrix's state is then the basis.
//
//   optim::GaLoreAdafactor optimizer(optim::get_galore_param_groups(
//       model.Parameters(), GaLoreAdafactorOptions{.rank = 64, .update_proj_gap = 200}));
//
// With R the projected gradient and back() as in galore.h, and alpha (which follows from rms(w)) of
// the whole matrix as in adafactor.h:
//   u = alpha * (R, normalised and clipped as in adafactor.h)
//   beta1 > 0: m = beta1 m + (1 - beta1) u;  u = m
//   w -= weight_decay * alpha * w
//   w -= scale * back(u)
// Parameters that are not projected get Adafactor's step. With on_refresh = rotate, the row and
// column averages are rotated with the squared entries of the rotation, as mean squares are.
//
// States of a projected [m, n] matrix for std: projector, 4 r min(m, n) bytes; exp_avg_sq_row and
// exp_avg_sq_col of R, 4 (max(m, n) + r) bytes; with beta1 also exp_avg, 4 r max(m, n) bytes.
// Statistics in addition to those of the projection: the sum of w^2, if scale_parameter is set.
#ifndef APOGEE_OPTIM_LOWRANK_GALORE_ADAFACTOR_H_
#define APOGEE_OPTIM_LOWRANK_GALORE_ADAFACTOR_H_

#include <array>
#include <limits>
#include <memory>

#include "apogee/optim/factored/adafactor.h"
#include "apogee/optim/lowrank/galore.h"

namespace apogee::optim {

struct GaLoreAdafactorOptions {
  // As in AdafactorOptions.
  double lr = std::numeric_limits<double>::quiet_NaN();
  std::array<double, 2> eps = {1e-30, 1e-3};
  double clip_threshold = 1;
  double decay_rate = -0.8;
  double beta1 = 0;
  double weight_decay = 0;
  bool scale_parameter = true;
  bool relative_step = true;
  bool warmup_init = false;
  // The projection, see galore.h.
  bool project = true;
  int64_t rank = 128;
  int64_t update_proj_gap = 200;
  double scale = 0.25;
  std::string proj_type = "std";
  bool clamp_rank = false;
  std::string svd = "randomized";
  std::string on_refresh = "keep";

  static constexpr const char* kName = "galore_adafactor";
  static std::vector<OptionField<GaLoreAdafactorOptions>> Fields();
  void Check(OptionProblems& problems) const;
};

// Adafactor's two phases, for parameters that are not projected, share the phases of the projection
// and the direction.
class GaLoreAdafactorRule : public GaLoreRule<GaLoreAdafactorOptions> {
 public:
  static constexpr const char* kName = GaLoreAdafactorOptions::kName;
  explicit GaLoreAdafactorRule(std::vector<GaLoreAdafactorOptions> groups);
  ~GaLoreAdafactorRule() override;

  void DeclareStats(int phase, std::span<const ActiveParam> params, StatBuffer& buffer) override;
  std::string ComputeStats(int phase, const RuleStep& step, StatBuffer& buffer) override;
  void Update(const RuleStep& step) override;

 protected:
  void States(const Subject& of, std::vector<StateSpec>& specs) const override;
  Tensor LowRankUpdate(const ActiveParam& param, ParamView& states, const Projected& projected,
                       const RuleStep& step) override;

 private:
  // Writes this rank's sums of w^2.
  void SumWeights(std::span<const ActiveParam> params, StatBuffer& buffer) const;
  // Adafactor's rate for update number `t` of a projected parameter.
  SizedRate Alpha(const ActiveParam& param, int64_t t, std::span<const StatBuffer> totals) const;
  static void MoveStates(const GaLoreAdafactorOptions& o, const ParamView& view,
                         const Projected& projected);

  std::unique_ptr<AdafactorStep> step_;
};
using GaLoreAdafactor = OptimizerOf<GaLoreAdafactorRule>;
extern template class OptimizerOf<GaLoreAdafactorRule>;

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_LOWRANK_GALORE_ADAFACTOR_H_
