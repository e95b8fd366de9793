// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "apogee/checkpoint/files/file_system.h"
#include "apogee/checkpoint/files/folder.h"
#include "apogee/checkpoint/format/open_tensor_file.h"
#include "apogee/nn/models/hf_config.h"
#include "apogee/tools/plan/flags.h"

namespace apogee::tools {
namespace {

absl::StatusOr<std::pair<std::string, std::string>> Split(const std::string& flag,
                                                          const std::string& word) {
  const size_t at = word.find('=');
  if (at == 0 || at == std::string::npos) {
    return InvalidArgument(flag, " takes KEY=VALUE, got \"", word, "\"");
  }
  return std::pair(word.substr(0, at), word.substr(at + 1));
}

// The text of a config.json with some fields replaced.
absl::StatusOr<std::string> WithFields(const std::string& json, const PlanFlags& flags) {
  if (flags.fields.empty()) return json;
  nlohmann::json config = nlohmann::json::parse(json);
  for (const std::string& word : flags.fields) {
    APOGEE_ASSIGN_OR_RETURN(const auto field, Split("--set", word));
    nlohmann::json value = nlohmann::json::parse(field.second, nullptr, false);
    config[field.first] = value.is_discarded() ? nlohmann::json(field.second) : value;
  }
  return config.dump();
}

}  // namespace

absl::StatusOr<plan::TrainingSetup> SetupOf(const PlanFlags& flags) {
  std::error_code error;
  std::string path = flags.model;
  if (std::filesystem::is_directory(path, error)) path += "/config.json";
  std::string json;
  if (std::filesystem::exists(path, error)) {
    APOGEE_ASSIGN_OR_RETURN(
        json, checkpoint::ReadTextFile(*checkpoint::RealFileSystem(), path, nn::kMaxHfConfigBytes));
    // Checks the text before it becomes a document.
    APOGEE_RETURN_IF_ERROR(plan::SetupOfConfig(json, path).status());
  } else {
    if (path.find('/') != std::string::npos) {
      return NotFound(path, ": there is no such file or folder");
    }
    APOGEE_ASSIGN_OR_RETURN(json, plan::ConfigOf(path));
  }
  APOGEE_ASSIGN_OR_RETURN(json, WithFields(json, flags));
  APOGEE_ASSIGN_OR_RETURN(plan::TrainingSetup setup,
                          plan::SetupOfConfig(json, path, flags.model_options));
  if (flags.setup.recompute && flags.model_options.recompute_activations) {
    return InvalidArgument(
        "--recompute computes whole layers again, so --recompute-activations has no effect; give "
        "one of the two");
  }
  setup.model = flags.model;
  setup.batch = flags.setup.batch;
  setup.accumulate = flags.setup.accumulate;
  setup.tokens = flags.setup.tokens;
  if (setup.tokens == 0) setup.tokens = std::min<int64_t>(setup.max_tokens, 2048);
  setup.recompute = flags.setup.recompute;
  setup.optimizer = flags.setup.optimizer;
  setup.training.max_norm = flags.setup.training.max_norm;
  APOGEE_ASSIGN_OR_RETURN(const auto quantize, nn::ParseQuantize(flags.quantize));
  if (quantize && flags.lora_rank == 0) {
    return InvalidArgument(
        "--quantize: a model in few bits is not trained itself; give --lora-rank, too");
  }
  if (flags.lora_rank > 0) {
    setup.lora = nn::LoraOptions{.rank = flags.lora_rank,
                                 .alpha = 2 * static_cast<double>(flags.lora_rank),
                                 .targets = flags.lora_targets,
                                 .quantize = quantize};
    const auto fits = ErrorToStatus([&] {
      nn::PlannedTensors(*setup.make_model(false), *setup.lora);
      return true;
    });
    APOGEE_RETURN_IF_ERROR(fits.status());
  }
  APOGEE_ASSIGN_OR_RETURN(setup.training.precision, ParsePrecision(flags.precision));
  for (const std::string& word : flags.optimizer_options) {
    APOGEE_ASSIGN_OR_RETURN(const auto option, Split("--optim", word));
    setup.optimizer_options.insert(option);
  }
  return setup;
}

}  // namespace apogee::tools
