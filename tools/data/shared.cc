// SPDX-License-Identifier: Apache-2.0

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>

#include "apogee/core/text/printable.h"
#include "apogee/data/tokenizer/load_tokenizer.h"
#include "apogee/tools/data/commands.h"

namespace apogee::tools {

void AddTokenFileFlags(CLI::App& command, TokenFileFlags& flags) {
  command
      .add_option("files", flags.paths,
                  "Token files or patterns with * ? []; several are one source, in this order")
      ->required();
  command.add_option("--format", flags.format,
                     "llmc, raw_u16, raw_u32 or megatron; without it, recognised (not raw files)");
  command.add_option("--tokenizer", flags.tokenizer,
                     "tokenizer.json, tiktoken file, SentencePiece model, or byte");
  command.add_option("--end-of-text", flags.end_of_text,
                     "The id that divides documents; -1: none. Default: the tokenizer's, else that "
                     "of llm.c");
}

absl::StatusOr<data::TokenizerPtr> LoadTokenizerOf(const TokenFileFlags& flags) {
  if (flags.tokenizer.empty()) return data::TokenizerPtr();
  return data::LoadTokenizer(flags.tokenizer);
}

absl::StatusOr<data::StoredTokensPtr> OpenTokens(const TokenFileFlags& flags,
                                                 const data::Tokenizer* tokenizer) {
  data::TokenFileOptions options;
  if (!flags.format.empty()) {
    APOGEE_ASSIGN_OR_RETURN(options.format, data::ParseTokenFormat(flags.format));
  }
  if (flags.end_of_text.has_value()) {
    options.end_of_text = flags.end_of_text;
  } else if (tokenizer != nullptr) {
    options.end_of_text = tokenizer->end_of_text().value_or(-1);
  }
  return data::OpenStoredTokens(flags.paths, options);
}

int ReportDataError(const char* what, const absl::Status& status) {
  std::cerr << "apogee data " << what << ": " << Printable(Message(status)) << "\n";
  return absl::IsDataLoss(status) || absl::IsOutOfRange(status) ? 1 : 2;
}

void OnTokenFiles(CLI::App& command, int& exit_code, std::function<absl::Status()> run) {
  command.callback([name = command.get_name(), run = std::move(run), &exit_code] {
    const auto done = ErrorToStatus(run);
    const absl::Status status = done.ok() ? *done : DataLoss(Message(done.status()));
    exit_code = status.ok() ? 0 : ReportDataError(name.c_str(), status);
  });
}

TokenSurvey SurveyTokens(const data::StoredTokens& tokens) {
  constexpr int64_t kPiece = 1 << 16;
  std::vector<int64_t> ids(static_cast<size_t>(kPiece));
  TokenSurvey survey;
  for (int64_t first = 0; first < tokens.num_tokens(); first += kPiece) {
    const int64_t count = std::min(kPiece, tokens.num_tokens() - first);
    const std::span<int64_t> piece = std::span(ids).first(static_cast<size_t>(count));
    tokens.ReadStored(first, piece);
    const auto [least, most] = std::ranges::minmax(piece);
    survey.smallest = std::min(survey.smallest, least);
    survey.largest = std::max(survey.largest, most);
    survey.num_documents += static_cast<int64_t>(tokens.DocumentBegins(first, count).size());
  }
  return survey;
}

std::string FileLines(const data::StoredTokens& tokens) {
  std::string lines;
  for (const data::TokenFileFacts& file : tokens.Facts()) {
    lines += Printable(file.path) + ": " + Name(file.format) + " (" + Name(file.type) + ")\n";
  }
  return lines;
}

}  // namespace apogee::tools
