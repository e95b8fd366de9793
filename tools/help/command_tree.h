// SPDX-License-Identifier: Apache-2.0

// The commands and flags of the parser, as data: for --help, completion and man pages.
//
//   for (const CommandInfo& command : CommandTree(app)) ...   // the program itself comes first
#ifndef APOGEE_TOOLS_HELP_COMMAND_TREE_H_
#define APOGEE_TOOLS_HELP_COMMAND_TREE_H_

#include <string>
#include <vector>

namespace CLI {
class App;
}  // namespace CLI

namespace apogee::tools {

struct OptionInfo {
  std::vector<std::string> flags;  // "-n", "--ranks"; empty for a positional
  std::string name;                // of a positional
  std::string value;               // what a value looks like, "TEXT"; empty for a switch
  std::string help, group;
  bool required = false;
};

struct CommandInfo {
  std::string words;  // "data tokenize"; empty for the program
  std::string help, footer;
  std::vector<OptionInfo> options;
  std::vector<std::string> subcommands;  // the last words
};

std::vector<CommandInfo> CommandTree(const CLI::App& app);

// Puts each command's examples before its usage.
void ShowExamples(CLI::App& app);

}  // namespace apogee::tools

#endif  // APOGEE_TOOLS_HELP_COMMAND_TREE_H_
