// SPDX-License-Identifier: Apache-2.0

// Replays recorded Hugging Face models: loads the folder, then compares logits, loss, gradients,
// some steps of training, and the weights after a save. An older wording of the config
// (config.legacy.json) must give the same logits.
#include <algorithm>
#include <filesystem>

#include "apogee/autograd/engine.h"
#include "apogee/booster/pretrained.h"
#include "apogee/checkpoint/format/open_tensor_file.h"
#include "apogee/nn/losses.h"
#include "apogee/verify/cases.h"
#include "apogee/verify/hf/hf_replay.h"

namespace apogee::verify {
namespace {

namespace fs = std::filesystem;

std::string ReadText(const fs::path& path) {
  return ValueOrThrow(checkpoint::ReadTextFile(*checkpoint::RealFileSystem(), path.string(),
                                               nn::kMaxHfConfigBytes));
}

// The model that this config describes, with the folder's weights.
nn::HfModel Load(const std::string& config, HfReplay& replay) {
  const fs::path path = fs::path(replay.folder) / config;
  nn::HfModel hf = ValueOrThrow(nn::MakeHfModel(ReadText(path), path.string()));
  hf.module->InitializeLazily(replay.golden.context(), {.dtype = replay.dtype});
  replay.prefix = ValueOrThrow(LoadPretrained(*hf.module, replay.folder)).prefix;
  hf.module->Train(false);
  return hf;
}

Tensor CompareLogits(const nn::HfModel& hf, const HfReplay& replay, const std::string& where) {
  const Tensor logits = replay.Logits(hf);
  replay.comparison.Elements(logits.Detach().ToVector<double>(),
                             replay.golden.Values("ref64/logits"), replay.tolerances.Logits(),
                             where);
  return logits;
}

}  // namespace

std::string WhyRefused(const std::string& folder) {
  const Json config = ReadJson(folder + "/config.json");
  const std::string type = config.is_object() ? config.value("model_type", "") : "";
  const std::vector<std::string> offered = nn::HfModelTypes();
  const bool is_offered = std::ranges::find(offered, type) != offered.end();
  return is_offered ? "" : "model type " + type + " is not offered";
}

Tensor HfReplay::Logits(const nn::HfModel& hf) const {
  if (hf.task == nn::HfTask::kImageClassification) {
    return (*hf.module)(golden.Load("pixel_values", dtype));
  }
  const Tensor tokens = golden.Load("input_ids");
  nn::NamedTensors inputs;
  for (const char* name : {"attention_mask", "token_type_ids"}) {
    if (golden.contains(name)) inputs[name] = golden.Load(name);
  }
  if (inputs.empty()) return (*hf.module)(tokens);
  inputs["tokens"] = tokens;
  return (*hf.module)(inputs).at("logits");
}

Tensor HfReplay::Targets(const nn::HfModel& hf) const {
  const Tensor labels = golden.Load("labels");
  if (hf.task != nn::HfTask::kCausalLm) return labels;
  std::vector<int64_t> shifted = labels.ToVector<int64_t>();
  std::shift_left(shifted.begin(), shifted.end(), 1);
  const auto length = static_cast<size_t>(labels.size(-1));
  for (size_t last = length - 1; last < shifted.size(); last += length) {
    shifted[last] = nn::CrossEntropyLoss().ignore_index;
  }
  return Tensor::FromVector(shifted, labels.shape(), golden.context());
}

std::string HfReplay::NameInFiles(const autograd::Parameter& parameter) const {
  const std::string& name = parameter.name();
  return name.starts_with(prefix) ? name.substr(prefix.size()) : name;
}

Comparison ReplayHfModel(const std::string& path, const ContextPtr& context, DType dtype) {
  const std::string folder = fs::absolute(path).parent_path().string();
  const GoldenCase golden = ValueOrThrow(GoldenCase::Open(path, folder, context, "interop-hf/"));
  Comparison comparison;
  const std::string refused = WhyRefused(folder);
  if (!refused.empty()) {
    comparison.Fail(refused);
    return comparison;
  }
  HfReplay replay{folder, golden, dtype, HfTolerances(golden, dtype), comparison};
  const nn::HfModel hf = Load("config.json", replay);
  CompareSaved(hf, replay);
  const Tensor loss =
      nn::CrossEntropyLoss()(CompareLogits(hf, replay, "logits"), replay.Targets(hf));
  comparison.Number(loss.Item(), golden.Values("ref64/loss").at(0), replay.tolerances.Loss(),
                    "loss");
  autograd::Backward(loss);
  CompareGradients(hf, replay);
  CompareMixture(hf, replay);
  if (golden.contains("ref64/loss_curve")) CompareTraining(hf, replay);
  if (fs::exists(fs::path(folder) / "config.legacy.json")) {
    CompareLogits(Load("config.legacy.json", replay), replay, "logits, config.legacy.json");
  }
  return comparison;
}

}  // namespace apogee::verify
