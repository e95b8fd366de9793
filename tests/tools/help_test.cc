// SPDX-License-Identifier: Apache-2.0

// --help, completion and man pages of the apogee command. Real shells and groff read them.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "apogee/tests/support/files/temp_dir.h"
#include "apogee/tests/support/tool_command.h"

namespace apogee::tools {
namespace help_test {

using apogee::testing::Command;
using apogee::testing::CommandResult;
using apogee::testing::TempDir;
using ::testing::HasSubstr;

std::vector<std::string> LinesAfter(const std::string& text, const std::string& heading) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  bool begun = false;
  for (std::string line; std::getline(stream, line);) {
    if (begun && !line.empty()) lines.push_back(line);
    begun = begun || line == heading;
  }
  return lines;
}

std::vector<std::string> Subcommands(const std::string& command) {
  std::vector<std::string> names;
  for (const std::string& line : LinesAfter(Command(command + " --help").out, "Subcommands:")) {
    std::string name;
    std::istringstream(line) >> name;
    if (line.starts_with("  ") && line[2] != ' ') names.push_back(name);
  }
  return names;
}

std::vector<std::string> AllCommands() {
  std::vector<std::string> all;
  for (const std::string& name : Subcommands("")) {
    all.push_back(name);
    if (name != "data") continue;
    for (const std::string& part : Subcommands("data")) all.push_back("data " + part);
  }
  return all;
}

std::string Shell(const std::string& shell, const std::string& script) {
  const TempDir dir;
  std::ofstream(dir / "script") << script;
  FILE* pipe = popen((shell + " " + (dir / "script") + " 2>&1").c_str(), "r");
  std::string out;
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) out += static_cast<char>(c);
  pclose(pipe);
  return out;
}

TEST(HelpTest, AnExampleWithFlagsThatExistComesFirst) {
  const std::vector<std::string> commands = AllCommands();
  ASSERT_GE(commands.size(), 20u);
  for (const std::string& command : commands) {
    const std::string help = Command(command + " --help").out;
    const size_t example = help.find("\n  apogee "), usage = help.find("\nUsage: ");
    if (command != "completion") {  // source <(apogee completion bash)
      ASSERT_NE(example, std::string::npos) << command << "\n" << help;
      EXPECT_LT(example, usage) << command;
    }
    std::istringstream words(help.substr(0, usage));
    for (std::string word; words >> word;) {
      if (!word.starts_with("--")) continue;
      EXPECT_THAT(help.substr(usage), HasSubstr("  " + word + " ")) << command;
    }
  }
}

TEST(HelpTest, BashCompletesCommandsAndFlags) {
  const CommandResult script = Command("completion bash");
  ASSERT_EQ(script.code, 0) << script.out;
  const auto complete = [&](const std::string& words, int at) {
    return Shell("bash", script.out + "COMP_WORDS=(" + words + ")\nCOMP_CWORD=" +
                             std::to_string(at) + "\n_apogee\necho \"${COMPREPLY[*]}\"\n");
  };
  EXPECT_EQ(complete("apogee pl", 1), "plan\n");
  EXPECT_EQ(complete("apogee plan --rank", 2), "--ranks --ranks-per-machine --rank-mttf\n");
  EXPECT_EQ(complete("apogee data t", 2), "tokenize train-tokenizer\n");
  EXPECT_EQ(complete("apogee data tokenize --tok", 3), "--tokenizer\n");
  // The value of a flag may be the name of a command.
  EXPECT_EQ(complete("apogee matrix --only plan --sab", 4), "--sabotage\n");
  EXPECT_EQ(complete("apogee plan ./no-such-word", 2), "\n");
}

TEST(HelpTest, OtherShells) {
  EXPECT_THAT(Command("completion zsh").out, HasSubstr("bashcompinit\n_apogee() {"));
  const std::string fish = Command("completion fish").out;
  EXPECT_THAT(fish, HasSubstr("complete -c apogee -n '__apogee_command' -f -a plan -d '"));
  EXPECT_THAT(fish, HasSubstr("complete -c apogee -n '__apogee_command plan' -l memory"
                              " -r -d 'Memory for each rank"));
  const CommandResult wrong = Command("completion csh");
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(wrong.out, HasSubstr("no completion for the shell \"csh\"; known: bash, fish, zsh"));
}

TEST(HelpTest, Version) {
  const CommandResult result = Command("--version");
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.out, ::testing::MatchesRegex("apogee [0-9]+\\.[0-9]+\\.[0-9]+\n"));
}

// Two commands of one name: inspect and data inspect.
TEST(HelpTest, FishCompletesTheWholeCommand) {
  const std::string fish = Command("completion fish").out;
  EXPECT_THAT(fish, HasSubstr("-n '__apogee_command inspect' -l"));
  EXPECT_THAT(fish, HasSubstr("-n '__apogee_command data inspect' -l tokenizer"));
  if (std::system("command -v fish >/dev/null") != 0) GTEST_SKIP() << "no fish";
  const auto complete = [&](const std::string& line) {
    return Shell("fish --no-config", fish + "complete -C '" + line + "'\n");
  };
  EXPECT_THAT(complete("apogee data inspect --tok"), HasSubstr("--tokenizer"));
  EXPECT_EQ(complete("apogee inspect --tok"), "");
  EXPECT_THAT(complete("apogee data in"), HasSubstr("inspect\t"));
  EXPECT_THAT(complete("apogee plan ins"), ::testing::Not(HasSubstr("inspect\t")));
}

TEST(HelpTest, ManPagesHaveEveryFlag) {
  const bool has_groff = std::system("command -v groff >/dev/null") == 0;
  for (const std::string command : {"", "data tokenize", "matrix", "plan", "run"}) {
    const CommandResult page = Command("man " + command);
    ASSERT_EQ(page.code, 0) << command;
    EXPECT_THAT(page.out, HasSubstr(".SH SYNOPSIS\n\\fBapogee ")) << command;
    if (!has_groff) continue;
    const TempDir dir;
    std::ofstream(dir / "page") << page.out;
    const std::string text =
        Shell("sh", "groff -man -Tascii -P-c -P-b -P-u -ww '" + (dir / "page") + "'\n");
    EXPECT_THAT(text, ::testing::Not(HasSubstr("warning"))) << command;
    std::istringstream words(Command(command + " --help").out);
    for (std::string line; std::getline(words, line);) {
      if (!line.starts_with("  --")) continue;
      const std::string flag = line.substr(2, line.find_first_of(" ,", 2) - 2);
      EXPECT_THAT(text, HasSubstr(flag)) << command;
    }
  }
  const CommandResult wrong = Command("man palm");
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(wrong.out, HasSubstr("there is no command \"palm\""));
}

}  // namespace help_test
}  // namespace apogee::tools
