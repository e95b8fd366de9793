// SPDX-License-Identifier: Apache-2.0

// Adapters: merges an adapter into weights that ranks may hold in parts.
#include "apogee/booster/lora/adapters.h"
#include "apogee/core/text/text.h"
#include "apogee/nn/quantized/quantized_weight.h"

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

// Writes the elements of `whole` that this rank holds of the parameter.
void WriteOwn(const Tensor& whole, const Layout& layout, const Parameter& parameter) {
  const Tensor own = parameter.data();
  if (layout.local_numel() == 0) return;
  const Tensor from = whole.View({whole.numel()}), to = own.View({own.numel()});
  int64_t at = 0;
  for (const Segment& segment : layout.segments()) {
    to.Slice(0, at, segment.length).CopyFrom(from.Slice(0, segment.begin, segment.length));
    at += segment.length;
  }
}

}  // namespace

void Adapters::Merge(nn::Module& model, const Plugin& plugin, const std::string& adapter) {
  OptionsOf("merge_adapter", adapter);
  APOGEE_CHECK(merged_.empty(), "merge_adapter: adapter \"", merged_,
               "\" is merged already; call unmerge_adapter first");
  APOGEE_CHECK(model.QuantizedWeights().empty(),
               "merge_adapter: the base is quantized, and codes have no room for a sum; add the "
               "adapter to the model that was quantized");
  for (const auto& [name, layer] : nn::AdaptedLayers(model)) {
    for (const nn::LoraFactors& factors : layer->adapters()) {
      APOGEE_CHECK(factors.adapter == adapter || !factors.is_active, "merge_adapter: \"", name,
                   "\" has the active adapter \"", factors.adapter,
                   "\", too; call nn::SetActiveAdapters with one name");
    }
  }
  for (const auto& [name, layer] : nn::AdaptedLayers(model)) {
    for (const nn::LoraFactors& factors : layer->adapters()) {
      if (factors.adapter != adapter) continue;
      const ParameterPtr& weight = layer->weight();
      nn::LoraFactors whole = factors;
      whole.a = Whole(factors.a, plugin);
      whole.b = Whole(factors.b, plugin);
      whole.magnitude = Whole(factors.magnitude, plugin);
      const Tensor merged = layer->Merged(whole, *Whole(weight, plugin));
      bases_.emplace_back(weight, weight->data().Clone());
      WriteOwn(merged, plugin.LayoutOf(*weight), *weight);
    }
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
