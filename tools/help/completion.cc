// SPDX-License-Identifier: Apache-2.0

#include "apogee/tools/help/completion.h"

#include <algorithm>

#include "apogee/core/status.h"

namespace apogee::tools {
namespace {

// The words that may follow those of the command: subcommands and flags.
std::string WordsAfter(const CommandInfo& command) {
  std::string words;
  for (const std::string& subcommand : command.subcommands) words += subcommand + " ";
  for (const OptionInfo& option : command.options) {
    for (const std::string& flag : option.flags) words += flag + " ";
  }
  if (!words.empty()) words.pop_back();
  return words;
}

// Where nothing fits, the shell's own completion of files follows.
std::string Bash(const std::vector<CommandInfo>& commands) {
  std::string known, words;
  for (const CommandInfo& command : commands) {
    words += "    \"" + command.words + "\") words=\"" + WordsAfter(command) + "\" ;;\n";
    if (!command.words.empty()) {
      known += (known.empty() ? "" : " | ") + ("\"" + command.words + "\"");
    }
  }
  return "_apogee() {\n"
         "  local command=\"\" longer words=\"\" i\n"
         "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
         "    longer=\"${command:+$command }${COMP_WORDS[i]}\"\n"
         "    case \"$longer\" in\n"
         "      " +
         known +
         ") command=\"$longer\" ;;\n"
         "    esac\n"
         "  done\n"
         "  case \"$command\" in\n" +
         words +
         "  esac\n"
         "  COMPREPLY=($(compgen -W \"$words\" -- \"${COMP_WORDS[COMP_CWORD]}\"))\n"
         "}\n"
         "complete -o default -F _apogee apogee\n";
}

// In single quotes of fish, where only \ and ' are special.
std::string Quoted(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) {
    if (c == '\\' || c == '\'') quoted += '\\';
    quoted += c;
  }
  return quoted + "'";
}

// The file is also a function that zsh loads at the first completion, and that then completes.
std::string Zsh(const std::vector<CommandInfo>& commands) {
  return "#compdef apogee\n"
         "autoload -U +X bashcompinit && bashcompinit\n" +
         Bash(commands) +
         "if [[ \"${funcstack[1]}\" == _apogee ]]; then _bash_complete -o default -F _apogee; fi\n";
}

// A name may be a command of the program and of another command, as inspect and data inspect are.
// So a function finds the command of the words so far, and each line compares all of it.
std::string Fish(const std::vector<CommandInfo>& commands) {
  std::string script = "function __apogee_command\n  set -l known";
  for (const CommandInfo& command : commands) {
    if (!command.words.empty()) script += " " + Quoted(command.words);
  }
  script +=
      "\n"
      "  set -l words (commandline -opc)\n"
      "  set -e words[1]\n"
      "  set -l found ''\n"
      "  for word in $words\n"
      "    set -l longer (string trim -- \"$found $word\")\n"
      "    if contains -- \"$longer\" $known\n"
      "      set found $longer\n"
      "    end\n"
      "  end\n"
      "  test \"$found\" = \"$argv\"\n"
      "end\n";
  const auto help_of = [&](const std::string& words) {
    return std::ranges::find(commands, words, &CommandInfo::words)->help;
  };
  for (const CommandInfo& command : commands) {
    const std::string line = "complete -c apogee -n '__apogee_command" +
                             (command.words.empty() ? command.words : " " + command.words) + "'";
    for (const std::string& subcommand : command.subcommands) {
      const std::string words = (command.words.empty() ? "" : command.words + " ") + subcommand;
      script += line + " -f -a " + subcommand + " -d " + Quoted(help_of(words)) + "\n";
    }
    for (const OptionInfo& option : command.options) {
      if (option.flags.empty()) continue;
      script += line;
      for (const std::string& flag : option.flags) {
        script += flag.starts_with("--") ? " -l " + flag.substr(2) : " -s " + flag.substr(1);
      }
      script += (option.value.empty() ? "" : " -r") + (" -d " + Quoted(option.help)) + "\n";
    }
  }
  return script;
}

}  // namespace

absl::StatusOr<std::string> CompletionScript(const std::vector<CommandInfo>& commands,
                                             const std::string& shell) {
  if (shell == "bash") return Bash(commands);
  if (shell == "zsh") return Zsh(commands);
  if (shell == "fish") return Fish(commands);
  return InvalidArgument("no completion for the shell \"", shell, "\"; known: bash, fish, zsh");
}

}  // namespace apogee::tools
