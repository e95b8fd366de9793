// SPDX-License-Identifier: Apache-2.0

// The options of an optimizer's parameter groups. OptionTable is what the rest of the library sees:
// texts, digests, rates. OptionGroups has them as structs.
//
//   OptionGroups<LionOptions> groups("lion", {{.lr = 1e-4}, {.lr = 1e-3}});
//   groups.at(1).lr;                        // 1e-3
//   groups.set_lr(1, 5e-4);                 // throws Error for a rate that the checks refuse
//   OptionMap text = groups.Text(0);        // every option
#ifndef APOGEE_OPTIM_OPTION_GROUPS_H_
#define APOGEE_OPTIM_OPTION_GROUPS_H_

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "apogee/optim/options.h"

namespace apogee::optim {

class OptionTable {
 public:
  virtual ~OptionTable() = default;
  virtual int num_groups() const = 0;
  virtual OptionMap Text(int group) const = 0;
  // A hash of the options of one group. Ranks compare it in every step.
  virtual uint64_t Digest(int group) const = 0;
  // Checks options of a checkpoint, one map per group; Set() takes those that pass.
  virtual absl::Status Check(const std::vector<OptionMap>& groups) const = 0;
  virtual void Set(const std::vector<OptionMap>& groups) = 0;
  // See LrTarget.
  virtual double lr(int group) const = 0;
  virtual void set_lr(int group, double lr) = 0;
  virtual bool has_momentum() const = 0;
  virtual double momentum(int group) const = 0;
  virtual void set_momentum(int group, double momentum) = 0;
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

// Whether the optimizer computes its rate itself (Adafactor's relative_step).
template <typename Options>
bool ComputesRate(const Options& options) {
  if constexpr (requires { options.relative_step; }) return options.relative_step;
  return false;
}

template <typename Options>
class OptionGroups : public OptionTable {
 public:
  OptionGroups(std::string name, std::vector<Options> groups)
      : name_(std::move(name)), groups_(std::move(groups)) {}

  const Options& at(int group) const { return groups_[static_cast<size_t>(group)]; }

  int num_groups() const override { return static_cast<int>(groups_.size()); }
  OptionMap Text(int group) const override { return GetOptions(at(group)); }
  uint64_t Digest(int group) const override {
    OptionHash hash;
    hash.AddFields(at(group));
    return hash.value();
  }
  absl::Status Check(const std::vector<OptionMap>& groups) const override {
    return Read(groups).status();
  }
  void Set(const std::vector<OptionMap>& groups) override { groups_ = ValueOrThrow(Read(groups)); }
  // 0 if the optimizer computes its rate; set_lr then throws Error for any other rate.
  double lr(int group) const override { return ComputesRate(at(group)) ? 0 : at(group).lr; }
  void set_lr(int group, double lr) override {
    if (ComputesRate(at(group))) {
      APOGEE_CHECK(lr == 0, "optimizer ", name_, ": a learning rate of ", lr,
                   " was set, but relative_step computes the rate; set relative_step=false and "
                   "give lr to use a schedule");
      return;
    }
    APOGEE_CHECK(std::isfinite(lr), "optimizer ", name_, ": lr is ", lr, ", must be finite");
    Options changed = at(group);
    changed.lr = lr;
    SetChecked(group, std::move(changed));
  }
  bool has_momentum() const override { return MomentumOf(at(0)) != nullptr; }
  double momentum(int group) const override {
    const double* momentum = MomentumOf(at(group));
    return momentum != nullptr ? *momentum : 0;
  }
  void set_momentum(int group, double momentum) override {
    Options changed = at(group);
    if (double* to = MomentumOf(changed)) *to = momentum;
    SetChecked(group, std::move(changed));
  }

 private:
  void SetChecked(int group, Options changed) {
    const std::string problems = JoinTexts(ProblemsOf(changed));
    APOGEE_CHECK(problems.empty(), "optimizer ", name_, ", group ", group, ": ", problems);
    groups_[static_cast<size_t>(group)] = std::move(changed);
  }
  absl::StatusOr<std::vector<Options>> Read(const std::vector<OptionMap>& groups) const {
    std::vector<Options> read = groups_;
    for (size_t g = 0; g < groups.size(); ++g) {
      const std::string what = internal::Concat("group ", g);
      APOGEE_RETURN_IF_ERROR(SetOptions(groups[g], what, read[g]));
      const std::vector<std::string> problems = ProblemsOf(read[g]);
      if (!problems.empty()) return InvalidArgument(what, ": ", problems.front());
    }
    return read;
  }

  std::string name_;
  std::vector<Options> groups_;
};

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_OPTION_GROUPS_H_
