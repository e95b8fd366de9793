// SPDX-License-Identifier: Apache-2.0

// MergedAdapter, and the names of an adapter's tensors in PEFT's files.
#include <algorithm>
#include <set>

#include "apogee/core/text/text.h"
#include "apogee/nn/layer_names.h"
#include "apogee/nn/lora/lora.h"
#include "apogee/nn/quantized/quantized_weight.h"

namespace apogee::nn {
namespace {

// Nothing if `parameter` is not a factor of the adapter.
std::string FactorName(const std::string& layer, const LoraFactors& factors,
                       const Parameter& parameter) {
  if (&parameter == factors.magnitude.get()) return layer + ".lora_magnitude_vector";
  const bool is_a = &parameter == factors.a.get();
  if (!is_a && &parameter != factors.b.get()) return "";
  const bool of_embedding = parameter.name().find(".lora_embedding_") != std::string::npos;
  const char* which = is_a ? "A" : "B";
  return layer + (of_embedding ? internal::Concat(".lora_embedding_", which)
                               : internal::Concat(".lora_", which, ".weight"));
}

const LoraFactors* FactorsOf(const Adaptable& layer, const std::string& adapter) {
  const auto found = std::ranges::find(layer.adapters(), adapter, &LoraFactors::adapter);
  return found == layer.adapters().end() ? nullptr : &*found;
}

}  // namespace

std::vector<std::pair<std::string, ParameterPtr>> AdapterTensors(Module& model,
                                                                 const LoraOptions& options,
                                                                 const std::string& adapter) {
  std::vector<std::pair<std::string, ParameterPtr>> tensors;
  std::set<const Parameter*> saved;
  for (const auto& [name, module] : model.NamedModules()) {
    const bool whole = std::ranges::any_of(
        options.modules_to_save, [&name = name](const auto& key) { return MatchesEnd(key, name); });
    if (!whole) continue;
    for (const ParameterPtr& parameter : module->Parameters()) saved.insert(parameter.get());
  }
  std::map<const Parameter*, std::string> names;
  for (const auto& [name, layer] : AdaptedLayers(model)) {
    const LoraFactors* factors = FactorsOf(*layer, adapter);
    if (factors == nullptr) continue;
    for (const ParameterPtr& parameter : {factors->a, factors->b, factors->magnitude}) {
      if (parameter != nullptr) names[parameter.get()] = FactorName(name, *factors, *parameter);
    }
    const auto* const linear = dynamic_cast<const Linear*>(layer);
    if (options.bias == LoraBias::kNone || linear == nullptr || linear->bias() == nullptr) continue;
    names[linear->bias().get()] = name + ".base_layer.bias";
  }
  for (const ParameterPtr& parameter : model.Parameters()) {
    const auto found = names.find(parameter.get());
    const bool is_bias = options.bias == LoraBias::kAll && parameter->name().ends_with("bias");
    if (found != names.end()) {
      tensors.emplace_back(found->second, parameter);
    } else if (is_bias || saved.contains(parameter.get())) {
      tensors.emplace_back(parameter->name(), parameter);
    }
  }
  return tensors;
}

std::vector<MergeLayer> LayersToMerge(Module& model, const std::string& adapter) {
  std::set<std::string> known;
  std::string problems;
  std::vector<MergeLayer> layers;
  std::set<const Parameter*> quantized;
  for (const auto& weight : model.QuantizedWeights()) quantized.insert(weight->weight().get());
  for (const auto& [name, layer] : AdaptedLayers(model)) {
    for (const LoraFactors& factors : layer->adapters()) {
      known.insert(factors.adapter);
      if (factors.adapter != adapter && factors.is_active) {
        AddProblem(problems, "\"", name, "\" has the active adapter \"", factors.adapter,
                   "\", too; call SetActiveAdapters with one name");
      }
    }
    const LoraFactors* factors = FactorsOf(*layer, adapter);
    if (factors == nullptr) continue;
    layers.push_back({name, layer, factors});
    if (quantized.contains(layer->weight().get())) {
      AddProblem(
          problems, "\"", name,
          "\" is quantized, and codes have no room for a sum; merge into the model as it was "
          "before, or call RestoreQuantized before boost");
    }
  }
  if (!known.contains(adapter)) {
    AddProblem(problems, UnknownName("adapter", adapter, {known.begin(), known.end()}));
  }
  APOGEE_CHECK(problems.empty(), "lora: cannot merge adapter \"", adapter, "\":", problems);
  return layers;
}

MergedAdapter::MergedAdapter(Module& model, const std::string& adapter)
    : model_(model), adapter_(adapter) {
  const std::vector<MergeLayer> layers = LayersToMerge(model, adapter);
  std::string problems;
  for (const auto& [name, layer, factors] : layers) {
    const Parameter& weight = *layer->weight();
    if (!weight.is_here()) {
      AddProblem(problems, "\"", name, "\" is on another rank");
    } else if (!weight.is_local()) {
      AddProblem(problems, "this rank has a shard of \"", weight.name(),
                 "\"; call Booster::merge_adapter");
    } else if (factors->magnitude != nullptr && weight.is_part()) {
      AddProblem(problems, "the norms of DoRA need the whole \"", weight.name(), "\"");
    }
  }
  APOGEE_CHECK(problems.empty(), "lora: cannot merge adapter \"", adapter, "\":", problems);
  for (const auto& [name, layer, factors] : layers) {
    const Tensor weight = layer->weight()->data();
    const Tensor merged = layer->Merged(*factors, *layer->weight());
    bases_.emplace_back(layer->weight(), weight.Clone());
    weight.CopyFrom(merged);
  }
  SetActiveAdapters(model, {});
}

void MergedAdapter::Unmerge() {
  APOGEE_CHECK(!bases_.empty(), "lora: adapter \"", adapter_, "\" is not merged");
  for (const auto& [parameter, base] : bases_) parameter->data().CopyFrom(base);
  bases_.clear();
  SetActiveAdapters(model_, {adapter_});
}

}  // namespace apogee::nn
