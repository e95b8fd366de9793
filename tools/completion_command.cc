// SPDX-License-Identifier: Apache-2.0

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <string>

#include "apogee/tools/command.h"
#include "apogee/tools/help/command_tree.h"
#include "apogee/tools/help/completion.h"
#include "apogee/tools/report_error.h"

namespace apogee::tools {

void AddCompletionCommand(CLI::App& app, int& exit_code) {
  auto shell = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand(
      "completion", "Print a script with which a shell completes commands and flags");
  command->add_option("shell", *shell, "bash, zsh or fish")->required();
  command->callback([&app, shell, &exit_code] {
    const auto script = CompletionScript(CommandTree(app), *shell);
    if (!script.ok()) {
      exit_code = ReportError("completion", script.status());
      return;
    }
    std::cout << *script;
  });
}

}  // namespace apogee::tools
