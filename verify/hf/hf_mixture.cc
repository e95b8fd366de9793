// SPDX-License-Identifier: Apache-2.0

// Replays of models with a mixture of experts: the router's logits and choices, the auxiliary loss
// and its gradients; and weights whose experts are fused.
#include <filesystem>

#include "apogee/autograd/engine.h"
#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/booster/pretrained.h"
#include "apogee/checkpoint/format/open_tensor_file.h"
#include "apogee/checkpoint/format/tensor_file.h"
#include "apogee/checkpoint/hf/hf_weights.h"
#include "apogee/core/process/temp_folder.h"
#include "apogee/nn/losses.h"
#include "apogee/nn/moe/moe.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/verify/cases.h"
#include "apogee/verify/hf/hf_replay.h"

namespace apogee::verify {
namespace {

namespace fs = std::filesystem;

// "1" of "model.layers.1.mlp".
std::string LayerNumber(const nn::Moe& layer) {
  const std::string name = layer.full_name(), start = "layers.";
  const size_t begin = name.find(start) + start.size();
  return name.substr(begin, name.find('.', begin) - begin);
}

void CompareRouter(const nn::Moe& layer, const HfReplay& replay) {
  const std::string number = LayerNumber(layer);
  const nn::Moe::Record& record = layer.record();
  replay.comparison.Elements(record.logits.Detach().ToVector<double>(),
                             replay.golden.Values("ref64/router_logits/" + number),
                             replay.tolerances.RouterLogits(), "router logits of layer " + number);
  replay.comparison.Elements({record.chosen.begin(), record.chosen.end()},
                             replay.golden.Values("router_topk/" + number), {},
                             "choices of layer " + number);
}

void CompareAuxiliaryLoss(const nn::HfModel& hf, const HfReplay& replay, const Tensor& logits) {
  const GoldenCase& golden = replay.golden;
  const Tensor auxiliary = nn::AuxiliaryLoss(*hf.module);
  const double coefficient = golden.required("router_aux_loss_coef").get<double>();
  replay.comparison.Number(auxiliary.Item() / coefficient, golden.Values("ref64/aux_loss").at(0),
                           replay.tolerances.AuxiliaryLoss(), "auxiliary loss");
  const Tensor loss = autograd::Add(nn::CrossEntropyLoss()(logits, replay.Targets(hf)), auxiliary);
  replay.comparison.Number(loss.Item(), golden.Values("ref64/loss_with_aux").at(0),
                           replay.tolerances.LossWithAuxiliary(), "loss with auxiliary loss");
  autograd::Backward(loss);
  for (const autograd::ParameterPtr& parameter : hf.module->Parameters()) {
    const std::string name = replay.NameInFiles(*parameter);
    const std::string entry = "with_aux/ref64/grad/" + name;
    const std::vector<double> grad = parameter->grad().ToVector<double>();
    if (golden.contains(entry)) {
      const std::vector<double> recorded = golden.Values(entry);
      replay.comparison.Elements(grad, recorded, replay.tolerances.Gradient(name, recorded), entry);
    }
    if (replay.dtype == DType::kF64) {
      CompareExactGradient("with_aux/", name, grad, parameter->shape(), replay);
    }
    parameter->zero_grad();
  }
}

std::vector<checkpoint::TensorPart> PartsOf(nn::Module& model) {
  std::vector<checkpoint::TensorPart> parts;
  for (const autograd::ParameterPtr& parameter : model.Parameters()) {
    parts.push_back({parameter->name(), parameter->data(), Layout(parameter->shape())});
  }
  return parts;
}

// The values of the folder's tensors, read without the library's rules for names: `places` says for
// each usual name the tensor, the expert and the rows.
void ComparePlaces(const fs::path& folder, nn::Module& model, const Json& places,
                   Comparison& comparison) {
  const std::string path = (folder / checkpoint::kHfSingleName).string();
  const checkpoint::OpenTensorFile file =
      ValueOrThrow(checkpoint::OpenTensorFile::Open(*checkpoint::RealFileSystem(), path));
  for (const checkpoint::TensorPart& part : PartsOf(model)) {
    if (!places.contains(part.name)) {
      comparison.Fail(part.name + " is not recorded");
      continue;
    }
    const Json& place = places.at(part.name);
    const auto& entry = file.header.entries.at(place.at("tensor").get<std::string>());
    const DType dtype = *checkpoint::TensorDType(entry.dtype);
    int64_t first = 0;  // row of the tensor as a matrix
    if (place.contains("expert")) {
      first = place.at("expert").get<int64_t>() * entry.shape.at(1) +
              place.at("rows").at(0).get<int64_t>();
    }
    const Tensor values = Tensor::Empty({part.value.numel()}, dtype, CpuContext());
    const int64_t row_bytes = part.value.bytes() / part.value.size(0);
    OkOrThrow(file.file->Read(
        file.data_start + entry.begin +
            first * row_bytes * DTypeSize(dtype) / DTypeSize(part.value.dtype()),
        {static_cast<std::byte*>(values.raw()), static_cast<size_t>(values.bytes())}));
    comparison.Elements(part.value.ToVector<double>(), values.ToVector<double>(), {}, part.name);
  }
}

// Saves with fused experts: the tensors of the file must be those of the folder, bit for bit.
void CompareFused(const fs::path& folder, const nn::HfModel& hf, Comparison& comparison) {
  const TempFolder temporary;
  APOGEE_CHECK(!temporary.path().empty(), "no folder can be made in TMPDIR (default: /tmp)");
  const std::string saved = temporary.path() + "/saved";
  OkOrThrow(checkpoint::SaveModelWeights({checkpoint::RealFileSystem(), saved}, PartsOf(*hf.module),
                                         {.fuse_experts = true, .config_json = hf.config_json},
                                         /*group=*/nullptr));
  const auto open = [](const std::string& path) {
    return ValueOrThrow(checkpoint::OpenTensorFile::Open(*checkpoint::RealFileSystem(),
                                                         path + "/" + checkpoint::kHfSingleName));
  };
  const checkpoint::OpenTensorFile own = open(saved), recorded = open(folder.string());
  const auto bytes_of = [](const checkpoint::OpenTensorFile& file,
                           const checkpoint::SafetensorsEntry& entry) {
    std::vector<std::byte> bytes(static_cast<size_t>(entry.end - entry.begin));
    OkOrThrow(file.file->Read(file.data_start + entry.begin, bytes));
    return bytes;
  };
  for (const auto& [name, entry] : recorded.header.entries) {
    const auto found = own.header.entries.find(name);
    if (found == own.header.entries.end() || found->second.shape != entry.shape ||
        bytes_of(own, found->second) != bytes_of(recorded, entry)) {
      comparison.Fail(name + " is not saved as it was, with fused experts");
    }
  }
  if (own.header.entries.size() != recorded.header.entries.size()) {
    comparison.Fail("other tensors are saved with fused experts");
  }
}

}  // namespace

void CompareMixture(const nn::HfModel& hf, const HfReplay& replay) {
  const std::vector<nn::Moe*> layers = nn::MoeLayers(*hf.module);
  if (layers.empty()) return;
  for (nn::Moe* layer : layers) layer->KeepLogits();
  const Tensor logits = replay.Logits(hf);
  for (const nn::Moe* layer : layers) CompareRouter(*layer, replay);
  if (replay.golden.contains("ref64/aux_loss")) CompareAuxiliaryLoss(hf, replay, logits);
}

Comparison ReplayHfAlias(const std::string& path) {
  const fs::path folder = fs::absolute(path).parent_path();
  Comparison comparison;
  const std::string refused = WhyRefused(folder.string());
  if (!refused.empty()) {
    comparison.Fail(refused);
    return comparison;
  }
  const Json expected = ReadJson(path);
  const nn::HfModel hf = ValueOrThrow(LoadPretrained(folder.string(), CpuContext()));
  ComparePlaces(folder, *hf.module, expected.at("names"), comparison);
  CompareFused(folder, hf, comparison);
  return comparison;
}

}  // namespace apogee::verify
