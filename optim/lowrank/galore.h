// SPDX-License-Identifier: Apache-2.0

// Gradient low-rank projection (Zhao et al., "GaLore", ICML 2024), shared by the GaLore optimizers.
// The gradient of a matrix is projected on its leading singular vectors. The optimizer's moments
// live in that small space, and its update is projected back.
//
//   optim::GaLoreAdamW optimizer(optim::get_galore_param_groups(
//       model.Parameters(), GaLoreAdamWOptions{.lr = 1e-2, .rank = 64}));
//
// For a gradient G [m, n] and rank r, a new basis is computed every update_proj_gap updates of the
// parameter (a refresh). R is the projected gradient, and back() projects an update U of R back:
//   side    basis                  R                      back(U)
//   right   P [r, n]               G P^T        [m, r]    U P
//   left    L [m, r]               L^T G        [r, n]    L U
//   full    L [m, r] and P [r, n]  L^T G P^T    [r, r]    L U P
// The update of the weights is w += scale * back(update of R).
// proj_type "std" is right for m >= n, else left; "reverse_std" is the opposite.
//
// Only matrices are projected. A parameter with another number of dims, or in a group with
// project = false, gets the plain update. If a gradient is all zeros (or not finite, under
// NonFinitePolicy::kProceed), the old basis is kept; at the first update, the first r unit vectors
// are used. The side depends only on the shape and on proj_type.
//
// At a refresh the moments are in the coordinates of the old basis. on_refresh chooses their fate:
//   keep     stay as they are (the reference)
//   reset    start from zero
//   rotate   the first moment is rotated into the new coordinates, the second with the squared
//            entries of the rotation
//
// Several ranks. Two cases need statistics: the parameter is a shard (ZeRO), or its gradient is an
// unreduced addend of the mean (ParamView::partial_grad; DDP without clipping, except for 8-bit
// moments in f32). Each phase is one packed sum over all such matrices, and a phase without numbers
// sends nothing:
//   gradient     at a refresh: the whole gradient, m n numbers
//   basis        at a refresh: the owner (owners.h) computes the basis, the others add zeros
//   projection   R; every rank projects the rows that it holds elements of
//   direction    shards only: the owner computes the update of R and changes its moments; every
//                rank projects that update back on its own elements
// Between refreshes, a step costs the decision's all-reduce and two more (one more for unreduced
// gradients), however many matrices there are. Each sends `low` numbers per matrix instead of m n,
// where low is the number of elements of R: r max(m, n) for std. A step with a refresh also holds
// the summed gradients until it ends.
//
// State memory. Every rank keeps the bases (projector, or projector_left and projector_right). Only
// the owner keeps the moments of a sharded matrix. One of n ranks thus holds, in elements,
//   (sum of `basis` over all matrices) + (sum of `moments` over the matrices it owns)
// where
//   basis    is r min(m, n) for std, r (m + n) for full
//   moments  is 2 low for the Adam forms (one byte each, plus scales, for the 8-bit one);
//            for Adafactor, the number of rows plus columns of R, and with beta1 low more
// For all matrices of one owner together, R has at most (sum of low) / n + (largest low) elements.
#ifndef APOGEE_OPTIM_LOWRANK_GALORE_H_
#define APOGEE_OPTIM_LOWRANK_GALORE_H_

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "apogee/optim/optimizer.h"
#include "apogee/optim/options.h"

namespace apogee::optim {

enum class DecayKind;
struct LowRankBasis;
struct SizedRate;

struct GaLoreSettings {
  bool project = true;
  int64_t rank = 128;
  int64_t update_proj_gap = 200;
  double scale = 0.25;
  std::string proj_type = "std";
  bool clamp_rank = false;  // a rank above min(m, n) becomes that instead of an error
  std::string svd = "randomized";
  std::string on_refresh = "keep";
};

// Sizes and sides of the projection of one parameter.
struct GaLorePlan {
  int64_t rows, cols, rank;
  bool left, right;
  Shape low_rank() const { return {left ? rank : rows, right ? rank : cols}; }
};

// Turns coordinates in the old basis into coordinates in the new one. A side that is not projected
// is undefined.
struct GaLoreRotation {
  Tensor left, right;  // [r, r]: x -> left x right
  // Returns the rotated `x`. `squared`: rotates with the squared entries (for second moments).
  Tensor Apply(const Tensor& x, bool squared) const;
};

struct NewBasis {
  Tensor vectors;  // rows [r, n] (right) or columns [m, r]
  bool right;
  bool both_sides;  // proj_type full: the other side has a basis too
};

class GaLoreProjector {
 public:
  // Called with every new basis before it is used, on the rank that computes it. May change the
  // vectors in place.
  using BasisHook = std::function<void(const ParamView&, const NewBasis&)>;
  virtual ~GaLoreProjector() = default;
  void set_basis_hook(BasisHook hook) { hook_ = std::move(hook); }

 protected:
  static constexpr int kGradientPhase = 0;
  static constexpr int kBasisPhase = 1;
  static constexpr int kProjectionPhase = 2;
  static constexpr int kDirectionPhase = 3;
  static constexpr int kNumPhases = 4;

  struct Projected {
    Tensor grad;              // R, in the compute dtype, not scaled
    bool refreshed = false;   // a new basis replaces an earlier one
    GaLoreRotation rotation;  // with on_refresh = rotate
  };
  // Returns the update of R, shaped like R. Changes the low-rank states of `states`, which is
  // `param`'s view or a stand-in with copies of its states. states.step() already counts this
  // update.
  virtual Tensor LowRankUpdate(const ActiveParam& param, ParamView& states,
                               const Projected& projected, const RuleStep& step) = 0;

  static bool Projects(const GaLoreSettings& settings, const ParamView& view);
  static GaLorePlan PlanOf(const GaLoreSettings& settings, const ParamView& view);
  // The number of elements of R; 0 if the parameter is not projected.
  static int64_t LowRankNumel(const GaLoreSettings& settings, const ParamView& view);
  // Whether this rank keeps the moments of a projected parameter.
  static bool KeepsMoments(const ParamView& view) { return view.owned() || !view.sharded(); }
  static void AppendBasisSpecs(const GaLoreSettings& settings, const ParamView& view,
                               std::vector<StateSpec>& specs);

  // The statistics of a projected parameter. Declare them before other entries of the same
  // parameter.
  void Declare(int phase, const GaLoreSettings& settings, const ActiveParam& param,
               StatBuffer& buffer) const;
  void Compute(int phase, const GaLoreSettings& settings, const ActiveParam& param,
               const RuleStep& step, StatBuffer& buffer);
  // For Update: w += scale * back(update of R), and w -= decay * decay_rate * w before or after it.
  void UpdateProjected(const GaLoreSettings& settings, const ActiveParam& param,
                       const RuleStep& step, DecayKind kind, double decay,
                       const SizedRate& decay_rate);

  // Whether the next step computes a basis of the parameter. Computing one reads the gradient, and
  // with it the decision, on the host.
  static bool RefreshesNext(const GaLoreSettings& settings, const ParamView& view,
                            bool spans_ranks);

 private:
  // R with the rotation from `old` to `fresh`; `fresh` is undefined without a refresh. `earlier`:
  // the number of updates so far.
  static Projected Assemble(const GaLoreSettings& settings, const LowRankBasis& old,
                            const LowRankBasis& fresh, const Tensor& low_rank, int64_t earlier);
  LowRankBasis MakeBasis(const GaLoreSettings& settings, const ParamView& view, const Tensor& grad,
                         bool first) const;
  void ComputeBasis(const GaLoreSettings& settings, const ActiveParam& param,
                    std::span<const StatBuffer> totals, const Tensor& to) const;
  // The owner's update of R. Changes copies of the states; they replace the states only after the
  // statistics, which may still fail.
  Tensor ComputeDirection(const GaLoreSettings& settings, const ActiveParam& param,
                          const RuleStep& step);

  std::map<const ParamView*, std::vector<NamedState>> moved_;
  BasisHook hook_;
};

// GaLoreSettings and option fields from an options struct that has the same members.
template <typename Options>
GaLoreSettings GaLoreOf(const Options& o) {
  return {o.project,    o.rank, o.update_proj_gap, o.scale, o.proj_type,
          o.clamp_rank, o.svd,  o.on_refresh};
}
template <typename Options>
std::vector<OptionField<Options>> GaLoreFields() {
  using O = Options;
  using enum OptionCheck;
  return {{"project", &O::project, {}, "false: the plain update, for this group"},
          {"rank", &O::rank, kAtLeastOne, "number of singular vectors"},
          {"update_proj_gap", &O::update_proj_gap, kAtLeastOne, "updates between new bases"},
          {"scale", &O::scale, kAtLeastZero, "of the update that is projected back"},
          {"proj_type", &O::proj_type, {}, "side: std, reverse_std, left, right or full"},
          {"clamp_rank", &O::clamp_rank, {}, "a rank above min(m, n) becomes that"},
          {"svd", &O::svd, {}, "randomized or exact"},
          {"on_refresh", &O::on_refresh, {}, "moments at a new basis: keep, reset or rotate"}};
}
void CheckGaLore(const GaLoreSettings& settings, OptionProblems& problems);
// Adds a problem for every matrix of the group whose smaller side is below the rank.
void CheckGaLoreRanks(const GaLoreSettings& settings,
                      const std::vector<autograd::ParameterPtr>& params,
                      std::vector<std::string>& problems);

// The part of a rule that does not depend on its moments. Parameters that are not projected are the
// derived rule's.
template <typename O>
class GaLoreRule : public RuleOf<O>, public GaLoreProjector {
 public:
  explicit GaLoreRule(std::vector<O> groups) : RuleOf<O>(O::kName, std::move(groups)) {}

  OptimizerTraits traits() override;
  // Problems of the rank with the matrices of a group.
  static void CheckGroup(const ParamGroup<O>& group, std::vector<std::string>& problems) {
    CheckGaLoreRanks(GaLoreOf(group.options), group.params, problems);
  }
  void DeclareStats(int phase, std::span<const ActiveParam> params, StatBuffer& buffer) override {
    ForEachProjected(params, [&](const ActiveParam& param, const GaLoreSettings& settings) {
      Declare(phase, settings, param, buffer);
    });
  }
  std::string ComputeStats(int phase, const RuleStep& step, StatBuffer& buffer) override {
    ForEachProjected(step.params, [&](const ActiveParam& param, const GaLoreSettings& settings) {
      Compute(phase, settings, param, step, buffer);
    });
    return "";
  }

 protected:
  GaLoreSettings SettingsOf(int group) const { return GaLoreOf(this->options(group)); }
  // Calls fn(param, settings) for the parameters that are projected; returns the others.
  template <typename Fn>
  std::vector<ActiveParam> ForEachProjected(std::span<const ActiveParam> params,
                                            const Fn& fn) const {
    std::vector<ActiveParam> plain;
    for (const ActiveParam& param : params) {
      const GaLoreSettings settings = SettingsOf(param.group);
      Projects(settings, *param.view) ? fn(param, settings) : plain.push_back(param);
    }
    return plain;
  }
  // To override for moments that take part in a mean of projections in another way.
  virtual bool ReducesOwnGrad(const ParamView& view, int group) const {
    return Projects(SettingsOf(group), view);
  }
};

// Makes two groups with `options`: matrices, which are projected, and the rest, with project =
// false. As in ColossalAI's helper, parameters whose name ends in "bias" or "LayerNorm.weight" and
// everything that is not a matrix are in the rest. So is a matrix whose smaller side is below the
// rank, unless clamp_rank is set. Empty groups are left out.
template <typename Options>
std::vector<ParamGroup<Options>> get_galore_param_groups(
    const std::vector<autograd::ParameterPtr>& params, const Options& options) {
  ParamGroup<Options> projected{{}, options}, rest{{}, options};
  projected.options.project = true;
  rest.options.project = false;
  for (const autograd::ParameterPtr& p : params) {
    const Shape& shape = p->shape();
    const std::string& name = p->name();
    const bool fits =
        shape.rank() == 2 && (options.clamp_rank || options.rank <= std::min(shape[0], shape[1]));
    const bool excluded = name.ends_with("bias") || name.ends_with("LayerNorm.weight");
    (fits && !excluded ? projected : rest).params.push_back(p);
  }
  std::vector<ParamGroup<Options>> groups;
  if (!projected.params.empty()) groups.push_back(std::move(projected));
  if (!rest.params.empty()) groups.push_back(std::move(rest));
  return groups;
}

template <typename O>
OptimizerTraits GaLoreRule<O>::traits() {
  bool refreshes = false;
  this->store().ForEachView([&](const ParamView& view, int group) {
    refreshes = refreshes || RefreshesNext(SettingsOf(group), view, this->store().spans_ranks());
  });
  return {.shards = true,
          .decides_on_device = !refreshes,
          .num_stat_phases = kNumPhases,
          .projector = this,
          .of_param = [this](const ParamView& view, int group) {
            return ParamTraits{.owned_numel = LowRankNumel(SettingsOf(group), view),
                               .reduces_own_grad = ReducesOwnGrad(view, group)};
          }};
}

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_LOWRANK_GALORE_H_
