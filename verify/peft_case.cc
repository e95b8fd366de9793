// SPDX-License-Identifier: Apache-2.0

// Replays recorded adapters of PEFT: loads the base and the adapter, then compares logits, loss,
// the gradients of what is trained, and the merged weights.
#include <filesystem>
#include <set>

#include "apogee/autograd/engine.h"
#include "apogee/booster/lora/adapter_files.h"
#include "apogee/booster/pretrained.h"
#include "apogee/checkpoint/format/open_tensor_file.h"
#include "apogee/nn/losses.h"
#include "apogee/verify/cases.h"
#include "apogee/verify/hf/hf_replay.h"

namespace apogee::verify {
namespace {

namespace fs = std::filesystem;

// The recorded tolerances hold for f32. In f64 the values that are recorded in float32 must agree
// to their rounding, and those in float64 to the rounding of sums.
class PeftTolerances {
 public:
  PeftTolerances(Json recorded, DType dtype)
      : recorded_(std::move(recorded)), is_f64_(dtype == DType::kF64) {}
  Tolerances Of(const std::string& kind) const { return Rounded(recorded_.at(kind).get<double>()); }
  Tolerances Of(const std::string& kind, const std::string& name) const {
    return Rounded(recorded_.at(kind).at(name).get<double>());
  }
  Tolerances Loss() const {
    if (is_f64_) return {.atol = 1e-11, .rtol = 0};
    return Of("loss_atol");
  }
  bool is_f64() const { return is_f64_; }
  const Json& recorded() const { return recorded_; }

 private:
  Tolerances Rounded(double atol) const {
    if (is_f64_) return {.atol = 1e-10, .rtol = 6e-8};
    return {.atol = atol, .rtol = recorded_.at("rtol").get<double>()};
  }

  Json recorded_;
  bool is_f64_;
};

// PEFT has the name of the base's file in place of "base_model.model.".
void CompareMerged(nn::HfModel& hf, const HfReplay& replay, const PeftTolerances& tolerances) {
  const nn::MergedAdapter merged(*hf.module, "default");
  std::set<std::string> compared;
  for (const auto& parameter : hf.module->Parameters()) {
    const std::string name = replay.NameInFiles(*parameter);
    if (!replay.golden.contains("merged/" + name)) continue;
    compared.insert(name);
    replay.comparison.Elements(parameter->data().ToVector<double>(),
                               replay.golden.Values("merged/" + name),
                               tolerances.Of("merged_atol", name), "merged " + name);
  }
  for (const auto& [name, atol] : tolerances.recorded().at("merged_atol").items()) {
    if (!compared.contains(name)) replay.comparison.Fail("no weight " + name + " was merged");
  }
}

void CompareTrained(const nn::HfModel& hf, const AdapterConfig& adapter, const HfReplay& replay,
                    const PeftTolerances& tolerances) {
  Comparison& comparison = replay.comparison;
  std::set<const autograd::Parameter*> trained;
  for (const auto& [name, parameter] : nn::AdapterTensors(*hf.module, adapter.lora, "default")) {
    trained.insert(parameter.get());
    const std::string in_file = AdapterFileName(name);
    if (!parameter->has_grad()) {
      comparison.Fail(in_file + " has no gradient");
      continue;
    }
    const std::vector<double> grad = parameter->grad().ToVector<double>();
    comparison.Elements(grad, replay.golden.Values("grad/" + in_file),
                        tolerances.Of("grad_atol", in_file), "gradient of " + in_file);
    const std::string exact = "ref64/grad/" + in_file;
    if (!tolerances.is_f64() || !replay.golden.contains(exact)) continue;
    comparison.Elements(grad, replay.golden.Values(exact), {.atol = 1e-11, .rtol = 1e-10}, exact);
  }
  for (const auto& parameter : hf.module->Parameters()) {
    if (!trained.contains(parameter.get()) && parameter->has_grad()) {
      comparison.Fail(parameter->name() + " is frozen and has a gradient");
    }
  }
}

}  // namespace

Comparison ReplayPeft(const std::string& path, const ContextPtr& context, DType dtype) {
  const std::string folder = fs::absolute(path).parent_path().string();
  const GoldenCase golden = ValueOrThrow(GoldenCase::Open(path, folder, context, "interop-peft/"));
  Comparison comparison;
  const fs::path base = (fs::path(folder) / golden.text("base")).lexically_normal();
  HfReplay replay{folder, golden, dtype, HfTolerances(golden, dtype), comparison};
  const std::string config = (base / "config.json").string();
  const std::string json = ValueOrThrow(
      checkpoint::ReadTextFile(*checkpoint::RealFileSystem(), config, nn::kMaxHfConfigBytes));
  nn::HfModel hf = ValueOrThrow(nn::MakeHfModel(json, config));
  hf.module->Initialize(context, {.dtype = dtype});
  replay.prefix = ValueOrThrow(LoadPretrained(*hf.module, base.string())).prefix;
  const AdapterConfig adapter = ValueOrThrow(
      AddPretrainedLora(*hf.module, folder, "default", {}, checkpoint::RealFileSystem()));
  hf.module->Train(false);
  const PeftTolerances tolerances(golden.required("tolerance"), dtype);
  const Tensor logits = replay.Logits(hf);
  comparison.Elements(logits.Detach().ToVector<double>(), golden.Values("logits"),
                      tolerances.Of("logits_atol"), "logits");
  const Tensor loss = nn::CrossEntropyLoss()(logits, replay.Targets(hf));
  comparison.Number(loss.Item(), golden.Values("ref64/loss").at(0), tolerances.Loss(), "loss");
  autograd::Backward(loss);
  CompareTrained(hf, adapter, replay, tolerances);
  CompareMerged(hf, replay, tolerances);
  return comparison;
}

}  // namespace apogee::verify
