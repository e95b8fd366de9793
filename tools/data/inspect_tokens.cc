// SPDX-License-Identifier: Apache-2.0

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "apogee/core/text/printable.h"
#include "apogee/core/text/text.h"
#include "apogee/tools/data/commands.h"

namespace apogee::tools {
namespace {

struct InspectFlags {
  TokenFileFlags files;
  int64_t num_first = 16;
};

// "first      1 2 3", and the text of these tokens.
absl::Status PrintFirst(const data::StoredTokens& tokens, const data::Tokenizer* tokenizer,
                        int64_t count) {
  std::vector<int64_t> ids(static_cast<size_t>(std::min(count, tokens.num_tokens())));
  tokens.ReadStored(0, ids);
  std::cout << "first ids   ";
  for (const int64_t id : ids) std::cout << " " << id;
  std::cout << "\n";
  if (tokenizer == nullptr) return absl::OkStatus();
  std::vector<int32_t> known;
  for (const int64_t id : ids) {
    if (id < 0 || id >= tokenizer->vocab_size()) {
      return InvalidArgument("id ", id, " is not in the vocabulary of ", tokenizer->description(),
                             ": this is not the tokenizer of the file");
    }
    known.push_back(static_cast<int32_t>(id));
  }
  std::cout << "as text      " << Printable(tokenizer->Decode(known)) << "\n";
  return absl::OkStatus();
}

absl::Status Inspect(const InspectFlags& flags) {
  APOGEE_ASSIGN_OR_RETURN(const data::TokenizerPtr tokenizer, LoadTokenizerOf(flags.files));
  APOGEE_ASSIGN_OR_RETURN(const data::StoredTokensPtr tokens,
                          OpenTokens(flags.files, tokenizer.get()));
  const TokenSurvey survey = SurveyTokens(*tokens);
  int64_t documents = 0, stored = 0;
  for (const data::TokenFileFacts& file : tokens->Facts()) {
    documents += file.num_documents.value_or(0);
    stored += file.num_documents.has_value();
  }
  std::cout << FileLines(*tokens);
  std::cout << "tokens       " << FormatThousands(tokens->num_tokens()) << "\n";
  std::cout << "documents    " << FormatThousands(stored > 0 ? documents : survey.num_documents)
            << "\n";
  if (survey.largest >= 0) std::cout << "largest id   " << survey.largest << "\n";
  if (survey.smallest < 0) std::cout << "smallest id  " << survey.smallest << "\n";
  return PrintFirst(*tokens, tokenizer.get(), flags.num_first);
}

}  // namespace

void AddInspectTokensCommand(CLI::App& data, int& exit_code) {
  auto flags = std::make_shared<InspectFlags>();
  CLI::App* command = data.add_subcommand(
      "inspect", "Format, number of tokens and documents, largest id and first tokens of a file");
  AddTokenFileFlags(*command, flags->files);
  command->add_option("--first", flags->num_first, "How many tokens to print")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 20))
      ->capture_default_str();
  command->footer("Exit status: 0 done, 1 a file is damaged, 2 wrong use or another error");
  OnTokenFiles(*command, exit_code, [flags] { return Inspect(*flags); });
}

}  // namespace apogee::tools
