// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/lora/lora.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "apogee/core/text/text.h"
#include "apogee/nn/init.h"
#include "apogee/nn/layer_names.h"
#include "apogee/nn/quantized/quantized_weight.h"

namespace apogee::nn {
namespace {

constexpr const char* kAllLinear = "all-linear";

// What an adapter does to one layer.
struct Target {
  std::string name;
  Adaptable* layer;
  int64_t rank;
  double alpha;
};

std::vector<std::pair<std::string, Adaptable*>> Layers(Module& model) {
  std::vector<std::pair<std::string, Adaptable*>> layers;
  for (const auto& [name, module] : model.NamedModules()) {
    if (auto* layer = dynamic_cast<Adaptable*>(module)) layers.emplace_back(name, layer);
  }
  return layers;
}

// The last parts of names, each once: what a target may be.
std::vector<std::string> Ends(const std::vector<std::string>& names) {
  std::set<std::string> ends;
  for (const std::string& name : names) ends.insert(name.substr(name.rfind('.') + 1));
  return {ends.begin(), ends.end()};
}

template <typename Value>
Value OfPattern(const std::map<std::string, Value>& patterns, const std::string& name,
                Value otherwise) {
  for (const auto& [key, value] : patterns) {
    if (MatchesEnd(key, name)) return value;
  }
  return otherwise;
}

// Of an adapter that is about to be added: what it does, and every problem.
class Plan {
 public:
  Plan(Module& model, const LoraOptions& options, const std::string& adapter)
      : options_(options), layers_(Layers(model)) {
    for (const auto& [name, layer] : layers_) layer_names_.push_back(name);
    CheckOptions(adapter);
    if (model.is_closed()) {
      AddProblem(problems,
                 "the model is boosted, so no parameter can be added; call it before boost");
    }
    Select();
    CheckPatterns(options.rank_pattern, "rank_pattern");
    CheckPatterns(options.alpha_pattern, "alpha_pattern");
    for (const Target& target : targets) CheckLayer(target, adapter);
    SelectModules(model);
    CheckQuantized(model);
  }

  std::string problems;
  std::vector<Target> targets;
  std::vector<Module*> modules_to_save;

 private:
  void CheckOptions(const std::string& adapter) {
    if (adapter.empty() || adapter.find('.') != std::string::npos) {
      AddProblem(problems, "an adapter's name must not be empty or have a dot, got \"", adapter,
                 "\"");
    }
    if (!std::isfinite(options_.alpha) || options_.alpha <= 0) {
      AddProblem(problems, "alpha must be above 0 and finite, got ", options_.alpha);
    }
    if (!(options_.dropout >= 0 && options_.dropout < 1)) {
      AddProblem(problems, "dropout must be in [0, 1), got ", options_.dropout);
    }
    if (options_.targets.empty()) {
      AddProblem(problems, "targets must name layers, or be \"", kAllLinear, "\"");
    }
  }

  void Select() {
    std::set<std::string> unmatched(options_.targets.begin(), options_.targets.end());
    for (const auto& [name, layer] : layers_) {
      bool selected = false;
      for (const std::string& key : options_.targets) {
        const bool all = key == kAllLinear && dynamic_cast<const Linear*>(layer) != nullptr &&
                         !IsOutputName(name);
        if (!all && !MatchesEnd(key, name)) continue;
        selected = true;
        unmatched.erase(key);
      }
      if (!selected) continue;
      targets.push_back({name, layer, OfPattern(options_.rank_pattern, name, options_.rank),
                         OfPattern(options_.alpha_pattern, name, options_.alpha)});
    }
    for (const std::string& key : unmatched) {
      AddProblem(problems, "targets: ", UnknownName("layer", key, Ends(layer_names_)));
    }
  }

  template <typename Value>
  void CheckPatterns(const std::map<std::string, Value>& patterns, const char* what) {
    for (const auto& [key, value] : patterns) {
      const bool any = std::ranges::any_of(
          targets, [&key = key](const Target& t) { return MatchesEnd(key, t.name); });
      if (!any) AddProblem(problems, what, ": \"", key, "\" matches no target");
      if (!(value > 0)) AddProblem(problems, what, ": \"", key, "\" must be above 0, got ", value);
    }
  }

  void CheckLayer(const Target& target, const std::string& adapter) {
    const Parameter& weight = *target.layer->weight();
    const auto [in, out] = target.layer->sizes();
    const int64_t most = std::min(in, out);
    if (dynamic_cast<const Embedding*>(target.layer) != nullptr &&
        (options_.use_dora || options_.dropout > 0)) {
      AddProblem(
          problems, "\"", target.name,
          "\" is an embedding, for which there is neither use_dora nor dropout; leave it out "
          "of targets, or these out of options");
    }
    const bool fits = target.rank >= 1 && target.rank <= most;
    if (!fits && !std::exchange(rank_is_told_, true)) {
      AddProblem(problems, "rank must be in [1, ", most, "] for \"", target.name, "\" ",
                 weight.shape(), ", got ", target.rank);
    }
    if (options_.use_dora && (!weight.has_value() || weight.is_lazy())) {
      AddProblem(problems, "use_dora needs the norms of \"", target.name,
                 "\", which has no value yet; call Initialize, or load weights, before");
    }
    for (const LoraFactors& other : target.layer->adapters()) {
      if (other.adapter == adapter) {
        AddProblem(problems, "\"", target.name, "\" has an adapter \"", adapter, "\" already");
      }
    }
  }

  void SelectModules(Module& model) {
    std::vector<std::string> names;
    for (const auto& [name, module] : model.NamedModules()) names.push_back(name);
    for (const std::string& key : options_.modules_to_save) {
      bool any = false;
      for (const auto& [name, module] : model.NamedModules()) {
        if (!MatchesEnd(key, name)) continue;
        any = true;
        modules_to_save.push_back(module);
      }
      if (!any) AddProblem(problems, "modules_to_save: ", UnknownName("module", key, Ends(names)));
    }
  }

  // Codes are not trained.
  void CheckQuantized(Module& model) {
    if (options_.quantize && !model.QuantizedWeights().empty()) {
      AddProblem(problems, "the model is quantized already; leave out quantize");
    }
    if (options_.quantize && !AdaptedLayers(model).empty()) {
      AddProblem(problems, "quantize must be an option of the first adapter");
    }
    for (const Module* module : modules_to_save) {
      for (const auto& quantized : module->QuantizedWeights()) {
        AddProblem(problems, "modules_to_save: \"", quantized->weight()->name(),
                   "\" is quantized, so it cannot be trained; name it in QuantizeOptions::skip of "
                   "the first adapter");
      }
    }
  }

  const LoraOptions& options_;
  const std::vector<std::pair<std::string, Adaptable*>> layers_;
  std::vector<std::string> layer_names_;
  bool rank_is_told_ = false;  // the problem of one layer is usually that of all
};

}  // namespace

void AddLora(Module& model, const LoraOptions& options, const std::string& adapter) {
  const Plan plan(model, options, adapter);
  APOGEE_CHECK(plan.problems.empty(), "lora: cannot add the adapter:", plan.problems);
  const bool first = AdaptedLayers(model).empty();
  if (options.quantize) QuantizeLinears(model, *options.quantize, plan.modules_to_save);
  for (const Target& target : plan.targets) {
    const auto rank = static_cast<double>(target.rank);
    target.layer->AddAdapter({.adapter = adapter,
                              .rank = target.rank,
                              .scale = target.alpha / (options.use_rslora ? std::sqrt(rank) : rank),
                              .dropout = options.dropout,
                              .use_dora = options.use_dora,
                              .seed = options.seed});
  }
  // A further adapter leaves trainable the parameters of an earlier one.
  if (first) {
    for (const ParameterPtr& parameter : model.Parameters()) {
      parameter->set_requires_grad(false);
      parameter->zero_grad();
    }
  }
  for (const auto& [name, parameter] : AdapterTensors(model, options, adapter)) {
    parameter->set_requires_grad(true);
  }
}

std::map<std::string, Shape> PlannedTensors(Module& model, const LoraOptions& options,
                                            const std::string& adapter) {
  const Plan plan(model, options, adapter);
  APOGEE_CHECK(plan.problems.empty(), "lora: cannot add the adapter:", plan.problems);
  std::map<std::string, Shape> tensors;
  std::set<const Parameter*> biases;
  for (const Target& target : plan.targets) {
    const auto [in, out] = target.layer->sizes();
    const auto* const linear = dynamic_cast<const Linear*>(target.layer);
    const std::string kind = linear != nullptr ? ".lora_" : ".lora_embedding_";
    const std::string end = linear != nullptr ? ".weight" : "";
    tensors.emplace(target.name + kind + "A" + end, Shape{target.rank, in});
    tensors.emplace(target.name + kind + "B" + end, Shape{out, target.rank});
    if (options.use_dora) tensors.emplace(target.name + ".lora_magnitude_vector", Shape{out});
    if (options.bias == LoraBias::kNone || linear == nullptr || linear->bias() == nullptr) continue;
    tensors.emplace(target.name + ".base_layer.bias", linear->bias()->shape());
    biases.insert(linear->bias().get());
  }
  for (const Module* module : plan.modules_to_save) {
    for (const ParameterPtr& p : module->Parameters()) tensors.emplace(p->name(), p->shape());
  }
  for (const ParameterPtr& p : model.Parameters()) {
    const bool is_bias = options.bias == LoraBias::kAll && p->name().ends_with("bias");
    if (is_bias && !biases.contains(p.get())) tensors.emplace(p->name(), p->shape());
  }
  return tensors;
}

std::vector<std::pair<std::string, Adaptable*>> AdaptedLayers(Module& model) {
  std::vector<std::pair<std::string, Adaptable*>> layers = Layers(model);
  std::erase_if(layers, [](const auto& layer) { return layer.second->adapters().empty(); });
  return layers;
}

void SetActiveAdapters(Module& model, const std::vector<std::string>& adapters) {
  std::set<std::string> known;
  for (const auto& [name, layer] : AdaptedLayers(model)) {
    for (const LoraFactors& factors : layer->adapters()) known.insert(factors.adapter);
  }
  for (const std::string& adapter : adapters) {
    APOGEE_CHECK(known.contains(adapter),
                 "lora: ", UnknownName("adapter", adapter, {known.begin(), known.end()}));
  }
  for (const auto& [name, layer] : AdaptedLayers(model)) layer->SetActiveAdapters(adapters);
}

}  // namespace apogee::nn
