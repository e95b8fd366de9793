// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/quantized/quantize.h"

#include <algorithm>
#include <set>
#include <utility>

#include "apogee/core/text/text.h"
#include "apogee/nn/layer_names.h"
#include "apogee/nn/layers.h"
#include "apogee/nn/quantized/quantized_weight.h"
#include "apogee/tensor/ops/block_codes.h"

namespace apogee::nn {
const char* Name(BlockCodeKind kind) { return kind == BlockCodeKind::kNf4 ? "nf4" : "int8"; }

absl::StatusOr<std::optional<QuantizeOptions>> ParseQuantize(const std::string& text) {
  if (text == "none") return std::optional<QuantizeOptions>();
  for (const BlockCodeKind kind : {BlockCodeKind::kNf4, BlockCodeKind::kInt8}) {
    if (text == Name(kind)) return QuantizeOptions{.kind = kind};
  }
  return InvalidArgument("quantize is \"", text, "\", must be none, nf4 or int8");
}

void QuantizeLinears(Module& model, const QuantizeOptions& options,
                     const std::vector<Module*>& keep) {
  std::set<const Module*> kept;
  for (Module* module : keep) {
    for (const Module* below : module->Modules()) kept.insert(below);
  }
  std::vector<std::pair<Linear*, ParameterPtr>> chosen;
  std::vector<std::string> names;
  std::set<std::string> unmatched(options.skip.begin(), options.skip.end());
  for (const auto& [name, module] : model.NamedModules()) {
    auto* const linear = dynamic_cast<Linear*>(module);
    if (linear == nullptr) continue;
    names.push_back(name.substr(name.rfind('.') + 1));
    bool skipped = IsOutputName(name) || kept.contains(linear);
    for (const std::string& key : options.skip) {
      if (!MatchesEnd(key, name)) continue;
      unmatched.erase(key);
      skipped = true;
    }
    // A tied weight is its owner's.
    if (!skipped && linear->Declares(*linear->weight())) {
      chosen.emplace_back(linear, linear->weight());
    }
  }
  std::ranges::sort(names);
  names.erase(std::ranges::unique(names).begin(), names.end());
  std::string problems;
  for (const std::string& key : unmatched) {
    AddProblem(problems, "skip: ", UnknownName("layer", key, names));
  }
  if (chosen.empty()) {
    AddProblem(problems, "the model has no nn::Linear besides its output; leave quantize out");
  }
  for (const auto& [linear, weight] : chosen) {
    if (weight->has_value() && !weight->is_lazy() && ops::FirstNonFinite(weight->data()) >= 0) {
      AddProblem(problems, "\"", weight->name(), "\" has values that are not finite");
    }
  }
  APOGEE_CHECK(problems.empty(), "quantize: cannot quantize the model:", problems);
  for (const auto& [linear, weight] : chosen) linear->QuantizeParameter(weight, options);
}

}  // namespace apogee::nn
