// SPDX-License-Identifier: Apache-2.0

#include "apogee/booster/lora/adapter_files.h"

#include <map>
#include <utility>

#include "apogee/checkpoint/agreement.h"
#include "apogee/checkpoint/format/open_tensor_file.h"
#include "apogee/checkpoint/hf/hf_weights.h"
#include "apogee/core/text/text.h"

namespace apogee {
namespace {

using checkpoint::HfWeights;
using internal::Concat;

constexpr const char* kPrefix = "base_model.model.";

// Of the tensors with problems, the first few.
class Listed {
 public:
  template <typename... Parts>
  void Add(const Parts&... parts) {
    constexpr int kShown = 6;
    if (++count_ <= kShown) AddProblem(text_, parts...);
    if (count_ == kShown + 1) AddProblem(text_, "and others");
  }
  const std::string& text() const { return text_; }

 private:
  int count_ = 0;
  std::string text_;
};

// Whether the tensor is a base weight beside the factors of an embedding.
bool IsBaseOfEmbedding(const std::string& name) { return name.ends_with(".base_layer.weight"); }

absl::Status CheckTensors(const HfWeights& weights, const std::map<std::string, Shape>& wanted,
                          const std::string& dir) {
  Listed problems, unknown;
  for (const auto& [name, shape] : wanted) {
    const auto found = weights.tensors().find(AdapterFileName(name));
    if (found == weights.tensors().end()) {
      problems.Add("\"", AdapterFileName(name), "\" ", shape, " is missing");
      continue;
    }
    const Shape there(found->second.entry->shape);
    if (!(there == shape)) {
      problems.Add("\"", AdapterFileName(name), "\" is ", there, ", and this model needs ", shape);
    }
  }
  for (const auto& [name, place] : weights.tensors()) {
    const bool ours =
        name.starts_with(kPrefix) && wanted.contains(name.substr(std::string(kPrefix).size()));
    if (!ours && !IsBaseOfEmbedding(name)) {
      unknown.Add("\"", name, "\" ", Shape(place.entry->shape), " has no place in this model");
    }
  }
  const std::string text = problems.text() + unknown.text();
  if (text.empty()) return absl::OkStatus();
  return InvalidArgument(dir, ": this adapter is of another base:", text);
}

}  // namespace

absl::StatusOr<AdapterConfig> ReadAdapterConfig(checkpoint::FileSystem& files,
                                                const std::string& dir) {
  const std::string path = checkpoint::JoinPath(dir, kAdapterConfigName);
  APOGEE_ASSIGN_OR_RETURN(const std::string json,
                          checkpoint::ReadTextFile(files, path, kMaxAdapterConfigBytes));
  return ParseAdapterConfig(json, path);
}

std::string AdapterFileName(const std::string& name) { return kPrefix + name; }

absl::StatusOr<AdapterConfig> AddPretrainedLora(
    nn::Module& model, const std::string& dir, const std::string& adapter,
    const std::optional<nn::QuantizeOptions>& quantize,
    const std::shared_ptr<checkpoint::FileSystem>& files) {
  APOGEE_ASSIGN_OR_RETURN(AdapterConfig config, ReadAdapterConfig(*files, dir));
  config.lora.quantize = quantize;
  APOGEE_ASSIGN_OR_RETURN(const HfWeights weights,
                          HfWeights::Open(files, dir, kAdapterWeightsName));
  std::map<std::string, Shape> wanted;
  try {
    wanted = nn::PlannedTensors(model, config.lora, adapter);
  } catch (const Error& error) {
    return InvalidArgument(dir, ": ", error.what());
  }
  APOGEE_RETURN_IF_ERROR(CheckTensors(weights, wanted, dir));
  // Read before the model changes.
  const ContextPtr context = HostOf(model.Parameters()[0]->context());
  std::map<std::string, Tensor> values;
  for (const auto& [name, shape] : wanted) {
    Tensor value = Tensor::Empty(shape, DType::kF64, context);  // exact for every dtype of a file
    APOGEE_RETURN_IF_ERROR(weights.Read(AdapterFileName(name), Layout(shape), value));
    values[name] = value;
  }
  nn::AddLora(model, config.lora, adapter);
  for (const auto& [name, parameter] : nn::AdapterTensors(model, config.lora, adapter)) {
    const Tensor value = values.at(name).To(parameter->dtype(), MemoryCategory::kParameter);
    parameter->set_value(value.To(parameter->context(), MemoryCategory::kParameter));
  }
  return config;
}

absl::StatusOr<std::unique_ptr<checkpoint::PlannedSave>> PlanAdapter(
    std::vector<checkpoint::TensorPart> parts, const AdapterConfig& config, bool fan_in_fan_out,
    const comm::GroupPtr& group) {
  for (checkpoint::TensorPart& part : parts) part.name = AdapterFileName(part.name);
  return checkpoint::PlanModelWeights(
      std::move(parts),
      {.shard = false,
       .single_name = kAdapterWeightsName,
       .texts = {{kAdapterConfigName, FormatAdapterConfig(config, fan_in_fan_out)}}},
      group);
}

absl::Status LoadAdapterValues(const checkpoint::CheckpointTarget& source,
                               std::vector<checkpoint::TensorPart> parts,
                               const comm::GroupPtr& group) {
  std::map<std::string, Shape> wanted;
  for (checkpoint::TensorPart& part : parts) {
    wanted.emplace(part.name, part.layout.logical_shape());
    part.name = AdapterFileName(part.name);
  }
  const auto check = [&]() -> absl::Status {
    APOGEE_ASSIGN_OR_RETURN(const HfWeights weights,
                            HfWeights::Open(source.files, source.path, kAdapterWeightsName));
    return CheckTensors(weights, wanted, source.path);
  };
  APOGEE_RETURN_IF_ERROR(checkpoint::AgreeOnStatus(check(), group));
  return checkpoint::LoadModelWeights(source, parts,
                                      {.single_name = kAdapterWeightsName, .strict = false}, group)
      .status();
}

}  // namespace apogee
