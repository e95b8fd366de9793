// SPDX-License-Identifier: Apache-2.0

// Adapters: merges an adapter into weights that ranks may hold in parts.
#include "apogee/booster/lora/adapters.h"
#include "apogee/core/text/text.h"
#include "apogee/nn/parallel/shard.h"

namespace apogee {
namespace {

using autograd::Parameter;
using autograd::ParameterPtr;

// The whole of a parameter, on every rank. Collective. Null for null.
ParameterPtr Whole(const ParameterPtr& parameter, const Plugin& plugin) {
  if (parameter == nullptr) return nullptr;
  return std::make_shared<Parameter>(parameter->name(), plugin.WholeValue(*parameter),
                                     /*requires_grad=*/false);
}

}  // namespace

void Adapters::Merge(nn::Module& model, const Plugin& plugin, const std::string& adapter) {
  OptionsOf("merge_adapter", adapter);
  APOGEE_CHECK(merged_.empty(), "merge_adapter: adapter \"", merged_,
               "\" is merged already; call unmerge_adapter first");
  for (const auto& [name, layer, factors] : nn::LayersToMerge(model, adapter)) {
    const ParameterPtr& weight = layer->weight();
    nn::LoraFactors whole = *factors;
    whole.a = Whole(factors->a, plugin);
    whole.b = Whole(factors->b, plugin);
    whole.magnitude = Whole(factors->magnitude, plugin);
    const Tensor merged = layer->Merged(whole, *Whole(weight, plugin));
    bases_.emplace_back(weight, weight->data().Clone());
    const Tensor own = nn::parallel::CutByLayout(merged, plugin.LayoutOf(*weight));
    const Tensor value = weight->data();  // may end in padding
    value.View({value.numel()}).Slice(0, 0, own.numel()).CopyFrom(own.View({own.numel()}));
  }
  merged_ = adapter;
  nn::SetActiveAdapters(model, {});
}

void Adapters::Unmerge(nn::Module& model, const std::string& adapter) {
  APOGEE_CHECK(merged_ == adapter, "unmerge_adapter: adapter \"", adapter, "\" is not merged");
  for (const auto& [parameter, base] : bases_) parameter->data().CopyFrom(base);
  bases_.clear();
  merged_.clear();
  nn::SetActiveAdapters(model, {adapter});
}

}  // namespace apogee
