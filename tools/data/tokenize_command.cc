// SPDX-License-Identifier: Apache-2.0

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <memory>

#include "apogee/core/text/text.h"
#include "apogee/data/corpus_sources.h"
#include "apogee/data/tokenizer/load_tokenizer.h"
#include "apogee/tools/data/commands.h"
#include "apogee/tools/data/tokenize.h"

namespace apogee::tools {
namespace {

using Clock = std::chrono::steady_clock;

struct TokenizeFlags {
  TokenizeOptions options;
  std::string tokenizer, format = "llmc", end_of_text;
  std::vector<std::string> inputs;
  bool split_lines = false, jsonl = false;
  int64_t max_document_mib = 8, journal_mib = 256;
};

// A line on stderr that is drawn again; in a file, a line now and then.
class ProgressLine {
 public:
  void Show(const TokenizeProgress& progress) {
    const Clock::time_point now = Clock::now();
    if (now - shown_ < (is_terminal_ ? std::chrono::milliseconds(200) : std::chrono::seconds(10))) {
      return;
    }
    shown_ = now;
    Print(progress, is_terminal_ ? "\r" : "\n");
  }
  void End(const TokenizeProgress& progress) { Print(progress, "\n"); }

 private:
  void Print(const TokenizeProgress& progress, const char* end) const {
    const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
    std::fprintf(stderr, "%s of %s, %s tokens, %s documents, %.0f s  %s",
                 FormatBytes(progress.bytes).c_str(), FormatBytes(progress.total_bytes).c_str(),
                 FormatThousands(progress.num_tokens).c_str(),
                 FormatThousands(progress.num_documents).c_str(), seconds, end);
    std::fflush(stderr);
  }

  const bool is_terminal_ = isatty(STDERR_FILENO) == 1;
  const Clock::time_point start_ = Clock::now();
  Clock::time_point shown_ = start_;
};

InputKind KindOf(const std::string& path, const TokenizeFlags& flags) {
  if (flags.jsonl || path.ends_with(".jsonl") || path.ends_with(".ndjson")) {
    return InputKind::kJsonl;
  }
  return flags.split_lines ? InputKind::kLines : InputKind::kText;
}

// The id that divides documents: the tokenizer's, one that the user named, or none.
absl::StatusOr<std::optional<int32_t>> EndOfTextOf(const data::Tokenizer& tokenizer,
                                                   const TokenizeFlags& flags) {
  if (flags.end_of_text == "none") return std::nullopt;
  if (!flags.end_of_text.empty()) {
    const std::optional<int32_t> id = tokenizer.IdOf(flags.end_of_text);
    if (id.has_value()) return id;
    return InvalidArgument("--end-of-text: ", tokenizer.description(), " has no token \"",
                           flags.end_of_text, "\"; give one of its tokens, or none");
  }
  const std::optional<int32_t> own = tokenizer.end_of_text();
  if (own.has_value() || flags.options.format == data::TokenFormat::kMegatron) return own;
  return InvalidArgument("the tokenizer (", tokenizer.description(),
                         ") has no token that ends a document, and ", Name(flags.options.format),
                         " has no other boundaries; give --end-of-text TOKEN, --end-of-text none, "
                         "or --format megatron");
}

absl::Status Run(TokenizeFlags& flags) {
  TokenizeOptions& options = flags.options;
  APOGEE_ASSIGN_OR_RETURN(options.format, data::ParseTokenFormat(flags.format));
  APOGEE_ASSIGN_OR_RETURN(const data::TokenizerPtr tokenizer, data::LoadTokenizer(flags.tokenizer));
  APOGEE_ASSIGN_OR_RETURN(options.encode.end_of_text, EndOfTextOf(*tokenizer, flags));
  options.encode.begins_with_end_of_text = data::BeginsWithEndOfText(options.format);
  for (const std::string& path : flags.inputs) {
    APOGEE_ASSIGN_OR_RETURN(const std::vector<std::string> files, data::TextFilesOf(path));
    for (const std::string& file : files) options.inputs.push_back({file, KindOf(file, flags)});
  }
  options.input.max_document_bytes = flags.max_document_mib << 20;
  options.journal_bytes = flags.journal_mib << 20;
  ProgressLine line;
  APOGEE_ASSIGN_OR_RETURN(const TokenizeProgress done,
                          Tokenize(*tokenizer, flags.tokenizer, options,
                                   [&](const TokenizeProgress& progress) { line.Show(progress); }));
  line.End(done);
  std::cout << options.output << ": " << flags.format << ", " << FormatThousands(done.num_tokens)
            << " tokens, " << FormatThousands(done.num_documents) << " documents";
  if (done.num_skipped > 0) {
    std::cout << ", " << FormatThousands(done.num_skipped) << " without text left out";
  }
  std::cout << (done.resumed ? " (continued)\n" : "\n");
  return absl::OkStatus();
}

}  // namespace

void AddTokenizeCommand(CLI::App& data, int& exit_code) {
  auto flags = std::make_shared<TokenizeFlags>();
  TokenizeOptions& options = flags->options;
  CLI::App* command = data.add_subcommand(
      "tokenize", "Write texts as a token file. A run that was killed continues where it was");
  command
      ->add_option(
          "inputs", flags->inputs,
          "Text files, each a document, .jsonl files, each line a document, or folders of them")
      ->required();
  command
      ->add_option("--tokenizer", flags->tokenizer,
                   "tokenizer.json, tiktoken file, SentencePiece model, or byte")
      ->required();
  command->add_option("--output", options.output, "The file to create; nothing is overwritten")
      ->required();
  command->add_option("--format", flags->format, "llmc, raw_u16, raw_u32 or megatron")
      ->capture_default_str();
  command->add_option("--field", options.encode.field, "The field with the text in JSON lines")
      ->capture_default_str();
  CLI::Option* lines =
      command->add_flag("--split-lines", flags->split_lines, "Each line of a text is a document");
  command->add_flag("--jsonl", flags->jsonl, "All inputs are JSON lines, whatever their names")
      ->excludes(lines);
  command->add_option("--end-of-text", flags->end_of_text,
                      "The token that divides documents, or none. Default: the tokenizer's");
  command->add_flag("--skip-empty", options.encode.skip_empty,
                    "Leave out documents without text, which are errors otherwise");
  command->add_option("--threads", options.num_threads, "Threads that encode")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command
      ->add_option("--max-document-mib", flags->max_document_mib,
                   "Largest document that the tokenizer cannot cut, and largest JSON line")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  command
      ->add_option("--journal-mib", flags->journal_mib,
                   "Input between two notes of how far the run has come")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  command->footer("Exit status: 0 done, 2 wrong use or bad input: then nothing is left");
  command->callback([flags, &exit_code] {
    const auto done = ErrorToStatus([&] { return Run(*flags); });
    const absl::Status status = done.ok() ? *done : done.status();
    if (status.ok()) return;
    ReportDataError("tokenize", status);
    exit_code = 2;
  });
}

}  // namespace apogee::tools
