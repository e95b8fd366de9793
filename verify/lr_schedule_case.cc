// SPDX-License-Identifier: Apache-2.0

// Replays recorded learning rate curves with an LrScheduler. Curves that run past the end of their
// schedule become negative. No optimizer accepts that, so a stand-in just stores the rates.
#include <map>
#include <regex>
#include <set>

#include "apogee/optim/schedule/lr_schedule_registry.h"
#include "apogee/optim/schedule/lr_scheduler.h"
#include "apogee/verify/cases.h"
#include "apogee/verify/option_text.h"

namespace apogee::verify {
namespace {

using internal::Concat;

// The name of our schedule for a class of the references.
std::string KindOf(const std::string& object) {
  static const auto& kinds = *new std::map<std::string, std::string>{
      {"ConstantLR", "constant"},
      {"CosineAnnealingLR", "cosine"},
      {"CosineAnnealingWarmRestarts", "cosine_restarts"},
      {"CosineAnnealingWarmupLR", "cosine"},
      {"Eden", "eden"},
      {"ExponentialLR", "exponential"},
      {"FlatAnnealingLR", "flat_cosine"},
      {"FlatAnnealingWarmupLR", "flat_cosine"},
      {"LinearWarmupLR", "linear"},
      {"MultiStepLR", "multistep"},
      {"MultiStepWarmupLR", "multistep"},
      {"OneCycleLR", "one_cycle"},
      {"PolynomialLR", "polynomial"},
      {"PolynomialWarmupLR", "polynomial"},
      {"StepLR", "step"},
  };
  const auto found = kinds.find(object);
  APOGEE_CHECK(found != kinds.end(), "no schedule for the reference's class \"", object, "\"");
  return found->second;
}

optim::LrSchedule ScheduleOf(const GoldenCase& golden, const Json& hyper) {
  const std::string kind = KindOf(golden.required("reference").at("object").get<std::string>());
  const optim::OptionMap known = ValueOrThrow(optim::LrScheduleDefaults(kind));
  static const auto& renamed =
      *new std::map<std::string, std::string>{{"T_0", "t_0"}, {"T_mult", "t_mult"}};
  // Not options of ours: the rates belong to the groups, and schedules without total_steps don't
  // read it.
  static const auto& not_options = *new std::set<std::string>{"base_lr", "max_lr", "total_steps"};
  optim::OptionMap options;
  for (const auto& [key, value] : hyper.items()) {
    const auto found = renamed.find(key);
    const std::string name = found == renamed.end() ? key : found->second;
    if ((not_options.contains(name) && !known.contains(name)) || value.is_null()) continue;
    options[name] = OptionText(value);
  }
  return ValueOrThrow(optim::MakeLrSchedule(kind, options));
}

std::vector<double> BaseRates(const Json& hyper) {
  const Json& rates = hyper.contains("max_lr") ? hyper["max_lr"] : hyper.at("base_lr");
  if (rates.is_array()) return rates.get<std::vector<double>>();
  const size_t groups = hyper.at("base_lr").is_array() ? hyper["base_lr"].size() : 1;
  return std::vector<double>(groups, rates.get<double>());
}

// Steps per epoch, if the notes say so ("epoch = k//40"); else 0.
int64_t StepsPerEpoch(const std::string& notes) {
  std::smatch match;
  if (!std::regex_search(notes, match, std::regex("k ?// ?([1-9][0-9]{0,8})"))) return 0;
  return std::stoll(match[1].str());
}

// A stand-in for an optimizer with momentum: stores the values that a schedule sets.
class KeptRates : public optim::LrTarget {
 public:
  explicit KeptRates(const std::vector<double>& rates) : rates_(rates), momenta_(rates.size()) {}
  int num_groups() const override { return static_cast<int>(rates_.size()); }
  double lr(int group) const override { return rates_[static_cast<size_t>(group)]; }
  void set_lr(int group, double lr) override { rates_[static_cast<size_t>(group)] = lr; }
  bool has_momentum() const override { return true; }
  double momentum(int group) const override { return momenta_[static_cast<size_t>(group)]; }
  void set_momentum(int group, double momentum) override {
    momenta_[static_cast<size_t>(group)] = momentum;
  }

 private:
  std::vector<double> rates_, momenta_;
};

}  // namespace

Comparison ReplayLrSchedule(const GoldenCase& golden, DType) {
  const Json hyper = golden.required("hyper");
  const Json tolerance = golden.required("tolerance");
  const auto rtol = tolerance.at("rtol").get<double>();
  const auto atol = tolerance.at("atol_rel_to_base_lr").get<double>();
  const std::vector<double> base = BaseRates(hyper);

  std::vector<std::vector<double>> rates, momenta;
  for (size_t g = 0; g < base.size(); ++g) {
    rates.push_back(golden.Values(Concat("lr/group", g)));
    const std::string momentum = Concat("momentum/group", g);
    momenta.push_back(golden.contains(momentum) ? golden.Values(momentum) : std::vector<double>());
  }
  KeptRates optimizer(base);
  optim::LrScheduler scheduler(optimizer, ScheduleOf(golden, hyper));
  const int64_t steps_per_epoch = StepsPerEpoch(golden.text("notes"));

  Comparison comparison;
  for (size_t k = 0; k < rates[0].size(); ++k) {
    if (k > 0) scheduler.step();
    if (steps_per_epoch > 0) scheduler.set_epoch(static_cast<int64_t>(k) / steps_per_epoch);
    for (size_t g = 0; g < base.size(); ++g) {
      const int group = static_cast<int>(g);
      comparison.Number(optimizer.lr(group), rates[g].at(k), {atol * base[g], rtol},
                        Concat("lr of group ", g, ", step ", k));
      if (momenta[g].empty()) continue;
      comparison.Number(optimizer.momentum(group), momenta[g].at(k), {atol, rtol},
                        Concat("momentum of group ", g, ", step ", k));
    }
  }
  return comparison;
}

}  // namespace apogee::verify
