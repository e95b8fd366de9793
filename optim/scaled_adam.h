// SPDX-License-Identifier: Apache-2.0

// ScaledAdam (Yao et al., "Zipformer", ICLR 2024; k2-fsa/icefall): Adam whose steps are relative to
// the size of each parameter, that also learns that size, and clips against the median of recent
// gradient norms.
//
//   optim::ScaledAdam optimizer(model.Parameters(), {.lr = 0.045, .clipping_scale = 2.0});
//   Backward(criterion(model(x), y));
//   optimizer.step();
//   optimizer.zero_grad();
//   optimizer.Clipping(0).dominant;                  // the parameter that makes up most of the
//   norm
//
// With t from 0 the parameter's own steps, P = size_update_period, N elements, rms(w) = |w| /
// sqrt(N):
//   g     = grad * clip                                        clip: one factor per group, below
//   G_t   = sum(w g);  at t = 0 and t % P == P - 1: r = rms(w)
//   v     = beta2 v + (1 - beta2) g^2;  c = 1 - beta2^(t+1);  v' = v / c if c < 0.99, else v
//   step  = -lr max(r, param_min_rms) g / (sqrt(v') + eps)
//   at t % P == P - 1, t > 0:  b = beta2^P;  k = (t + 1) / P;  over the last P steps
//     s   = b s + (1 - b) mean(G^2);  a = -lr scalar_lr_scale sqrt(1 - b^k) sum(G) / (sqrt(s) +
//     eps) a   = 0 if r < param_min_rms;  a = min(clamp(a, +-0.1), (param_max_rms - r) / r);  step
//     += a w
//   delta = beta1 delta + (1 - beta1) step;  w += delta
// One element: step = -lr scalar_lr_scale g / (sqrt(v') + eps), no size update, w clamped to
// +-scalar_max. No bias correction of delta and no weight decay, as in the reference. Clipping:
// norm^2 = sum over the group of r^2 sum(grad^2), for one element scalar_lr_scale^2 grad^2; see
// median_clipping.h. It is a group's, beside StepOptions::max_norm, which is the whole model's.
//
// States: delta, exp_avg_sq per element (8 bytes), param_rms, scale_exp_avg_sq, scale_grad_sum,
// scale_grad_sumsq (16 bytes per parameter), exp_avg_sq and delta only for one element; per group
// the norms of clipping_update_period steps.
//
// Defaults are those of icefall, but a parameter without a gradient is left alone. Presets:
// Icefall() counts absent gradients as zeros as the reference does; Icefall2023() is the version of
// early 2023, with its defects: clipping reaches only G, scalars are clamped before the step, a =
// -lr scalar_lr_scale P above param_max_rms and no +-0.1, no early thresholds, scalars count fully
// in the norm, c always divides v of scalars.
#ifndef APOGEE_OPTIM_SCALED_ADAM_H_
#define APOGEE_OPTIM_SCALED_ADAM_H_

#include <array>
#include <optional>

#include "apogee/optim/typed_optimizer.h"

namespace apogee::optim {

struct ScaledAdamOptions {
  double lr = 3e-2;
  double clipping_scale = 0;  // times the median norm; 0: no clipping
  std::array<double, 2> betas = {0.9, 0.98};
  double scalar_lr_scale = 0.1;
  double eps = 1e-8;
  double param_min_rms = 1e-5;
  double param_max_rms = 3.0;
  double scalar_max = 10.0;
  int64_t size_update_period = 4;
  int64_t clipping_update_period = 100;
  bool none_as_zero = false;  // an absent gradient counts as one of zeros
  bool icefall_2023 = false;  // the behaviour of early 2023

  static ScaledAdamOptions Icefall();
  static ScaledAdamOptions Icefall2023();
  std::vector<std::string> Problems() const;
  static std::vector<OptionField<ScaledAdamOptions>> Fields();
};
extern template class TypedOptimizer<ScaledAdamOptions>;

// What a parameter contributes to the norm that is clipped.
struct GradientShare {
  std::string name;
  double share = 0;      // of the group's squared norm; 0 when that is 0
  double grad_norm = 0;  // of the gradient alone
  double param_rms = 0;  // |w| for one element
};

struct ClippingReport {
  double norm = 0;       // of the last step, 0 before it
  double factor = 1;     // what the last step multiplied gradients with
  double threshold = 0;  // 0: not known yet
  // Minimum, quartiles and maximum of the norms that the threshold was made from, and how many of
  // those steps were clipped, in percent.
  std::array<double, 5> quartiles{};
  double percent_clipped = 0;
  int64_t num_clipped = 0;  // since then
  // The largest shares of the last step, largest first.
  std::vector<GradientShare> dominant;
};

class ScaledAdam : public TypedOptimizer<ScaledAdamOptions> {
 public:
  explicit ScaledAdam(std::vector<autograd::ParameterPtr> params,
                      const ScaledAdamOptions& options = {})
      : ScaledAdam({{std::move(params), options}}) {}
  explicit ScaledAdam(std::vector<ParamGroup<ScaledAdamOptions>> groups);

  // With at most `num_dominant` parameters. All zero for a group without clipping. Waits for the
  // GPU that the last step runs on.
  ClippingReport Clipping(int group, int num_dominant = 1) const;

  bool SupportsShards() const override { return true; }
  bool DecidesOnDevice() const override { return true; }

 protected:
  std::span<const StateSpec> StatesUnder(const ParamView& view,
                                         const ScaledAdamOptions& options) const override;
  bool AbsentIsZero(int group) const override { return options(group).none_as_zero; }
  absl::Status CheckGroupState(const GroupState& state, const OptionMap& options) const override;
  void FetchGroupState(int group, GroupState& state) const override;
  void OnDecided(bool skipped) override;
  int num_stat_phases() const override { return 1; }
  void DeclareStats(int phase, std::span<const ActiveParam> params, StatBuffer& buffer) override;
  void ComputeStats(int phase, std::span<const ActiveParam> params, const StepDecision& decision,
                    std::span<const StatBuffer> totals, StatBuffer& buffer) override;
  void Update(int group, std::span<const ActiveParam> params, const StepDecision& decision,
              std::span<const StatBuffer> totals) override;

 private:
  // What Clipping() tells of a group's step, where the kernels put it.
  struct LastStep {
    std::vector<const ParamView*> views;
    Tensor shares;  // ScaledAdamSizeChunk::share of each; undefined without clipping
    Tensor gate;    // median_clip's; undefined before the first step
  };
  // A group's MedianClippingState, which kernels keep.
  struct Kept {
    Tensor state;        // undefined until a step needs it
    bool ahead = false;  // of the GroupState
  };
  Tensor ClippingState(int group, const ContextPtr& context);
  // `sums`: the totals of `param`.
  ScaledAdamSizeChunk SizeChunk(const ActiveParam& param, const void* sums) const;

  std::vector<LastStep> last_;
  std::vector<std::optional<LastStep>> undecided_;  // of a step that a GPU may have skipped
  mutable std::vector<Kept> kept_;
};

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_SCALED_ADAM_H_
