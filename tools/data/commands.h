// SPDX-License-Identifier: Apache-2.0

// The subcommands of `apogee data`, as those of command.h, and what they share.
#ifndef APOGEE_TOOLS_DATA_COMMANDS_H_
#define APOGEE_TOOLS_DATA_COMMANDS_H_

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "apogee/data/token_files/stored_tokens.h"
#include "apogee/data/tokenizer/tokenizer.h"

namespace CLI {
class App;
}  // namespace CLI

namespace apogee::tools {

void AddTokenizeCommand(CLI::App& data, int& exit_code);
void AddInspectTokensCommand(CLI::App& data, int& exit_code);
void AddConvertTokensCommand(CLI::App& data, int& exit_code);
void AddTrainTokenizerCommand(CLI::App& data, int& exit_code);
void AddVerifyTokensCommand(CLI::App& data, int& exit_code);

// Files of tokens on a command line.
struct TokenFileFlags {
  std::vector<std::string> paths;
  std::string format;     // empty: recognised
  std::string tokenizer;  // empty: none
  std::optional<int64_t> end_of_text;
};
void AddTokenFileFlags(CLI::App& command, TokenFileFlags& flags);
// Null without --tokenizer.
absl::StatusOr<data::TokenizerPtr> LoadTokenizerOf(const TokenFileFlags& flags);
// The end-of-text id is that of the flag, else of the tokenizer, else of the format.
absl::StatusOr<data::StoredTokensPtr> OpenTokens(const TokenFileFlags& flags,
                                                 const data::Tokenizer* tokenizer);
// Prints "apogee data WHAT: ..." on stderr. Returns 1 for a file that is damaged or has a wrong id,
// else 2.
int ReportDataError(const char* what, const absl::Status& status);
// Lets `run` be the command's work, and sets the exit code: 0, or that of ReportDataError. Reading
// tokens throws Error where a file has become shorter, which is a damaged file.
void OnTokenFiles(CLI::App& command, int& exit_code, std::function<absl::Status()> run);

// Found by one pass over all tokens. Throws Error if a file cannot be read.
struct TokenSurvey {
  int64_t largest = -1, smallest = 0;
  int64_t num_documents = 0;
};
TokenSurvey SurveyTokens(const data::StoredTokens& tokens);
// One line per file: path, format and type.
std::string FileLines(const data::StoredTokens& tokens);

}  // namespace apogee::tools

#endif  // APOGEE_TOOLS_DATA_COMMANDS_H_
