// SPDX-License-Identifier: Apache-2.0

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iomanip>
#include <iostream>
#include <memory>
#include <string>

#include "apogee/optim/registry.h"
#include "apogee/tools/command.h"

namespace apogee::tools {
namespace {

absl::Status Print(const std::string& optimizer) {
  APOGEE_ASSIGN_OR_RETURN(const optim::OptionMap defaults,
                          optim::BuiltInOptimizers().Defaults(optimizer));
  APOGEE_ASSIGN_OR_RETURN(const optim::OptionMap help, optim::BuiltInOptimizers().Help(optimizer));
  size_t widths[2] = {0, 0};
  for (const auto& [name, value] : defaults) {
    widths[0] = std::max(widths[0], name.size());
    widths[1] = std::max(widths[1], value.size());
  }
  for (const auto& [name, value] : defaults) {
    std::cout << std::left << std::setw(static_cast<int>(widths[0]) + 2) << name
              << std::setw(static_cast<int>(widths[1]) + 2) << value << help.at(name) << "\n";
  }
  return absl::OkStatus();
}

}  // namespace

void AddOptionsCommand(CLI::App& app, int& exit_code) {
  auto optimizer = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand(
      "options", "The options of an optimizer with their defaults; without a name, all optimizers");
  command->add_option("optimizer", *optimizer, "Its name in the registry, for example adamw");
  command->callback([optimizer, &exit_code] {
    if (optimizer->empty()) {
      for (const std::string& name : optim::OptimizerNames()) std::cout << name << "\n";
      return;
    }
    const absl::Status status = Print(*optimizer);
    if (status.ok()) return;
    std::cerr << "apogee: " << Message(status) << "\n";
    exit_code = 2;
  });
}

}  // namespace apogee::tools
