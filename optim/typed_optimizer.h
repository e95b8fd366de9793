// SPDX-License-Identifier: Apache-2.0

// TypedOptimizer: an Optimizer whose groups all have options of one type. Derive your own from it.
//
//   struct SgdOptions {                          // an aggregate, for designated initialisers
//     double lr = 1e-3;
//     std::vector<std::string> Problems() const;             // {"lr is -1, must be at least 0"}
//     static std::vector<OptionField<SgdOptions>> Fields();  // every option, see options.h
//   };
//   class Sgd : public TypedOptimizer<SgdOptions> { ... };
//
// A derived class overrides StatesUnder and Update (optimizer.h).
#ifndef APOGEE_OPTIM_TYPED_OPTIMIZER_H_
#define APOGEE_OPTIM_TYPED_OPTIMIZER_H_

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "apogee/optim/optimizer.h"
#include "apogee/optim/options.h"

namespace apogee::optim {

template <typename Options>
struct ParamGroup {
  std::vector<autograd::ParameterPtr> params;
  Options options = {};
};

// The option that a one-cycle schedule cycles: `betas[0]` or `momentum`; nullptr without either.
template <typename Options>
auto* MomentumOf(Options& options) {
  if constexpr (requires { options.betas[0]; }) {
    return &options.betas[0];
  } else if constexpr (requires { options.momentum; }) {
    return &options.momentum;
  } else {
    return static_cast<decltype(&options.lr)>(nullptr);
  }
}

template <typename Options>
class TypedOptimizer : public Optimizer {
 public:
  const Options& options(int group) const { return options_[static_cast<size_t>(group)]; }
  double lr(int group) const override { return options(group).lr; }
  // Throws Error for a rate that is not finite or that the constructor would refuse.
  void set_lr(int group, double lr) override {
    APOGEE_CHECK(std::isfinite(lr), "optimizer ", name(), ": lr is ", lr, ", must be finite");
    Options changed = options(group);
    changed.lr = lr;
    SetChecked(group, std::move(changed));
  }
  bool has_momentum() const override { return MomentumOf(options(0)) != nullptr; }
  double momentum(int group) const override {
    const double* momentum = MomentumOf(options(group));
    return momentum != nullptr ? *momentum : 0;
  }
  void set_momentum(int group, double momentum) override {
    Options changed = options(group);
    if (double* to = MomentumOf(changed)) *to = momentum;
    SetChecked(group, std::move(changed));
  }
  OptionMap group_options(int group) const override { return GetOptions(options(group)); }

 protected:
  TypedOptimizer(std::string name, std::vector<ParamGroup<Options>> groups);

  Options& mutable_options(int group) { return options_[static_cast<size_t>(group)]; }

  // Sets options that have no Problems(); throws Error for others.
  void SetChecked(int group, Options changed) {
    const std::vector<std::string> problems = changed.Problems();
    std::string text;
    for (const std::string& problem : problems) text += (text.empty() ? "" : "; ") + problem;
    APOGEE_CHECK(text.empty(), "optimizer ", name(), ", group ", group, ": ", text);
    mutable_options(group) = std::move(changed);
  }

  uint64_t GroupOptionsDigest(int group) const override {
    OptionHash hash;
    hash.AddFields(options(group));
    return hash.value();
  }
  absl::Status CheckGroupOptions(const std::vector<OptionMap>& groups) const override {
    std::vector<Options> ignored;
    return ReadOptions(groups, ignored);
  }
  void SetGroupOptions(const std::vector<OptionMap>& groups) override {
    std::vector<Options> read;
    OkOrThrow(ReadOptions(groups, read));
    options_ = std::move(read);
  }

  // To override: the states of `view` under `options`.
  virtual std::span<const StateSpec> StatesUnder(const ParamView& view,
                                                 const Options& options) const = 0;
  std::span<const StateSpec> StateSpecs(const ParamView& view, int group) const override {
    return StatesUnder(view, options(group));
  }
  std::span<const StateSpec> SavedStateSpecs(const ParamView& view, int group,
                                             const OptionMap& saved) const override {
    Options under = options(group);
    OkOrThrow(SetOptions(saved, name(), under));
    return StatesUnder(view, under);
  }

 private:
  static std::vector<std::vector<autograd::ParameterPtr>> Params(
      const std::vector<ParamGroup<Options>>& groups) {
    std::vector<std::vector<autograd::ParameterPtr>> params;
    for (const ParamGroup<Options>& group : groups) params.push_back(group.params);
    return params;
  }
  static std::vector<std::string> Problems(const std::vector<ParamGroup<Options>>& groups) {
    std::vector<std::string> problems;
    for (size_t g = 0; g < groups.size(); ++g) {
      for (const std::string& problem : groups[g].options.Problems()) {
        problems.push_back(groups.size() > 1 ? internal::Concat("group ", g, ": ", problem)
                                             : problem);
      }
    }
    return problems;
  }
  absl::Status ReadOptions(const std::vector<OptionMap>& groups, std::vector<Options>& read) const {
    for (size_t g = 0; g < groups.size(); ++g) {
      const std::string what = internal::Concat(name(), ", group ", g);
      read.push_back(options_[g]);
      APOGEE_RETURN_IF_ERROR(SetOptions(groups[g], what, read.back()));
      const std::vector<std::string> problems = read.back().Problems();
      if (!problems.empty()) return InvalidArgument(what, ": ", problems.front());
    }
    return absl::OkStatus();
  }

  std::vector<Options> options_;
};

// Not inline: sources that only make an optimizer need no copy of it.
template <typename Options>
TypedOptimizer<Options>::TypedOptimizer(std::string name, std::vector<ParamGroup<Options>> groups)
    : Optimizer(name, Params(groups), Problems(groups)) {
  for (ParamGroup<Options>& group : groups) options_.push_back(std::move(group.options));
}

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_TYPED_OPTIMIZER_H_
