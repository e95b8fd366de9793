// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/configured.h"

#include <algorithm>
#include <charconv>

namespace apogee::nn {

std::string ConfigText(int64_t value) { return std::to_string(value); }

std::string ConfigText(double value) {
  char text[40];
  return {text, std::to_chars(text, text + sizeof(text), value).ptr};
}

std::string ConfigText(bool value) { return value ? "true" : "false"; }

std::string ConfigText(Activation value) {
  switch (value) {
    case Activation::kRelu:
      return "relu";
    case Activation::kGelu:
      return "gelu";
    case Activation::kGeluTanh:
      return "gelu_tanh";
    case Activation::kSilu:
      return "silu";
    case Activation::kTanh:
      return "tanh";
    case Activation::kSigmoid:
      return "sigmoid";
  }
  return "unknown";
}

std::string ConfigText(const std::vector<int64_t>& value) {
  std::string text;
  for (const int64_t one : value) text += internal::Concat(text.empty() ? "" : ",", one);
  return text;
}

ConfigTexts ConfigOf(Module& model) {
  ConfigTexts all;
  std::vector<std::string> complete;  // prefixes of modules whose texts are complete
  for (const auto& [name, module] : model.NamedModules()) {
    const auto* configured = dynamic_cast<const Configured*>(module);
    if (configured == nullptr) continue;
    const auto holds = [&name](const std::string& prefix) { return name.starts_with(prefix); };
    if (std::ranges::any_of(complete, holds)) continue;
    const std::string prefix = name.empty() ? "" : name + ".";
    ConfigTexts texts;
    configured->DescribeConfig(texts);
    for (const auto& [key, text] : texts.function) all.function[prefix + key] = text;
    for (const auto& [key, text] : texts.training) all.training[prefix + key] = text;
    if (texts.complete) complete.push_back(prefix);
  }
  return all;
}

}  // namespace apogee::nn
