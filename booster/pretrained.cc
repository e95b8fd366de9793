// SPDX-License-Identifier: Apache-2.0

#include "apogee/booster/pretrained.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <utility>
#include <vector>

#include "apogee/booster/quantized/quantized_files.h"
#include "apogee/checkpoint/hf/hf_fit.h"
#include "apogee/core/text/text.h"

namespace apogee {
namespace {

using autograd::ParameterPtr;
using checkpoint::HfWeights;
using checkpoint::LoadReport;
using internal::Concat;

std::vector<ParameterPtr> TensorsOf(const nn::Module& model) {
  std::vector<ParameterPtr> tensors = model.Parameters();
  const std::vector<ParameterPtr> buffers = model.Buffers();
  tensors.insert(tensors.end(), buffers.begin(), buffers.end());
  return tensors;
}

absl::StatusOr<Tensor> ReadWhole(const HfWeights& weights, const std::string& name,
                                 const Shape& shape, DType dtype, const ContextPtr& context) {
  Tensor value = Tensor::Empty(shape, dtype, context, MemoryCategory::kParameter);
  APOGEE_RETURN_IF_ERROR(weights.Read(name, Layout(shape), value));
  return value;
}

// Gives the tensor the value that the files have under this name, now or when it is read.
absl::Status Fill(const std::shared_ptr<const HfWeights>& weights, const std::string& name,
                  bool lazily, autograd::Parameter& tensor) {
  if (!tensor.is_lazy()) return weights->Read(name, Layout(tensor.shape()), tensor.data());
  const auto read = [weights, name, shape = tensor.shape(), dtype = tensor.dtype(),
                     context = tensor.context()] {
    return ReadWhole(*weights, name, shape, dtype, context);
  };
  if (lazily) {
    tensor.set_lazy_value(
        {tensor.dtype(), tensor.context(), [read] { return ValueOrThrow(read()); }});
    return absl::OkStatus();
  }
  APOGEE_ASSIGN_OR_RETURN(const Tensor value, read());
  tensor.set_value(value);
  return absl::OkStatus();
}

// `lazily`: values that are lazy stay so. Else none is afterwards.
absl::StatusOr<LoadReport> Load(nn::Module& model, const std::string& dir,
                                const PretrainedOptions& options, bool lazily) {
  for (const ParameterPtr& tensor : TensorsOf(model)) {
    APOGEE_CHECK(tensor->has_value(), "LoadPretrained: parameter \"", tensor->name(),
                 "\" has no value; call Initialize or InitializeLazily first");
  }
  APOGEE_CHECK(model.QuantizedWeights().empty(),
               "LoadPretrained: the model's weights are quantized, and have no place for others; "
               "load before enable_lora");
  APOGEE_ASSIGN_OR_RETURN(HfWeights opened, HfWeights::Open(options.files, dir));
  APOGEE_ASSIGN_OR_RETURN(const std::vector<WeightInCodes> in_codes, FindCodes(model, opened, dir));
  std::vector<ParameterPtr> tensors = TensorsOf(model);
  for (const WeightInCodes& found : in_codes) std::erase(tensors, found.weight);
  std::vector<checkpoint::HfTarget> targets;
  for (const ParameterPtr& tensor : tensors) {
    targets.push_back({tensor->name(), tensor->shape(), tensor->dtype()});
  }
  const auto weights = std::make_shared<const HfWeights>(std::move(opened));
  APOGEE_ASSIGN_OR_RETURN(checkpoint::HfFit fit,
                          checkpoint::FitWeights(*weights, targets,
                                                 {.strict = options.strict,
                                                  .model_prefix = options.model_prefix,
                                                  .file_prefix = options.file_prefix},
                                                 dir));
  TakeCodes(in_codes);
  for (const ParameterPtr& tensor : tensors) {
    const std::string name = fit.names.InFiles(tensor->name());
    if (weights->tensors().contains(name)) {
      APOGEE_RETURN_IF_ERROR(Fill(weights, name, lazily, *tensor));
    } else if (!lazily) {
      tensor->data();
    }
  }
  return std::move(fit.report);
}

// What the files hold, by the first part of the names: "bert.* (38 tensors), classifier.weight".
std::string Contents(const HfWeights& weights) {
  std::map<std::string, std::vector<std::string>> parts;
  for (const auto& [name, place] : weights.tensors()) {
    parts[name.substr(0, name.find('.'))].push_back(name);
  }
  std::vector<std::string> texts;
  for (const auto& [part, names] : parts) {
    texts.push_back(names.size() == 1 ? names[0] : Concat(part, ".* (", names.size(), " tensors)"));
  }
  constexpr size_t kShown = 12;
  const size_t more = texts.size() - std::min(kShown, texts.size());
  texts.resize(texts.size() - more);
  return JoinTexts(texts, ", ") + (more > 0 ? Concat(" and ", more, " more") : "");
}

// For a config that names another head: adds what the weights hold, which tells the head.
absl::Status WithContents(const absl::Status& status, const std::string& dir,
                          const PretrainedOptions& options) {
  if (Message(status).find("\"architectures\"") == std::string::npos) return status;
  const absl::StatusOr<HfWeights> weights = HfWeights::Open(options.files, dir);
  if (!weights.ok()) return status;
  return InvalidArgument(Message(status), "; the weights there are ", Contents(*weights));
}

// One sentence about tensors that do not match; "" if all do.
std::string Differences(const LoadReport& report) {
  std::vector<std::string> texts;
  if (!report.missing.empty()) {
    texts.push_back(Concat(report.missing.size(), " tensors are missing, which keep their first ",
                           "values (\"", report.missing[0], "\" is one)"));
  }
  if (!report.unexpected.empty()) {
    texts.push_back(Concat(report.unexpected.size(), " tensors are not used (\"",
                           report.unexpected[0], "\" is one)"));
  }
  return JoinTexts(texts);
}

void Tell(const PretrainedOptions& options, const std::string& text) {
  if (options.notice) return options.notice(text);
  std::fprintf(stderr, "%s\n", text.c_str());
}

}  // namespace

absl::StatusOr<nn::HfModel> LoadPretrained(const std::string& dir, const ContextPtr& context,
                                           const PretrainedOptions& options) {
  APOGEE_CHECK(options.model_prefix.empty(),
               "LoadPretrained: model_prefix is for weights into a model of your own; the model "
               "that is made here has the names of the files");
  const std::string path = checkpoint::JoinPath(dir, "config.json");
  APOGEE_ASSIGN_OR_RETURN(const std::string json,
                          checkpoint::ReadTextFile(*options.files, path, nn::kMaxHfConfigBytes));
  absl::StatusOr<nn::HfModel> hf = nn::MakeHfModel(json, path, options.notice);
  if (!hf.ok()) return WithContents(hf.status(), dir, options);
  hf->module->InitializeLazily(context, {.dtype = options.dtype});
  APOGEE_ASSIGN_OR_RETURN(const LoadReport report, Load(*hf->module, dir, options, options.lazy));
  const std::string differences = Differences(report);
  if (!differences.empty()) Tell(options, dir + ": " + differences);
  return hf;
}

absl::StatusOr<LoadReport> LoadPretrained(nn::Module& model, const std::string& dir,
                                          const PretrainedOptions& options) {
  APOGEE_CHECK(!options.lazy && options.dtype == PretrainedOptions().dtype,
               "LoadPretrained: a model of your own keeps its dtype, and values that are lazy stay "
               "so; leave out the options dtype and lazy, and call Initialize or InitializeLazily "
               "with what you want");
  APOGEE_CHECK(!model.is_closed(),
               "LoadPretrained: the model has been boosted, so its values are "
               "in the plugin's hands, and the optimizer may have master weights of them; call "
               "booster.load_model(\"",
               dir, "\") instead, which fills both");
  return Load(model, dir, options, /*lazily=*/true);
}

}  // namespace apogee
