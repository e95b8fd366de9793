// SPDX-License-Identifier: Apache-2.0

// A rule is the part of an optimizer that its paper states: options, the states of a parameter,
// statistics of whole tensors, the update. It works on views and knows no model, step or rank.
// OptimizerOf makes an optimizer of it (optimizer.h).
//
//   struct LionRule : RuleOf<LionOptions> {
//     static constexpr const char* kName = "lion";
//     explicit LionRule(std::vector<LionOptions> groups) : RuleOf(kName, std::move(groups)) {}
//     OptimizerTraits traits() override { return {.shards = true}; }
//     void States(const Subject&, std::vector<StateSpec>& specs) const override {
//       specs = {{"exp_avg"}};
//     }
//     void Update(const RuleStep& step) override;
//   };
//   using Lion = OptimizerOf<LionRule>;
//
// A step (step/step_runner.h) makes the states, calls DeclareStats and ComputeStats for each phase
// and reduces the numbers over the ranks in between, advances the step counts, and calls Update for
// each group. Until then nothing may change, because the step can still be skipped or fail.
// Replicas, parts, owners and absent gradients are the step's business.
#ifndef APOGEE_OPTIM_RULE_H_
#define APOGEE_OPTIM_RULE_H_

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "apogee/optim/core/stats.h"
#include "apogee/optim/option_groups.h"
#include "apogee/optim/states/state_store.h"
#include "apogee/optim/step/step.h"
#include "apogee/optim/traits.h"

namespace apogee::optim {

// The part of a step that a rule reads.
struct RuleStep {
  // In ComputeStats all parameters of the step, group after group; in Update those of `group`.
  std::span<const ActiveParam> params;
  const StepDecision& decision;
  // The reduced numbers of all phases before; in Update, of all phases.
  std::span<const StatBuffer> totals;
  int group = 0;
};

enum class RuleEvent {
  kBeforeStep,      // a step begins; nothing has changed yet
  kUpdated,         // a step was not skipped and has updated something; a GPU may yet revoke it
  kKept,            // the GPU has confirmed the update
  kRevoked,         // the GPU has skipped it: nothing has changed
  kLoaded,          // a state dict was loaded
  kReadGroupState,  // the states of the groups are about to be read; bring them up to date
};

class UpdateRule {
 public:
  explicit UpdateRule(std::unique_ptr<OptionTable> options) : options_(std::move(options)) {}
  virtual ~UpdateRule() = default;
  UpdateRule(const UpdateRule&) = delete;
  UpdateRule& operator=(const UpdateRule&) = delete;

  virtual OptimizerTraits traits() = 0;
  // Lists the states of `view`, a parameter of `group`: under the options and the group state of
  // a checkpoint, or under the rule's own if `saved` is null.
  virtual void ListStates(const ParamView& view, int group, const OptionMap* saved,
                          const GroupState& group_state, std::vector<StateSpec>& specs) const = 0;
  // Whether a saved group state can be loaded. `options` are those it was saved with. This one
  // allows none.
  virtual absl::Status CheckGroupState(const GroupState& state, const OptionMap& options) const;
  // Reserves the numbers of `phase` for each parameter, in the same order on every rank.
  virtual void DeclareStats(int /*phase*/, std::span<const ActiveParam> /*params*/,
                            StatBuffer& /*buffer*/) {}
  // Adds this rank's partials. Returns the name of a parameter that makes every rank skip the step,
  // as a gradient that is not finite does, or "". Must return the same on every rank.
  virtual std::string ComputeStats(int /*phase*/, const RuleStep& /*step*/,
                                   StatBuffer& /*buffer*/) {
    return "";
  }
  virtual void Update(const RuleStep& step) = 0;
  virtual void On(RuleEvent /*event*/) {}
  // The averages to evaluate in place of the weights of `view`: this rank's elements, in the
  // compute dtype. Undefined: the weights themselves. For OptimizerTraits::averages_weights.
  virtual Tensor Averaged(ParamView& /*view*/, int /*group*/) const { return {}; }
  // A line for people on what becomes of which parameters. "": all are treated alike.
  virtual std::string Note() const { return ""; }

  OptionTable& options_table() const { return *options_; }
  // The optimizer's parameters, states and group states. Set once, by the optimizer.
  void Attach(StateStore& store) { store_ = &store; }

 protected:
  StateStore& store() const { return *store_; }

 private:
  std::unique_ptr<OptionTable> options_;
  StateStore* store_ = nullptr;
};

// A rule with options of type O. States() has its options, so a rule needs no ListStates.
template <typename O>
class RuleOf : public UpdateRule {
 public:
  using Options = O;
  // One options struct per group. `name` begins error messages.
  RuleOf(const std::string& name, std::vector<O> groups)
      : UpdateRule(std::make_unique<OptionGroups<O>>(name, std::move(groups))) {}

  const O& options(int group) const {
    return static_cast<const OptionGroups<O>&>(options_table()).at(group);
  }
  int num_groups() const { return options_table().num_groups(); }

 protected:
  // A parameter whose states are asked for, with the options and the state of its group.
  struct Subject {
    const ParamView& view;
    const O& options;
    const GroupState& group_state;
  };
  // To override: lists the states of the parameter. They are zeros before its first update. In a
  // step, `group_state` may be older than numbers that kernels keep (kReadGroupState).
  virtual void States(const Subject& subject, std::vector<StateSpec>& specs) const = 0;

 private:
  void ListStates(const ParamView& view, int group, const OptionMap* saved,
                  const GroupState& group_state, std::vector<StateSpec>& specs) const final {
    if (saved == nullptr) return States({view, options(group), group_state}, specs);
    O under = options(group);
    OkOrThrow(SetOptions(*saved, "a checkpoint", under));
    States({view, under, group_state}, specs);
  }
};

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_RULE_H_
