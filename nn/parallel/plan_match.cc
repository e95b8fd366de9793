// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/parallel/plan_match.h"

#include <algorithm>
#include <set>

#include "apogee/core/text/text.h"
#include "apogee/nn/attention.h"
#include "apogee/nn/convolution.h"
#include "apogee/nn/moe/experts.h"

namespace apogee::nn::parallel {
namespace {

using enum ParallelStyle;
using internal::Concat;

// "a, b, c and 12 more": helps the reader to find the name that was meant.
std::string SomeOf(const std::vector<std::string>& names) {
  constexpr size_t kShown = 6;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kShown); ++i) {
    text += (i > 0 ? ", " : "") + names[i];
  }
  if (names.size() > kShown) text += Concat(" and ", names.size() - kShown, " more");
  return names.empty() ? "none" : text;
}

const char* UnitName(const PlanRule& rule) {
  return rule.unit_name.empty() ? "units" : rule.unit_name.c_str();
}

// The shard of a rule's parameter along `dim`.
TensorShard ShardAlong(int dim, const PlanRule& rule) {
  return {.dim = dim, .sections = rule.sections, .section_units = rule.section_units};
}

// The dim of a Linear's weight that holds its output (or input) features.
int FeatureDim(const Linear& linear, bool out) {
  return (linear.layout() == WeightLayout::kOutIn) == out ? 0 : 1;
}

}  // namespace

PlanMatch::PlanMatch(Module& model, const ParallelPlan& plan, int tp) : tp_(tp) {
  if (plan.rules.empty()) problems.push_back(Concat("plan \"", plan.name, "\" has no rules"));
  for (const PlanRule& rule : plan.rules) {
    CheckUnits(rule);
    rule.style == kParameter ? MatchParameters(model, rule) : MatchModules(model, rule);
  }
  CheckShared(model);
  if (plan.output_module.empty()) return;
  for (const auto& [name, module] : model.NamedModules()) {
    const auto found = rule_of_.find(module);
    const bool logits = found != rule_of_.end() && found->second->style == kVocabulary;
    if (name == plan.output_module && logits) output = dynamic_cast<Linear*>(module);
  }
  if (output == nullptr && problems.empty()) {
    problems.push_back(Concat("plan \"", plan.name, "\": output_module \"", plan.output_module,
                              "\" is not an nn::Linear of style vocabulary"));
  }
}

void PlanMatch::Problem(const PlanRule& rule, const std::string& what) {
  std::string text =
      Concat("rule \"", rule.pattern, "\" (", ParallelStyleName(rule.style), "): ", what);
  // A problem of one layer is usually a problem of all; report it once.
  if (std::ranges::find(problems, text) == problems.end()) problems.push_back(std::move(text));
}

void PlanMatch::CheckUnits(const PlanRule& rule) {
  const bool sections = rule.style == kColumn || rule.style == kRow || rule.style == kColumnNorm ||
                        rule.style == kParameter;
  if (rule.sections != 1 && !sections) {
    Problem(rule, Concat("sections is ", rule.sections, ", this style has one"));
  }
  if (!rule.section_units.empty() && !sections) {
    Problem(rule, Concat("section_units are ", UnitsText(rule.section_units),
                         ", this style has one section"));
  }
  if (rule.units > 0 && rule.units % tp_ != 0) {
    Problem(rule, Concat("tp ", tp_, " does not divide its ", rule.units, " ", UnitName(rule)));
  }
  if (!rule.section_units.empty()) CheckSectionUnits(rule);
}

void PlanMatch::CheckSectionUnits(const PlanRule& rule) {
  const std::string units = UnitsText(rule.section_units);
  if (rule.sections != 1 || rule.units != 0) {
    Problem(rule, Concat("section_units ", units, " stand in place of sections (", rule.sections,
                         ") and units (", rule.units, "); leave these out"));
  }
  const auto is_cut = [this](int64_t count) { return count > 0 && count % tp_ == 0; };
  if (!std::ranges::all_of(rule.section_units, is_cut)) {
    Problem(rule,
            Concat("tp ", tp_, " does not divide its sections of ", units, " ", UnitName(rule)));
  }
}

// A layer that shares a sharded weight but that no rule selects would run whole on a part of it.
void PlanMatch::CheckShared(Module& model) {
  for (const auto& [name, module] : model.NamedModules()) {
    if (rule_of_.contains(module)) continue;
    const auto* linear = dynamic_cast<const Linear*>(module);
    const auto* embedding = dynamic_cast<const Embedding*>(module);
    if (linear == nullptr && embedding == nullptr) continue;
    const autograd::Parameter& weight =
        linear != nullptr ? *linear->weight() : *embedding->weight();
    const auto found = cut_by_.find(&weight);
    // Modules with kParameter rules communicate themselves and may keep their parameters in layers.
    if (found == cut_by_.end() || found->second->style == kParameter) continue;
    Problem(*found->second,
            Concat(weight.name(), " is the weight of ", name, ", too, which no rule names"));
  }
}

void PlanMatch::MatchModules(Module& model, const PlanRule& rule) {
  bool any = false;
  std::vector<std::string> names;
  for (const auto& [name, module] : model.NamedModules()) {
    const bool layer = dynamic_cast<const Linear*>(module) != nullptr ||
                       dynamic_cast<const Convolution*>(module) != nullptr ||
                       dynamic_cast<const Embedding*>(module) != nullptr ||
                       dynamic_cast<const Recurrent*>(module) != nullptr;
    if (layer) names.push_back(name);
    if (name.empty() || !GlobMatches(rule.pattern, name)) continue;
    any = true;
    Add(name, *module, rule);
  }
  if (!any) Problem(rule, Concat("no module has such a name; layers here are ", SomeOf(names)));
}

void PlanMatch::MatchParameters(Module& model, const PlanRule& rule) {
  bool any = false;
  std::vector<std::string> names;
  for (const autograd::ParameterPtr& parameter : model.Parameters()) {
    names.push_back(parameter->name());
    if (!GlobMatches(rule.pattern, parameter->name())) continue;
    any = true;
    TensorShard shard = ShardAlong(rule.dim, rule);
    shard.pad = rule.pad;
    Cut(parameter, shard, rule);
  }
  if (!any) {
    Problem(rule, Concat("no parameter has such a name; parameters here are ", SomeOf(names)));
  }
}

void PlanMatch::Add(const std::string& name, Module& module, const PlanRule& rule) {
  const auto [known, is_new] = rule_of_.emplace(&module, &rule);
  if (!is_new) {
    return Problem(rule, Concat("rule \"", known->second->pattern, "\" names ", name, ", too"));
  }
  modules.emplace_back(&module, &rule);
  auto* linear = dynamic_cast<Linear*>(&module);
  if (const auto* recurrent = dynamic_cast<const Recurrent*>(&module)) {
    return AddRecurrent(name, *recurrent, rule);
  }
  const auto wrong = [&](const char* want) {
    Problem(rule, Concat(name, " is not an ", want, ", which this style is for"));
  };
  const bool features = rule.style == kColumn || rule.style == kColumnGather ||
                        rule.style == kRow || rule.style == kRowSplit;
  if (const auto* conv = dynamic_cast<Convolution*>(&module); conv != nullptr && features) {
    return AddConvolution(name, *conv, rule);
  }
  switch (rule.style) {
    case kColumn:
    case kColumnGather:
      if (linear == nullptr) return wrong("nn::Linear, nn::Conv1d or nn::Conv2d");
      Cut(linear->weight(), ShardAlong(FeatureDim(*linear, true), rule), rule);
      if (linear->bias() != nullptr) Cut(linear->bias(), ShardAlong(0, rule), rule);
      return CutFactors(*linear, ShardAlong(0, rule), rule);
    case kRow:
    case kRowSplit:
      if (linear == nullptr) return wrong("nn::Linear, nn::Conv1d or nn::Conv2d");
      for (const LoraFactors& factors : linear->adapters()) {
        Cut(factors.a, ShardAlong(1, rule), rule);
        if (factors.dropout > 0 && (rule.sections != 1 || !rule.section_units.empty())) {
          Problem(rule, Concat(name, " has several sections, over which the dropout of adapter \"",
                               factors.adapter, "\" cannot be cut; set its dropout to 0"));
        }
      }
      return Cut(linear->weight(), ShardAlong(FeatureDim(*linear, false), rule), rule);
    case kVocabulary:
      if (const auto* embedding = dynamic_cast<Embedding*>(&module)) {
        for (const LoraFactors& factors : embedding->adapters()) Cut(factors.a, {.dim = 1}, rule);
        return Cut(embedding->weight(), {.dim = 0, .pad = true}, rule);
      }
      if (linear == nullptr) return wrong("nn::Embedding or nn::Linear");
      if (linear->bias() != nullptr) Cut(linear->bias(), {.dim = 0, .pad = true}, rule);
      CutFactors(*linear, {.dim = 0, .pad = true}, rule);
      return Cut(linear->weight(),
                 {.dim = FeatureDim(*linear, true), .pad = FeatureDim(*linear, true) == 0}, rule);
    case kDropout:
      if (dynamic_cast<Dropout*>(&module) == nullptr) return wrong("nn::Dropout");
      return;
    case kHeadNorm:
      if (dynamic_cast<RmsNorm*>(&module) == nullptr &&
          dynamic_cast<LayerNorm*>(&module) == nullptr) {
        return wrong("nn::RmsNorm or nn::LayerNorm");
      }
      return;
    case kColumnNorm: {
      const auto* norm = dynamic_cast<RmsNorm*>(&module);
      if (norm == nullptr) return wrong("nn::RmsNorm");
      return Cut(norm->weight(), ShardAlong(0, rule), rule);
    }
    case kAttention:
      if (dynamic_cast<AttentionCore*>(&module) == nullptr) return wrong("nn::AttentionCore");
      return;
    case kExperts: {
      const auto* experts = dynamic_cast<Experts*>(&module);
      if (experts == nullptr) return wrong("nn::Moe's experts");
      const auto& [gate, up, down] = experts->matrices();
      for (size_t e = 0; e < gate.size(); ++e) {
        Cut(gate[e], {.dim = 0}, rule);
        Cut(up[e], {.dim = 0}, rule);
        Cut(down[e], {.dim = 1}, rule);
      }
      return;
    }
    case kParameter:
      return;
  }
}

// Of a layer whose outputs are cut. `shard`: of the outputs.
void PlanMatch::CutFactors(const Linear& linear, const TensorShard& shard, const PlanRule& rule) {
  for (const LoraFactors& factors : linear.adapters()) {
    Cut(factors.b, shard, rule);
    if (factors.magnitude == nullptr) continue;
    Cut(factors.magnitude, shard, rule);
    if (factors.magnitude->shape()[0] % tp_ != 0) {
      Problem(rule, Concat(factors.magnitude->name(), " ", factors.magnitude->shape(),
                           " does not divide by tp ", tp_, ", and rows of padding have no norm"));
    }
  }
}

// Every gate's section of the weights is cut by units.
void PlanMatch::AddRecurrent(const std::string& name, const Recurrent& module,
                             const PlanRule& rule) {
  if (rule.style != kColumn && rule.style != kColumnGather) {
    return Problem(rule, Concat(name,
                                " is a recurrent layer, whose units only the styles column "
                                "and column_gather cut"));
  }
  if (rule.sections != 1 || !rule.section_units.empty()) {
    const std::string which = rule.section_units.empty()
                                  ? Concat("sections is ", rule.sections)
                                  : Concat("section_units are ", UnitsText(rule.section_units));
    return Problem(rule, Concat(which, ", but the sections of ", name, " are its ",
                                module.num_gates(), " gates; leave it out"));
  }
  if (module.hidden_size() % tp_ != 0) {
    return Problem(rule, Concat("tp ", tp_, " does not divide the ", module.hidden_size(),
                                " units of ", name));
  }
  const TensorShard shard{.dim = 0, .sections = module.num_gates()};
  for (const Recurrent::Layer& layer : module.layers()) {
    for (const auto& parameter : {layer.weight_ih, layer.weight_hh, layer.bias_ih, layer.bias_hh}) {
      if (parameter != nullptr) Cut(parameter, shard, rule);
    }
  }
}

void PlanMatch::AddConvolution(const std::string& name, const Convolution& conv,
                               const PlanRule& rule) {
  if (conv.transposed()) {
    return Problem(rule, Concat(name,
                                " is a transposed convolution, which no style shards; leave "
                                "it whole, without a rule"));
  }
  if (const int64_t groups = conv.options().groups; groups != 1) {
    return Problem(rule, Concat(name, " is a convolution of ", groups,
                                " groups: its channels depend "
                                "on each other only within a group, so that a style would leave "
                                "ranks without work; leave it whole, without a rule"));
  }
  const bool column = rule.style == kColumn || rule.style == kColumnGather;
  Cut(conv.weight(), ShardAlong(column ? 0 : 1, rule), rule);
  if (column && conv.bias() != nullptr) Cut(conv.bias(), ShardAlong(0, rule), rule);
}

void PlanMatch::Cut(const autograd::ParameterPtr& parameter, const TensorShard& shard,
                    const PlanRule& rule) {
  try {
    LocalShape(shard, parameter->shape(), tp_);  // throws if the shard does not fit
    const int64_t section =
        parameter->shape()[parameter->shape().Normalize(shard.dim)] / shard.sections;
    if (rule.units > 0 && section % rule.units != 0) {
      Problem(rule, Concat(parameter->name(), " ", parameter->shape(), " has sections of ", section,
                           " elements, which are not ", rule.units, " equal ", rule.unit_name));
    }
  } catch (const Error& error) {
    return Problem(rule, Concat(parameter->name(), ": ", error.what()));
  }
  cut_by_.emplace(parameter.get(), &rule);
  const auto [known, is_new] = shards.emplace(parameter.get(), shard);
  if (is_new || known->second == shard) return;
  Problem(rule, Concat(parameter->name(), " is cut in another way by another rule"));
}

}  // namespace apogee::nn::parallel
