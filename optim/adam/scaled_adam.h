// SPDX-License-Identifier: Apache-2.0

// ScaledAdam (Yao et al., "Zipformer", ICLR 2024; k2-fsa/icefall): Adam whose steps are relative to
// the rms of each parameter. It also learns that rms, and clips gradients against the median of
// recent gradient norms.
//
//   optim::ScaledAdam optimizer(model.Parameters(), {.lr = 0.045, .clipping_scale = 2.0});
//   Backward(criterion(model(x), y));
//   optimizer.step();
//   optimizer.zero_grad();
//   optimizer.Clipping(0).dominant;       // the parameter that makes up most of the norm
//
// With t the parameter's own step count from 0, P = size_update_period, N its number of elements
// and rms(w) = |w| / sqrt(N):
//   g     = grad * clip                           clip: one factor per group, see below
//   G_t   = sum(w g)
//   r     = rms(w)                                renewed at t = 0 and at t % P == P - 1
//   v     = beta2 v + (1 - beta2) g^2
//   c     = 1 - beta2^(t+1);  v' = v / c if c < 0.99, else v
//   step  = -lr max(r, param_min_rms) g / (sqrt(v') + eps)
//   at t % P == P - 1, t > 0, with b = beta2^P, k = (t + 1) / P, and mean and sum over the last P
//   steps:
//     s     = b s + (1 - b) mean(G^2)
//     a     = -lr scalar_lr_scale sqrt(1 - b^k) sum(G) / (sqrt(s) + eps)
//     a     = 0 if r < param_min_rms
//     a     = min(clamp(a, -0.1, 0.1), (param_max_rms - r) / r)
//     step += a w
//   delta = beta1 delta + (1 - beta1) step
//   w    += delta
// A parameter of one element has no size update, and w is clamped to +-scalar_max:
//   step  = -lr scalar_lr_scale g / (sqrt(v') + eps)
// As in the reference, delta has no bias correction and there is no weight decay.
//
// Clipping: clip follows from the group's norm (median_clipping.h), which weights each gradient:
//   norm^2 = sum over the group's parameters of r^2 sum(grad^2)
// For a parameter of one element, scalar_lr_scale^2 takes the place of r^2. StepOptions::max_norm,
// which clips the norm of the whole model, works in addition.
//
// States: delta, exp_avg_sq per element (8 bytes). Parameters of more than one element also have
// param_rms, scale_exp_avg_sq, scale_grad_sum, scale_grad_sumsq (16 bytes per parameter). Each
// group keeps the norms of clipping_update_period steps.
//
// Defaults are those of icefall, except that a parameter without a gradient is left alone.
//   Icefall()      An absent gradient counts as zeros, as in the reference.
//   Icefall2023()  The version of early 2023, with its defects: only G is clipped; scalars are
//                  clamped before the step; a = -lr scalar_lr_scale P above param_max_rms, without
//                  the limits +-0.1; no early thresholds; scalars count in the norm with weight 1;
//                  v of scalars is always divided by c.
#ifndef APOGEE_OPTIM_ADAM_SCALED_ADAM_H_
#define APOGEE_OPTIM_ADAM_SCALED_ADAM_H_

#include <array>
#include <optional>

#include "apogee/optim/optimizer.h"

namespace apogee::optim {

struct ScaledAdamSizeChunk;

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
  bool none_as_zero = false;  // an absent gradient counts as zeros
  bool icefall_2023 = false;  // the behaviour of early 2023

  static ScaledAdamOptions Icefall();
  static ScaledAdamOptions Icefall2023();
  static std::vector<OptionField<ScaledAdamOptions>> Fields();
  void Check(OptionProblems& problems) const;
};

// The part of a parameter in its group's clipping norm.
struct GradientShare {
  std::string name;
  double share = 0;      // of the group's squared norm, in [0, 1]; 0 when the norm is 0
  double grad_norm = 0;  // |grad|, not weighted
  double param_rms = 0;  // |w| for one element
};

struct ClippingReport {
  double norm = 0;       // of the last step; 0 before the first
  double factor = 1;     // the last step multiplied gradients by this
  double threshold = 0;  // the largest norm that is not clipped; 0: not known yet
  // Minimum, quartiles and maximum of the norms behind the threshold, and the percentage of those
  // steps that were clipped.
  std::array<double, 5> quartiles{};
  double percent_clipped = 0;
  int64_t num_clipped = 0;  // steps clipped since the threshold was set
  // The largest shares of the last step, largest first.
  std::vector<GradientShare> dominant;
};

class ScaledAdamRule : public RuleOf<ScaledAdamOptions> {
 public:
  static constexpr const char* kName = "scaled_adam";
  explicit ScaledAdamRule(std::vector<ScaledAdamOptions> groups);

  // See ScaledAdam.
  ClippingReport Clipping(int group, int num_dominant) const;

  OptimizerTraits traits() override {
    return {.shards = true,
            .decides_on_device = true,
            .num_stat_phases = 1,
            .of_param = [this](const ParamView&, int group) {
              return ParamTraits{.absent_is_zero = options(group).none_as_zero};
            }};
  }
  absl::Status CheckGroupState(const GroupState& state, const OptionMap& options) const override;
  void DeclareStats(int phase, std::span<const ActiveParam> params, StatBuffer& buffer) override;
  std::string ComputeStats(int phase, const RuleStep& step, StatBuffer& buffer) override;
  void Update(const RuleStep& step) override;
  void On(RuleEvent event) override;

 protected:
  void States(const Subject& of, std::vector<StateSpec>& specs) const override;

 private:
  // The results of a group's last step that Clipping() reads; the kernels write them.
  struct LastStep {
    std::vector<const ParamView*> views;
    Tensor shares;  // ScaledAdamSizeChunk::share of each; undefined without clipping
    Tensor gate;    // written by median_clip; undefined before the first step
  };
  // A group's MedianClippingState, in the device's memory.
  struct Kept {
    Tensor state;        // undefined until a step needs it
    bool ahead = false;  // newer than the GroupState
  };
  Tensor ClippingState(int group, const ContextPtr& context);
  // Brings the GroupState up to date. Waits for a GPU.
  void Fetch(int group);
  // `sums`: the totals of `param` from the statistics phase.
  ScaledAdamSizeChunk SizeChunk(const ActiveParam& param, const void* sums) const;

  std::vector<LastStep> last_;
  std::vector<std::optional<LastStep>> undecided_;  // of a step that the GPU may yet have skipped
  std::vector<Kept> kept_;
};

class ScaledAdam : public OptimizerOf<ScaledAdamRule> {
 public:
  using OptimizerOf::OptimizerOf;

  // The report of the last step, with at most `num_dominant` parameters. Without clipping_scale the
  // factor is 1 and everything else zero or empty. On a GPU, waits until the last step has run.
  ClippingReport Clipping(int group, int num_dominant = 1) const {
    last_step();
    return rule().Clipping(group, num_dominant);
  }
};
extern template class OptimizerOf<ScaledAdamRule>;

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_ADAM_SCALED_ADAM_H_
