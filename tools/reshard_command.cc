// SPDX-License-Identifier: Apache-2.0

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "apogee/checkpoint/format/open_tensor_file.h"
#include "apogee/checkpoint/reshard.h"
#include "apogee/tools/command.h"
#include "apogee/tools/report_error.h"
#include "apogee/tools/tensor_store.h"

namespace apogee::tools {
namespace {

using checkpoint::RealFileSystem;

struct ReshardFlags {
  std::string from, to, config;
  int64_t num_files = 1;
  bool weights = false;
  checkpoint::SaveWeightsOptions options;
};

int Run(const ReshardFlags& flags) {
  if (!flags.weights) {
    const absl::Status status = checkpoint::ReshardCheckpoint(
        RealFileSystem(), flags.from, flags.to, {.num_files = flags.num_files});
    return status.ok() ? 0 : ReportError("reshard", status);
  }
  checkpoint::SaveWeightsOptions options = flags.options;
  if (!flags.config.empty()) {
    constexpr int64_t kMaxConfigBytes = int64_t{1} << 20;
    const auto text = checkpoint::ReadTextFile(*RealFileSystem(), flags.config, kMaxConfigBytes);
    if (!text.ok()) {
      std::cerr << "apogee reshard: --config: " << Message(text.status()) << "\n";
      return 2;
    }
    options.config_json = *text;
  }
  const absl::Status status =
      checkpoint::ExportModelWeights(RealFileSystem(), flags.from, flags.to, options);
  return status.ok() ? 0 : ReportError("reshard", status);
}

}  // namespace

void AddReshardCommand(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<ReshardFlags>();
  CLI::App* command = app.add_subcommand("reshard",
                                         "Rewrite a checkpoint with another number of files, or "
                                         "export its weights as a Hugging Face folder");
  command->add_option("in", flags->from, "A checkpoint folder")->required();
  command->add_option("out", flags->to, "The folder to create; nothing is ever overwritten")
      ->required();
  CLI::Option* weights = command->add_flag(
      "--weights", flags->weights, "Export only the model's weights, in Hugging Face format");
  command
      ->add_option("--files", flags->num_files, "Divide every tensor evenly among this many files")
      ->check(CLI::Range(int64_t{1}, checkpoint::kMaxReshardFiles))
      ->excludes(weights);
  command
      ->add_option("--size-per-shard-mb", flags->options.size_per_shard_mb,
                   "Largest size of a weights file in MiB; a larger tensor gets a file of its own")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40))
      ->needs(weights);
  command->add_option("--config", flags->config, "Copy this file to config.json")->needs(weights);
  command->footer("Exit status: 0 done, 1 the checkpoint is damaged, 2 wrong use or another error");
  command->callback([flags, &exit_code] { exit_code = Run(*flags); });
}

}  // namespace apogee::tools
