// SPDX-License-Identifier: Apache-2.0

#include "apogee/tools/help/man_page.h"

#include "apogee/tools/help/examples.h"

namespace apogee::tools {
namespace {

// Text as itself: man(7) reads \ anywhere, - as a hyphen, and . and ' at the start of a line.
std::string Escaped(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if ((c == '.' || c == '\'') && (escaped.empty() || escaped.back() == '\n')) escaped += "\\&";
    if (c == '\\') {
      escaped += "\\e";
    } else if (c == '-') {
      escaped += "\\-";
    } else {
      escaped += c;
    }
  }
  return escaped;
}

std::string Joined(const std::string& words) {
  std::string name = "apogee";
  if (!words.empty()) name += " " + words;
  for (char& c : name) c = c == ' ' ? '-' : c;
  return name;
}

std::string TermOf(const OptionInfo& option) {
  std::string term;
  for (const std::string& flag : option.flags) {
    term += (term.empty() ? "\\fB" : ", \\fB") + Escaped(flag) + "\\fR";
  }
  if (option.flags.empty()) term = "\\fI" + Escaped(option.name) + "\\fR";
  if (!option.flags.empty() && !option.value.empty()) {
    term += " \\fI" + Escaped(option.value) + "\\fR";
  }
  return ".TP\n" + term + (option.required ? " (required)" : "") + "\n" + Escaped(option.help) +
         "\n";
}

}  // namespace

std::string ManPage(const CommandInfo& command, const std::string& version) {
  const std::string name = Joined(command.words);
  std::string page = ".TH " + name + " 1 \"\" \"apogee " + version + "\" \"User Commands\"\n";
  page += ".ad l\n";  // long lists of choices cannot be justified
  page += ".SH NAME\n" + Escaped(name) + " \\- " + Escaped(command.help) + "\n";
  page += ".SH SYNOPSIS\n\\fBapogee " + Escaped(command.words) + "\\fR [options]";
  for (const OptionInfo& option : command.options) {
    if (option.flags.empty()) page += " \\fI" + Escaped(option.name) + "\\fR";
  }
  page += command.subcommands.empty() ? "\n" : " \\fIcommand\\fR\n";
  if (const auto examples = ExamplesOf(command.words); !examples.empty()) {
    page += ".SH EXAMPLES\n.nf\n";
    for (const std::string& example : examples) page += Escaped(example) + "\n";
    page += ".fi\n";
  }
  if (!command.subcommands.empty()) {
    page += ".SH COMMANDS\n";
    for (const std::string& subcommand : command.subcommands) {
      page += ".TP\n\\fB" + Escaped(subcommand) + "\\fR\n" +
              Escaped(Joined(command.words + (command.words.empty() ? "" : " ") + subcommand)) +
              "(1)\n";
    }
  }
  page += ".SH OPTIONS\n";
  std::string group = "Options";
  for (const OptionInfo& option : command.options) {
    if (option.group != group && !option.group.empty() && !option.flags.empty()) {
      group = option.group;
      page += ".SS " + Escaped(group) + "\n";
    }
    page += TermOf(option);
  }
  if (!command.footer.empty()) page += ".SH NOTES\n" + Escaped(command.footer) + "\n";
  return page;
}

}  // namespace apogee::tools
