// SPDX-License-Identifier: Apache-2.0

#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apogee/checkpoint/files/file_system.h"
#include "apogee/checkpoint/files/folder.h"
#include "apogee/core/process/thread_team.h"
#include "apogee/core/text/text.h"
#include "apogee/nn/models/hf_config.h"
#include "apogee/plan/plan.h"
#include "apogee/tools/command.h"
#include "apogee/tools/report_error.h"

namespace apogee::tools {
namespace {

struct PlanFlags {
  std::string model;
  std::vector<std::string> fields;  // KEY=VALUE of the config
  std::string memory;
  std::string precision = "f32";
  std::vector<std::string> optimizer_options;
  plan::TrainingSetup setup;
  plan::PlanOptions options;
  bool json = false;
};

// "80GiB", "24GB", "1.5 TiB" or a number of bytes.
absl::StatusOr<int64_t> ParseMemory(const std::string& text) {
  static const std::map<std::string, double> kUnits = {{"", 1},
                                                       {"B", 1},
                                                       {"KB", 1e3},
                                                       {"MB", 1e6},
                                                       {"GB", 1e9},
                                                       {"TB", 1e12},
                                                       {"KiB", 1024.0},
                                                       {"MiB", 1048576.0},
                                                       {"GiB", 1.0 * (1 << 30)},
                                                       {"TiB", 1024.0 * (1 << 30)}};
  const size_t end = text.find_first_not_of("0123456789.");
  const std::string number = text.substr(0, end);
  std::string unit = end == std::string::npos ? "" : text.substr(end);
  unit.erase(0, unit.find_first_not_of(' '));
  const auto found = kUnits.find(unit);
  double value = 0;
  try {
    size_t used = 0;
    value = number.empty() ? 0 : std::stod(number, &used);
    if (used != number.size()) value = 0;
  } catch (const std::exception&) {
    value = 0;
  }
  const double bytes = found == kUnits.end() ? 0 : value * found->second;
  if (!(bytes >= 1 && bytes <= 1e18)) {
    return InvalidArgument("--memory is \"", text,
                           "\"; it must be a size above 0 such as 80GiB, 24GB or 512MiB");
  }
  return static_cast<int64_t>(bytes);
}

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
  APOGEE_ASSIGN_OR_RETURN(plan::TrainingSetup setup, plan::SetupOfConfig(json, path));
  setup.model = flags.model;
  setup.batch = flags.setup.batch;
  setup.accumulate = flags.setup.accumulate;
  setup.tokens = flags.setup.tokens;
  if (setup.tokens == 0) setup.tokens = std::min<int64_t>(setup.max_tokens, 2048);
  setup.recompute = flags.setup.recompute;
  setup.optimizer = flags.setup.optimizer;
  setup.training.max_norm = flags.setup.training.max_norm;
  APOGEE_ASSIGN_OR_RETURN(setup.training.precision, ParsePrecision(flags.precision));
  for (const std::string& word : flags.optimizer_options) {
    APOGEE_ASSIGN_OR_RETURN(const auto option, Split("--optim", word));
    setup.optimizer_options.insert(option);
  }
  return setup;
}

absl::Status Show(const PlanFlags& flags) {
  plan::PlanOptions options = flags.options;
  if (!flags.memory.empty()) {
    APOGEE_ASSIGN_OR_RETURN(options.device_bytes, ParseMemory(flags.memory));
  }
  APOGEE_ASSIGN_OR_RETURN(const plan::TrainingSetup setup, SetupOf(flags));
  APOGEE_ASSIGN_OR_RETURN(const plan::PlanReport report, plan::Plan(setup, options));
  std::cout << (flags.json ? plan::JsonOf(report) : plan::TableOf(report));
  return absl::OkStatus();
}

int Run(const PlanFlags& flags) {
  const absl::Status status = Show(flags);
  return status.ok() ? 0 : ReportError("plan", status);
}

}  // namespace

void AddPlanCommand(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<PlanFlags>();
  flags->setup.tokens = 0;
  CLI::App* command = app.add_subcommand(
      "plan", "Show which plugins fit a model, and the memory and traffic of each");
  std::string known;
  for (const std::string& name : plan::KnownModels()) known += (known.empty() ? "" : ", ") + name;
  command
      ->add_option("model", flags->model,
                   "A config.json of a Hugging Face folder, the folder, or one of " + known)
      ->required();
  command->add_option("--set", flags->fields, "Fields of the config to replace, as KEY=VALUE");
  command->add_option("--ranks", flags->options.num_ranks, "Number of ranks")
      ->check(CLI::Range(1, plan::kMaxRanks));
  command->add_option("--memory", flags->memory, "Memory for each rank, such as 80GiB");
  command->add_option("--precision", flags->precision, "f32, bf16, fp16 or f64")
      ->check([](const std::string& text) { return Message(ParsePrecision(text).status()); });
  const auto count = [&](const char* flag, int64_t& value, const char* help) {
    command->add_option(flag, value, help)->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  };
  count("--batch", flags->setup.batch, "Samples of a step, of all ranks together");
  count("--tokens", flags->setup.tokens,
        "Tokens of a sample; default: as many as the model takes, at most 2048");
  count("--accumulate", flags->setup.accumulate, "Micro-batches of a step");
  command->add_option("--optimizer", flags->setup.optimizer, "Optimizer, as for the programs");
  command->add_option("--optim", flags->optimizer_options, "Its options, as KEY=VALUE");
  command->add_option("--max-norm", flags->setup.training.max_norm, "Clip gradients to this norm")
      ->check(CLI::NonNegativeNumber);
  command->add_flag("--recompute", flags->setup.recompute,
                    "Recompute the activations of layers in backward");
  command->add_option("--threads", flags->options.threads_per_rank, "CPU threads of a rank")
      ->check(CLI::Range(1, kMaxThreads));
  command->add_option("--only", flags->options.only,
                      "Only plugins and meshes with this text in their name");
  command->add_flag("--measure", flags->options.measure,
                    "Also train the steps for real here, with threads as ranks, and compare");
  command->add_flag("--json", flags->json, "Print JSON");
  command->footer(
      "Each row is a dry run of two training steps: the code of a real run, without the loops of "
      "kernels and without memory for large tensors. The figures are those of ranks on CPUs. Exit "
      "status: 0 done, 1 a damaged config, 2 wrong use or another error.");
  command->callback([flags, &exit_code] { exit_code = Run(*flags); });
}

}  // namespace apogee::tools
