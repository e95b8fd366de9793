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
// squared rotation. States: projector (or projector_left, projector_right) and the low-rank
// moments, whole on every rank. Statistics, only for shards: the whole gradient at a refresh, so
// that every rank computes the same basis, and R, to which every rank adds the projection of its
// part.
#ifndef APOGEE_OPTIM_GALORE_H_
#define APOGEE_OPTIM_GALORE_H_

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "apogee/optim/check_options.h"
#include "apogee/optim/low_rank_basis.h"
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
  // Called with every new basis before it is used; may change its vectors in place.
  using BasisHook = std::function<void(const ParamView&, const NewBasis&)>;
  virtual ~GaLoreProjector() = default;
  void set_basis_hook(BasisHook hook) { hook_ = std::move(hook); }

 protected:
  static constexpr int kGradientPhase = 0;    // gradients of shards at a refresh
  static constexpr int kProjectionPhase = 1;  // their projections
  static constexpr int kNumPhases = 2;

  static bool Projects(const GaLoreSettings& settings, const ParamView& view);
  static GaLorePlan PlanOf(const GaLoreSettings& settings, const ParamView& view);
  static void AppendBasisSpecs(const GaLoreSettings& settings, const ParamView& view,
                               std::vector<StateSpec>& specs);

  void Declare(int phase, const GaLoreSettings& settings, const ActiveParam& param,
               StatBuffer& buffer) const;
  void Compute(int phase, const GaLoreSettings& settings, const ActiveParam& param,
               std::span<const StatBuffer> totals, StatBuffer& buffer);

  struct Projected {
    Tensor grad;              // R, in the compute dtype, not scaled
    bool refreshed = false;   // over an earlier basis
    GaLoreRotation rotation;  // with on_refresh = rotate
  };
  // Takes a new basis over and returns the projected gradient. In Update.
  Projected Take(const GaLoreSettings& settings, const ActiveParam& param,
                 std::span<const StatBuffer> totals);
  // w += scale * back(update);  w -= decay * w.
  static void ApplyBack(const GaLoreSettings& settings, const ActiveParam& param,
                        const Tensor& update, double decay);

 private:
  struct Basis {
    Tensor left, right;
  };
  struct Pending {
    Basis basis;  // new; undefined: the old one stays
    Tensor low_rank;
  };
  static Basis StoredBasis(const GaLorePlan& plan, const ParamView& view);
  Basis MakeBasis(const GaLoreSettings& settings, const ParamView& view, const Tensor& grad) const;

  std::map<const ParamView*, Pending> pending_;
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
