// SPDX-License-Identifier: Apache-2.0

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "apogee/core/status.h"
#include "apogee/core/text/text.h"
#include "apogee/tools/command.h"
#include "apogee/tools/help/command_tree.h"
#include "apogee/tools/help/man_page.h"
#include "apogee/tools/report_error.h"

namespace apogee::tools {
namespace {

absl::StatusOr<std::string> PageOf(const CLI::App& app, const std::vector<std::string>& words) {
  const std::string command = JoinTexts(words, " ");
  const std::vector<CommandInfo> commands = CommandTree(app);
  const auto found = std::ranges::find(commands, command, &CommandInfo::words);
  if (found != commands.end()) return ManPage(*found, APOGEE_VERSION);
  return NotFound("there is no command \"", command, "\"; apogee --help lists them");
}

}  // namespace

void AddManCommand(CLI::App& app, int& exit_code) {
  auto words = std::make_shared<std::vector<std::string>>();
  CLI::App* command = app.add_subcommand("man", "Print the man page of a command, or of apogee");
  command->add_option("command", *words, "Its words, for example data tokenize");
  command->callback([&app, words, &exit_code] {
    const auto page = PageOf(app, *words);
    if (!page.ok()) {
      exit_code = ReportError("man", page.status());
      return;
    }
    std::cout << *page;
  });
}

}  // namespace apogee::tools
