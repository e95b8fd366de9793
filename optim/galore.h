// SPDX-License-Identifier: Apache-2.0

// Gradient low-rank projection (Zhao et al., "GaLore", ICML 2024): what the GaLore optimizers
// share. A matrix gradient is projected on its leading singular vectors, the optimizer's moments
// live in that small space, and its update is projected back.
//
//   optim::GaLoreAdamW optimizer(optim::get_galore_param_groups(
//       model.Parameters(), GaLoreAdamWOptions{.lr = 1e-2, .rank = 64}));
//
// For a matrix G [m, n], rank r, every update_proj_gap updates of a parameter a new basis is
// computed:
//   right:  R = G P^T [m, r],    back(U) = U P      P [r, n]       full:  R = L^T G P [r, r],
//   left:   R = L^T G [r, n],    back(U) = L U      L [m, r]              back(U) = L U P
// std is right for m >= n, else left; reverse_std the opposite. w += scale * back(update of R).
// Matrices only: a parameter of another rank, or in a group with project = false, takes the plain
// update. A gradient of zeros (or, under NonFinitePolicy::kProceed, one that is not finite) keeps
// the old basis; without one the first r unit vectors serve. The side follows from the shape and
// proj_type alone.
//
// on_refresh: what happens to the moments, which stay in the old basis' coordinates: keep (the
// reference), reset, or rotate: the first moment into the new coordinates, the second by the
// squared rotation.
//
// Over ranks. A parameter is a shard (ZeRO), or its gradient is an addend of the mean
// (ParamView::partial_grad; DDP without clipping, except for 8-bit moments in f32). Statistics, of
// every such matrix in one packed sum per phase; a phase without numbers costs nothing:
//   gradient     at a refresh: the whole gradient, m n
//   basis        at a refresh: computed by the owner (owners.h) and sent as a sum with zeros
//   projection   R; every rank projects the rows that it holds elements of
//   direction    of shards: the owner's update of R, which moves its moments; every rank projects
//                it back on its own elements
// Between refreshes a step costs phase 0 and two collectives (one with addends) however many
// matrices there are: all-reduces of low numbers per matrix, low the elements of R, r max(m, n) for
// std, instead of m n. A refresh also holds the sums of its gradients, for as long as the step.
// States: the basis (projector, or projector_left and projector_right) on every rank; the moments
// of a shard with its owner alone. A rank of n holds, in elements,
//   sum over all matrices of basis + sum over its own of moments,
// basis = r min(m, n) for std (with both sides r (m + n)), moments = 2 low for the Adam forms (of
// one byte, plus the scales, for the 8-bit one), for Adafactor the two sides of R, with beta1 also
// low. A rank's own matrices have at most sum of low / n + the largest low elements of R.
#ifndef APOGEE_OPTIM_GALORE_H_
#define APOGEE_OPTIM_GALORE_H_

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "apogee/optim/check_options.h"
#include "apogee/optim/low_rank_basis.h"
#include "apogee/optim/low_rank_products.h"
#include "apogee/optim/typed_optimizer.h"

namespace apogee::optim {

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

// What projecting one parameter comes down to.
struct GaLorePlan {
  int64_t rows, cols, rank;
  bool left, right;
  Shape low_rank() const { return {left ? rank : rows, right ? rank : cols}; }
};

// New coordinates from old ones at a refresh; undefined where that side is not projected.
struct GaLoreRotation {
  Tensor left, right;  // [r, r]: x -> left x right
  // The rotated `x`; `squared` uses the squares of the entries (second moments).
  Tensor Apply(const Tensor& x, bool squared) const;
};

struct NewBasis {
  Tensor vectors;  // rows [r, n] (right) or columns [m, r]
  bool right;
  bool both_sides;  // proj_type full: the other side has one too
};

class GaLoreProjector {
 public:
  // Called with every new basis before it is used, where it is computed; may change its vectors in
  // place.
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
    bool refreshed = false;   // over an earlier basis
    GaLoreRotation rotation;  // with on_refresh = rotate
  };
  // The update of R, shaped like it, that is projected back. Moves the low-rank states of `states`,
  // whose step() counts this update: `param`'s view, or a stand-in with copies of its states.
  virtual Tensor LowRankUpdate(const ActiveParam& param, ParamView& states,
                               const Projected& projected, const StepDecision& decision,
                               std::span<const StatBuffer> totals) = 0;

  static bool Projects(const GaLoreSettings& settings, const ParamView& view);
  static GaLorePlan PlanOf(const GaLoreSettings& settings, const ParamView& view);
  // Elements of R; 0 when the parameter is not projected.
  static int64_t LowRankNumel(const GaLoreSettings& settings, const ParamView& view);
  // Whether this rank keeps the moments of a projected parameter.
  static bool KeepsMoments(const ParamView& view) { return view.owned() || !view.sharded(); }
  static void AppendBasisSpecs(const GaLoreSettings& settings, const ParamView& view,
                               std::vector<StateSpec>& specs);

  // Of a projected parameter; its entries come before others of the same parameter.
  void Declare(int phase, const GaLoreSettings& settings, const ActiveParam& param,
               StatBuffer& buffer) const;
  void Compute(int phase, const GaLoreSettings& settings, const ActiveParam& param,
               const StepDecision& decision, std::span<const StatBuffer> totals,
               StatBuffer& buffer);
  // In Update: w += scale * back(update of R), and w -= decay * decay_rate * w before or after it.
  void UpdateProjected(const GaLoreSettings& settings, const ActiveParam& param,
                       const StepDecision& decision, std::span<const StatBuffer> totals,
                       DecayKind kind, double decay, const SizedRate& decay_rate = {.rate = 1});

  // Whether the next step of `optimizer` computes no basis. One that does reads the gradient on the
  // host, and with it the decision.
  template <typename Derived>
  static bool KeepsBases(const Derived& optimizer, bool spans_ranks) {
    bool keeps = true;
    optimizer.ForEachView([&](const ParamView& view, int group) {
      keeps = keeps && !RefreshesNext(GaLoreOf(optimizer.options(group)), view, spans_ranks);
    });
    return keeps;
  }

 private:
  static bool RefreshesNext(const GaLoreSettings& settings, const ParamView& view,
                            bool spans_ranks);
  // What a refresh from `old` to `fresh`, if any, makes of R; `earlier` updates came before.
  static Projected Assemble(const GaLoreSettings& settings, const LowRankBasis& old,
                            const LowRankBasis& fresh, const Tensor& low_rank, int64_t earlier);
  LowRankBasis MakeBasis(const GaLoreSettings& settings, const ParamView& view, const Tensor& grad,
                         bool first) const;
  void ComputeBasis(const GaLoreSettings& settings, const ActiveParam& param,
                    std::span<const StatBuffer> totals, const Tensor& to) const;
  // The owner's update, with copies of the states, which wait for the end of the statistics.
  Tensor ComputeDirection(const GaLoreSettings& settings, const ActiveParam& param,
                          const StepDecision& decision, std::span<const StatBuffer> totals);

  std::map<const ParamView*, std::vector<NamedState>> moved_;
  BasisHook hook_;
};

// Settings and option fields of an options struct that has the members of GaLoreSettings.
template <typename Options>
GaLoreSettings GaLoreOf(const Options& o) {
  return {o.project,    o.rank, o.update_proj_gap, o.scale, o.proj_type,
          o.clamp_rank, o.svd,  o.on_refresh};
}
template <typename Options>
void AppendGaLoreFields(std::vector<OptionField<Options>>& fields) {
  using O = Options;
  const OptionField<Options> more[] = {{"project", &O::project},
                                       {"rank", &O::rank},
                                       {"update_proj_gap", &O::update_proj_gap},
                                       {"scale", &O::scale},
                                       {"proj_type", &O::proj_type},
                                       {"clamp_rank", &O::clamp_rank},
                                       {"svd", &O::svd},
                                       {"on_refresh", &O::on_refresh}};
  fields.insert(fields.end(), std::begin(more), std::end(more));
}
void CheckGaLore(const GaLoreSettings& settings, OptionProblems& problems);
// Ranks above the smaller side of a matrix of the group; for the constructor.
void CheckGaLoreRanks(const GaLoreSettings& settings,
                      const std::vector<autograd::ParameterPtr>& params,
                      std::vector<std::string>& problems);

// `groups` unchanged, or one Error that lists every rank that does not fit.
template <typename Options>
std::vector<ParamGroup<Options>> CheckedGaLoreGroups(std::vector<ParamGroup<Options>> groups) {
  std::vector<std::string> problems;
  for (const ParamGroup<Options>& group : groups) {
    for (const std::string& p : group.options.Problems()) problems.push_back(p);
    CheckGaLoreRanks(GaLoreOf(group.options), group.params, problems);
  }
  std::string text;
  for (const std::string& p : problems) text += (text.empty() ? "" : "; ") + p;
  if (!text.empty()) Throw("optimizer ", Options::kName, ": ", text);
  return groups;
}

// Two groups with `options`: matrices that are projected, and the rest with project = false. As
// ColossalAI's helper: biases, LayerNorm weights and everything that is not a matrix are the rest.
// Empty groups are left out. A matrix whose smaller side is below the rank goes to the rest, unless
// clamp_rank is set.
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

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_GALORE_H_
