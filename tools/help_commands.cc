// SPDX-License-Identifier: Apache-2.0

// `apogee completion` and `apogee man`: what the parser knows, for shells and readers.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "apogee/core/error.h"
#include "apogee/tools/command.h"
#include "apogee/tools/help/command_tree.h"
#include "apogee/tools/help/completion.h"
#include "apogee/tools/help/man_page.h"
#include "apogee/tools/report_error.h"

namespace apogee::tools {
namespace {

constexpr const char* kVersion = APOGEE_VERSION;

absl::StatusOr<std::string> PageOf(const CLI::App& app, const std::vector<std::string>& words) {
  std::string command;
  for (const std::string& word : words) command += (command.empty() ? "" : " ") + word;
  const std::vector<CommandInfo> commands = CommandTree(app);
  const auto found = std::ranges::find(commands, command, &CommandInfo::words);
  if (found != commands.end()) return ManPage(*found, kVersion);
  return absl::NotFoundError(
      internal::Concat("there is no command \"", command, "\"; apogee --help lists them"));
}

int Print(const char* command, const absl::StatusOr<std::string>& text) {
  if (!text.ok()) return ReportError(command, text.status());
  std::cout << *text;
  return 0;
}

}  // namespace

void AddHelpCommands(CLI::App& app, int& exit_code) {
  auto shell = std::make_shared<std::string>();
  CLI::App* completion = app.add_subcommand(
      "completion", "Print a script with which a shell completes commands and flags");
  completion->add_option("shell", *shell, "bash, zsh or fish")->required();
  completion->callback([&app, shell, &exit_code] {
    exit_code = Print("completion", CompletionScript(CommandTree(app), *shell));
  });

  auto words = std::make_shared<std::vector<std::string>>();
  CLI::App* man = app.add_subcommand("man", "Print the man page of a command, or of apogee");
  man->add_option("command", *words, "Its words, for example data tokenize");
  man->callback([&app, words, &exit_code] { exit_code = Print("man", PageOf(app, *words)); });
}

}  // namespace apogee::tools
