// SPDX-License-Identifier: Apache-2.0

// Optimizer updates parameters from their gradients. It has three parts: a rule, which its paper
// states (rule.h), the step that runs the rule (step/step_runner.h), and the states
// (states/state_store.h). OptimizerOf<Rule> is the optimizer of a rule, with typed options.
//
//   optim::AdamW optimizer(model.Parameters(), {.lr = 3e-4, .weight_decay = 0.1});
//   optimizer.set_step_options({.max_norm = 1.0});
//   Backward(criterion(model(x), y));
//   optimizer.step();
//   optimizer.zero_grad();
//
// A parameter that is frozen or has no gradient is left alone: no decay, no momentum, no step
// count. A gradient of zeros counts as a gradient.
//
// Where a GPU makes the decision (OptimizerTraits::decides_on_device), step() queues its work and
// returns; last_step() waits for the outcome. With a StatReducer over several ranks, all ranks must
// call step() together. Not thread-safe.
#ifndef APOGEE_OPTIM_OPTIMIZER_H_
#define APOGEE_OPTIM_OPTIMIZER_H_

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "apogee/core/step_listener.h"
#include "apogee/core/trace/trace.h"
#include "apogee/optim/rule.h"
#include "apogee/optim/schedule/lr_target.h"
#include "apogee/optim/states/state_store.h"

namespace apogee::optim {

struct GradientRanks;
class StepRunner;

class Optimizer : public LrTarget {
 public:
  // Computes the loss and its gradients anew; may call zero_grad and Backward.
  using Closure = std::function<Tensor()>;

  ~Optimizer() override;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // The name in the registry: "adamw".
  const std::string& name() const { return store_.optimizer(); }
  // A line for people on what becomes of which parameters (UpdateRule::Note).
  std::string note() const { return rule_->Note(); }
  // Its abilities, and its demands on plugins.
  OptimizerTraits traits() const { return rule_->traits(); }

  // One update from the present gradients. With a closure, calls it first and returns its loss.
  // Throws Error for a gradient that is not finite under NonFinitePolicy::kThrow, and when options
  // differ between ranks. After any failure before the update, nothing has changed.
  std::optional<Tensor> step(const Closure& closure = {});
  // Runs backward of the scalar `loss` and updates each parameter as soon as its gradient is final;
  // for optimizers with the trait fused_backward. Call step() afterwards. momentum/lomo.h has the
  // details.
  void fused_backward(const Tensor& loss);
  // Drops every gradient; with set_to_none = false, fills present gradients with zeros instead.
  void zero_grad(bool set_to_none = true);
  // The report of the last step(). Waits for the GPU if the GPU made the decision.
  const StepReport& last_step() const;
  int64_t num_skipped_steps() const;
  // False if the last step() is known to have changed nothing. Never waits.
  bool may_have_updated() const;

  void set_step_options(const StepOptions& options);
  const StepOptions& step_options() const;
  // Records every step() as a span of this lane, which must outlive the optimizer. Null: no spans.
  void set_trace_lane(TraceLane* lane) { trace_lane_ = lane; }
  // `listener` hears the events of every step (core/step_listener.h) until the subscription ends.
  [[nodiscard]] Subscription AddListener(StepListener& listener) {
    return listeners_->Add(listener);
  }
  // For a plugin, which tells the events of backward and of values.
  const std::shared_ptr<StepListeners>& listeners() const { return listeners_; }
  // From now on step() throws Error with this text. A plugin that is destroyed before the optimizer
  // calls it, because nobody would reduce gradients any more.
  void RefuseSteps(std::string why) { refusal_ = std::move(why); }
  // Replaces the single-rank reducer; nullptr restores it.
  void set_stat_reducer(std::unique_ptr<StatReducer> reducer);
  // Tells an optimizer with OptimizerTraits::local_gradients its ranks. Call after views were
  // bound. Throws Error if loaded error states belong to another number of ranks.
  void SetRanks(const GradientRanks& ranks);
  // A hash of the options of all groups and of the step options. Ranks that step together must have
  // the same one, or step() throws Error on each of them (core/options_agreement.h).
  uint64_t OptionsDigest() const;
  // Throws the same Error on every rank: which option differs, and its value on each rank.
  // Collective over `group`. With a null group, the message only says that options differ.
  [[noreturn]] void ThrowOptionsDiffer(comm::Group* group) const;

  // Parameters, states and group states.
  StateStore& states() {
    Settle();
    return store_;
  }
  const StateStore& states() const {
    Settle();
    return store_;
  }
  // All views, group after group, in the order of construction.
  std::span<ParamView> views() { return states().views(); }
  std::span<const ParamView> views() const { return states().views(); }
  // Calls fn(view, group) for all views.
  template <typename Fn>
  void ForEachView(const Fn& fn) {
    states().ForEachView(fn);
  }
  template <typename Fn>
  void ForEachView(const Fn& fn) const {
    states().ForEachView(fn);
  }
  // Numbers that belong to a group as a whole. Waits for the GPU if it decided the last step, or if
  // they are in its memory.
  const GroupState& group_state(int group) const { return states().group_state(group); }
  // Handles on the states, the step counts and the options of every group (StateDict).
  StateDict state_dict() const { return states().Save(); }
  // Checks the whole dict, then loads it. On an error nothing has changed, and the message lists
  // everything that does not fit. Element-wise states must have this rank's layout. Under a plugin
  // that shards, all ranks must call together.
  absl::Status load_state_dict(const StateDict& dict);
  // The error that load_state_dict would return; changes nothing.
  absl::Status CheckStateDict(const StateDict& dict) const { return store_.Check(dict); }
  // The weights to evaluate of a view (UpdateRule::Averaged), for EvaluationWeights.
  Tensor Averaged(ParamView& view, int group) const { return rule_->Averaged(view, group); }
  // Copies the model's weights into the master weights. Call after loading weights into the model.
  void RefreshMasters();

  int num_groups() const override { return store_.num_groups(); }
  // Number of parameters of a group.
  int group_size(int group) const { return store_.group_size(group); }
  // Every option of a group, as text.
  OptionMap group_options(int group) const { return rule_->options_table().Text(group); }
  double lr(int group) const override { return rule_->options_table().lr(group); }
  // Throws Error for a rate that is not finite or that the constructor would refuse.
  void set_lr(int group, double lr) override { rule_->options_table().set_lr(group, lr); }
  bool has_momentum() const override { return rule_->options_table().has_momentum(); }
  double momentum(int group) const override { return rule_->options_table().momentum(group); }
  void set_momentum(int group, double momentum) override {
    rule_->options_table().set_momentum(group, momentum);
  }

 protected:
  // `make` makes the rule once the parameters and options have no problems (see StateStore).
  Optimizer(std::string name, std::span<const std::vector<autograd::ParameterPtr>> groups,
            std::vector<std::string> problems,
            const std::function<std::unique_ptr<UpdateRule>()>& make);

  UpdateRule& update_rule() const { return *rule_; }

 private:
  friend class FusedStep;

  void Settle() const;

  StateStore store_;
  std::unique_ptr<UpdateRule> rule_;
  // Shared with the plugin's chunks, which may outlive the optimizer.
  const std::shared_ptr<StepListeners> listeners_ = std::make_shared<StepListeners>();
  std::unique_ptr<StepRunner> runner_;
  TraceLane* trace_lane_ = nullptr;
  std::string refusal_;  // not empty: step() throws it
};

// Parameters with the same options.
template <typename Options>
struct ParamGroup {
  std::vector<autograd::ParameterPtr> params;
  Options options = {};
};

// Groups of a model's parameters by name or shape:
//
//   // No weight decay for norms and biases.
//   optim::AdamW optimizer(optim::DecayGroups(
//       model.Parameters(), optim::AdamWOptions{.lr = 3e-4, .weight_decay = 0.1}));
//   optim::AdamW optimizer(optim::GroupsByName(
//       model.Parameters(), optim::AdamWOptions{.lr = 3e-4}, {{"head.*", {.lr = 1e-3}}}));
//
// A group keeps the order of the parameters, and groups without parameters are left out.

// The parameters that the first matching pattern is pattern i of, at i; at the end those that no
// pattern matches. Throws Error for a pattern that no parameter's name matches.
std::vector<std::vector<autograd::ParameterPtr>> SplitByName(
    const std::vector<autograd::ParameterPtr>& params, const std::vector<std::string>& patterns);
// Parameters with at least two dims, and the others.
std::pair<std::vector<autograd::ParameterPtr>, std::vector<autograd::ParameterPtr>> SplitByRank(
    const std::vector<autograd::ParameterPtr>& params);

// Options of the parameters whose names match a shell pattern ("*.bias").
template <typename Options>
struct NamedOptions {
  std::string pattern;
  Options options = {};
};

// The group of the parameters that no pattern matches comes last. Throws Error for a pattern that
// matches no parameter, or none that an earlier pattern has left.
template <typename Options>
std::vector<ParamGroup<Options>> GroupsByName(
    const std::vector<autograd::ParameterPtr>& params, const Options& options,
    const std::vector<std::type_identity_t<NamedOptions<Options>>>& named) {
  std::vector<std::string> patterns;
  for (const NamedOptions<Options>& each : named) patterns.push_back(each.pattern);
  std::vector<std::vector<autograd::ParameterPtr>> split = SplitByName(params, patterns);
  std::vector<ParamGroup<Options>> groups;
  for (size_t i = 0; i < named.size(); ++i) {
    groups.push_back({std::move(split[i]), named[i].options});
  }
  if (!split.back().empty()) groups.push_back({std::move(split.back()), options});
  return groups;
}

// Parameters with at least two dims get these options; the others, norms and biases, get them with
// weight_decay = 0.
template <typename Options>
std::vector<ParamGroup<Options>> DecayGroups(const std::vector<autograd::ParameterPtr>& params,
                                             const Options& options) {
  auto [weights, others] = SplitByRank(params);
  std::vector<ParamGroup<Options>> groups;
  if (!weights.empty()) groups.push_back({std::move(weights), options});
  if (!others.empty()) {
    groups.push_back({std::move(others), options});
    groups.back().options.weight_decay = 0;
  }
  return groups;
}

// The optimizer of a rule. A Rule has kName, a constructor from one Options per group and, if
// options may not fit parameters, the static function
//   CheckGroup(const ParamGroup<Options>& group, std::vector<std::string>& problems)
template <typename R>
class OptimizerOf : public Optimizer {
 public:
  using Rule = R;
  using Options = typename R::Options;
  using Group = ParamGroup<Options>;

  explicit OptimizerOf(std::vector<autograd::ParameterPtr> params, const Options& options = {})
      : OptimizerOf(std::vector<Group>{{std::move(params), options}}) {}
  // Throws one Error that lists every problem of the groups and their options.
  explicit OptimizerOf(std::vector<Group> groups);

  const Rule& rule() const { return static_cast<const Rule&>(update_rule()); }
  Rule& rule() { return static_cast<Rule&>(update_rule()); }
  const Options& options(int group) const { return rule().options(group); }

 private:
  static std::vector<std::vector<autograd::ParameterPtr>> Params(const std::vector<Group>& groups) {
    std::vector<std::vector<autograd::ParameterPtr>> params;
    for (const Group& group : groups) params.push_back(group.params);
    return params;
  }
  static std::vector<std::string> Problems(const std::vector<Group>& groups) {
    std::vector<std::string> all;
    for (size_t g = 0; g < groups.size(); ++g) {
      std::vector<std::string> problems = ProblemsOf(groups[g].options);
      if constexpr (requires { R::CheckGroup(groups[g], problems); }) {
        R::CheckGroup(groups[g], problems);
      }
      for (const std::string& problem : problems) {
        all.push_back(groups.size() > 1 ? internal::Concat("group ", g, ": ", problem) : problem);
      }
    }
    return all;
  }
};

// Not inline: sources that only make an optimizer need no copy of it.
template <typename R>
OptimizerOf<R>::OptimizerOf(std::vector<Group> groups)
    : Optimizer(R::kName, Params(groups), Problems(groups), [&]() -> std::unique_ptr<UpdateRule> {
        std::vector<Options> options;
        for (const Group& group : groups) options.push_back(group.options);
        return std::make_unique<R>(std::move(options));
      }) {}

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_OPTIMIZER_H_
