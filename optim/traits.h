// SPDX-License-Identifier: Apache-2.0

// OptimizerTraits: the abilities of an optimizer, and its demands on plugins. Each rule returns one
// value (rule.h). Plugins and tools read this value; none of them casts an optimizer to its type.
//
//   const OptimizerTraits traits = optimizer.traits();
//   if (!traits.shards) ...                                     // refuse to shard it
//   const int64_t multiple = traits.Of(view, group).cut_multiple;
//   if (traits.local_gradients != nullptr) traits.local_gradients->SyncReplicas();
//
// The value holds for the next step: it may depend on options, on states and on gradients. While
// the outcome of a step on a GPU is not known, decides_on_device may be that of another step.
#ifndef APOGEE_OPTIM_TRAITS_H_
#define APOGEE_OPTIM_TRAITS_H_

#include <cstdint>
#include <functional>

namespace apogee::optim {

class GaLoreProjector;
class LocalGradients;
class ParamView;

// The traits of one parameter.
struct ParamTraits {
  // Plugins cut shards only at multiples of this many elements. If no block of a quantized state is
  // cut, its scale needs no statistics; the result is the same either way.
  int64_t cut_multiple = 1;
  // How many state elements only the owner keeps when the view is a shard (ParamView::owned).
  int64_t owned_numel = 0;
  // The statistics themselves reduce the gradient over the ranks, sending fewer numbers than the
  // gradient has (ParamView::partial_grad). No rank knows the norm of such a gradient, so max_norm
  // must be 0, unless clips_addends.
  bool reduces_own_grad = false;
  // An absent gradient counts as zeros, as in references that batch parameters.
  bool absent_is_zero = false;
};

struct OptimizerTraits {
  // The update stays exact when views are bound to shards. That needs two things: the update
  // touches only the view's own elements, and every number it needs of whole tensors is declared as
  // a statistic. Set it in your own rule once both hold; plugins that shard refuse it otherwise.
  bool shards = false;
  // Every kernel of the next step takes the gradients' factor as a GradFactor, and the host reads
  // neither the decision nor the statistics. step() on a GPU then does not wait under kSkip and
  // kProceed, unless a gradient is absent here that another rank may have.
  bool decides_on_device = false;
  // Each parameter is updated inside backward, as soon as its gradient is final
  // (Optimizer::fused_backward). Booster::backward does that.
  bool fused_backward = false;
  // max_norm may clip unreduced gradients by the root of the mean of the ranks' squared norms. That
  // number is the same on every rank and at least the norm of the mean gradient.
  bool clips_addends = false;
  // The weights to evaluate are not those that are trained (UpdateRule::Averaged).
  bool averages_weights = false;
  // Statistics of whole tensors, in phases 0 .. num_stat_phases - 1.
  int num_stat_phases = 0;
  // In some steps the optimizer averages smaller messages instead of gradients. Null: never.
  LocalGradients* local_gradients = nullptr;
  // The optimizer projects gradients of matrices. Null: it does not.
  GaLoreProjector* projector = nullptr;
  // The traits of a parameter. Null: the defaults.
  std::function<ParamTraits(const ParamView& view, int group)> of_param = nullptr;

  ParamTraits Of(const ParamView& view, int group) const {
    return of_param == nullptr ? ParamTraits{} : of_param(view, group);
  }
};

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_TRAITS_H_
