// SPDX-License-Identifier: Apache-2.0

#include "apogee/booster/lora/adapters.h"

#include <algorithm>
#include <utility>

#include "apogee/booster/lora/adapter_files.h"
#include "apogee/core/text/text.h"

namespace apogee {
namespace {

// By the model's names: the adapter's.
std::map<std::string, std::string> NamesOf(nn::Module& model, const nn::LoraOptions& options,
                                           const std::string& adapter) {
  std::map<std::string, std::string> names;
  for (const auto& [name, parameter] : nn::AdapterTensors(model, options, adapter)) {
    names[parameter->name()] = name;
  }
  return names;
}

std::vector<checkpoint::TensorPart> Renamed(std::vector<checkpoint::TensorPart> parts,
                                            const std::map<std::string, std::string>& names) {
  for (checkpoint::TensorPart& part : parts) part.name = names.at(part.name);
  return parts;
}

bool HasTransposedLayers(nn::Module& model) {
  return std::ranges::any_of(nn::AdaptedLayers(model), [](const auto& layer) {
    const auto* const linear = dynamic_cast<const nn::Linear*>(layer.second);
    return linear != nullptr && linear->layout() == nn::WeightLayout::kInOut;
  });
}

}  // namespace

void Adapters::Add(nn::Module& model, const nn::LoraOptions& options, const std::string& adapter) {
  nn::AddLora(model, options, adapter);
  adapters_[adapter] = options;
}

absl::Status Adapters::Add(nn::Module& model, const std::string& dir, const std::string& adapter,
                           const std::optional<nn::QuantizeOptions>& quantize,
                           const std::shared_ptr<checkpoint::FileSystem>& files) {
  APOGEE_ASSIGN_OR_RETURN(const AdapterConfig config,
                          AddPretrainedLora(model, dir, adapter, quantize, files));
  adapters_[adapter] = config.lora;
  return absl::OkStatus();
}

const nn::LoraOptions& Adapters::OptionsOf(const std::string& call,
                                           const std::string& adapter) const {
  const auto found = adapters_.find(adapter);
  if (found != adapters_.end()) return found->second;
  APOGEE_CHECK(!adapters_.empty(), call,
               ": the model has no adapter; call enable_lora before boost");
  std::vector<std::string> names;
  for (const auto& [name, options] : adapters_) names.push_back(name);
  Throw(call, ": ", UnknownName("adapter", adapter, names));
}

std::vector<checkpoint::TensorPart> Adapters::OwnOf(
    const std::string& call, nn::Module& model, const std::string& adapter,
    const std::vector<checkpoint::TensorPart>& parts) const {
  const auto names = NamesOf(model, OptionsOf(call, adapter), adapter);
  std::vector<checkpoint::TensorPart> own = parts;
  std::erase_if(own, [&](const auto& part) { return !names.contains(part.name); });
  return own;
}

absl::StatusOr<std::unique_ptr<checkpoint::PlannedSave>> Adapters::PlanSave(
    nn::Module& model, const SaveAdapterOptions& options,
    const std::vector<checkpoint::TensorPart>& parts, const comm::GroupPtr& group) const {
  const nn::LoraOptions& lora = OptionsOf("save_adapter", options.adapter);
  return PlanAdapter(
      Renamed(parts, NamesOf(model, lora, options.adapter)),
      {.lora = lora, .base_model = options.base_model, .task_type = options.task_type},
      HasTransposedLayers(model), group);
}

absl::Status Adapters::Load(nn::Module& model, const std::string& adapter,
                            const checkpoint::CheckpointTarget& source,
                            const std::vector<checkpoint::TensorPart>& parts,
                            const comm::GroupPtr& group) const {
  const nn::LoraOptions& lora = OptionsOf("load_adapter", adapter);
  return LoadAdapterValues(source, Renamed(parts, NamesOf(model, lora, adapter)), group);
}

}  // namespace apogee
