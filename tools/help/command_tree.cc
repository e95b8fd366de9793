// SPDX-License-Identifier: Apache-2.0

#include "apogee/tools/help/command_tree.h"

#include <CLI/CLI.hpp>
#include <memory>

#include "apogee/tools/help/examples.h"

namespace apogee::tools {
namespace {

// "data tokenize" for that subcommand, "" for the program.
std::string WordsOf(const CLI::App& command) {
  if (command.get_parent() == nullptr) return "";
  const std::string before = WordsOf(*command.get_parent());
  return (before.empty() ? "" : before + " ") + command.get_name();
}

class ExamplesFirst : public CLI::Formatter {
 public:
  ExamplesFirst() { column_width(kColumns); }
  std::string make_description(const CLI::App* command) const override {
    std::string text = CLI::Formatter::make_description(command);
    for (const std::string& example : ExamplesOf(WordsOf(*command))) text += "  " + example + "\n";
    return text;
  }

 private:
  static constexpr size_t kColumns = 30;  // of a flag, before its text
};

OptionInfo InfoOf(const CLI::Option& option) {
  OptionInfo info{.flags = {},
                  .name = option.get_name(/*positional=*/true),
                  .value = option.get_type_name(),
                  .help = option.get_description(),
                  .group = option.get_group(),
                  .required = option.get_required()};
  for (const std::string& name : option.get_snames()) info.flags.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) info.flags.push_back("--" + name);
  return info;
}

void Add(const CLI::App& command, std::vector<CommandInfo>& commands) {
  CommandInfo info{.words = WordsOf(command),
                   .help = command.get_description(),
                   .footer = command.get_footer(),
                   .options = {},
                   .subcommands = {}};
  for (const CLI::Option* option : command.get_options()) info.options.push_back(InfoOf(*option));
  const auto all = [](const CLI::App* /*subcommand*/) { return true; };
  const std::vector<const CLI::App*> subcommands = command.get_subcommands(all);
  for (const CLI::App* subcommand : subcommands) {
    info.subcommands.push_back(subcommand->get_name());
  }
  commands.push_back(std::move(info));
  for (const CLI::App* subcommand : subcommands) Add(*subcommand, commands);
}

}  // namespace

std::vector<CommandInfo> CommandTree(const CLI::App& app) {
  std::vector<CommandInfo> commands;
  Add(app, commands);
  return commands;
}

void ShowExamples(CLI::App& app) { app.formatter(std::make_shared<ExamplesFirst>()); }

}  // namespace apogee::tools
