// SPDX-License-Identifier: Apache-2.0

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "apogee/core/text/text.h"
#include "apogee/tools/data/commands.h"

namespace apogee::tools {
namespace {

struct VerifyFlags {
  TokenFileFlags files;
  int64_t vocab_size = 0;
};

absl::Status Verify(const VerifyFlags& flags) {
  APOGEE_ASSIGN_OR_RETURN(const data::TokenizerPtr tokenizer, LoadTokenizerOf(flags.files));
  APOGEE_ASSIGN_OR_RETURN(const data::StoredTokensPtr tokens,
                          OpenTokens(flags.files, tokenizer.get()));
  int64_t vocab_size = flags.vocab_size;
  if (vocab_size == 0) vocab_size = tokenizer == nullptr ? data::kIdLimit : tokenizer->vocab_size();
  if (tokens->num_tokens() == 0) return DataLoss(tokens->description(), ": there is no document");
  const TokenSurvey survey = SurveyTokens(*tokens);
  if (survey.smallest < 0 || survey.largest >= vocab_size) {
    return data::CheckTokenIds(*tokens, vocab_size);  // says where
  }
  std::cout << FileLines(*tokens) << "sound: " << FormatThousands(tokens->num_tokens())
            << " tokens, " << FormatThousands(survey.num_documents) << " documents, largest id "
            << survey.largest << "\n";
  return absl::OkStatus();
}

}  // namespace

void AddVerifyTokensCommand(CLI::App& data, int& exit_code) {
  auto flags = std::make_shared<VerifyFlags>();
  CLI::App* command = data.add_subcommand("verify", "Read token files whole and check them");
  AddTokenFileFlags(*command, flags->files);
  command
      ->add_option("--vocab-size", flags->vocab_size,
                   "Ids must be below it; default: the tokenizer's, else what an int32 holds")
      ->check(CLI::Range(int64_t{1}, data::kIdLimit));
  command->footer("Exit status: 0 sound, 1 a check failed, 2 wrong use or another error");
  OnTokenFiles(*command, exit_code, [flags] { return Verify(*flags); });
}

}  // namespace apogee::tools
