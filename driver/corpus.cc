// SPDX-License-Identifier: Apache-2.0

#include "apogee/driver/corpus.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string_view>
#include <utility>

#include "apogee/booster/metrics/crc32c.h"
#include "apogee/core/error.h"
#include "apogee/core/text/text.h"
#include "apogee/data/corpus_sources.h"
#include "apogee/data/instructions.h"
#include "apogee/data/text_corpus.h"
#include "apogee/data/token_dataset.h"
#include "apogee/data/token_files/token_file.h"
#include "apogee/data/tokenizer/bpe/train_bpe.h"
#include "apogee/data/tokenizer/formats/tokenizer_json.h"
#include "apogee/data/tokenizer/load_tokenizer.h"

namespace apogee::driver {
namespace {

constexpr double kValidationFraction = 0.1;

bool IsTokenFile(const std::string& path) {
  return path.ends_with(".bin") || path.ends_with(".idx");
}
bool IsJsonLines(const std::string& path) { return path.ends_with(".jsonl"); }

std::string Hex(uint32_t crc) {
  char hex[9];
  std::snprintf(hex, sizeof(hex), "%08x", crc);
  return hex;
}

// Of a large file only both ends are read.
std::string FingerprintOf(const data::TokenSource& tokens) {
  constexpr int64_t kEnd = int64_t{1} << 20;
  const int64_t n = tokens.num_tokens(), head = std::min(n, kEnd), tail = std::min(n - head, kEnd);
  std::vector<int32_t> ends(static_cast<size_t>(head + tail));
  const std::span<int32_t> all(ends);
  tokens.Read(0, all.first(static_cast<size_t>(head)));
  tokens.Read(n - tail, all.last(static_cast<size_t>(tail)));
  return std::to_string(n) + " tokens (crc " + Hex(Crc32c(ends.data(), ends.size() * 4)) + ")";
}

absl::Status CheckLength(const Corpus& corpus, int64_t block) {
  for (const auto& [part, name] :
       {std::pair{&corpus.train, "training"}, {&corpus.validation, "validation"}}) {
    const int64_t tokens = (*part)->num_tokens();
    if (tokens > block) continue;
    return InvalidArgument("data: too short: ", corpus.description, " leaves ",
                           FormatThousands(tokens), " tokens for ", name, ", but a block of ",
                           block, " needs ", block + 1, "; give more text or a smaller block");
  }
  return absl::OkStatus();
}

// The samples of a stream of tokens.
void MakeBlocks(Corpus& corpus, int64_t block) {
  constexpr int64_t kBeginning = 16;
  corpus.train_samples = std::make_shared<data::BlockDataset>(
      corpus.train, data::BlockOptions{.block = block, .stride = 1});
  corpus.validation_samples =
      std::make_shared<data::BlockDataset>(corpus.validation, data::BlockOptions{.block = block});
  corpus.epoch_samples = corpus.train->num_tokens() / block;
  const int64_t n = corpus.validation->num_tokens();
  for (const int64_t first : {int64_t{0}, n / 2}) {
    std::vector<int32_t> ids(static_cast<size_t>(std::min(kBeginning, n - first)));
    corpus.validation->Read(first, ids);
    corpus.prompts.push_back(corpus.tokenizer->Decode(ids, /*skip_special=*/true));
  }
}

absl::StatusOr<int32_t> EndOfText(const DataFlags& flags, const data::Tokenizer& tokenizer) {
  if (!flags.end_of_text.empty()) {
    if (const auto id = tokenizer.IdOf(flags.end_of_text)) return *id;
    return InvalidArgument("data: --end-of-text ", flags.end_of_text,
                           " is no token of this tokenizer (", tokenizer.description(), ")");
  }
  if (flags.end_of_text_id >= 0) return static_cast<int32_t>(flags.end_of_text_id);
  if (const auto id = tokenizer.end_of_text()) return *id;
  return InvalidArgument("data: this tokenizer (", tokenizer.description(),
                         ") has no token that ends a text; name one with --end-of-text");
}

absl::StatusOr<Corpus> FromInstructions(const DataFlags& flags) {
  Corpus corpus;
  APOGEE_ASSIGN_OR_RETURN(corpus.tokenizer, data::LoadTokenizer(flags.tokenizer));
  APOGEE_ASSIGN_OR_RETURN(const int32_t end, EndOfText(flags, *corpus.tokenizer));
  if (flags.block < 2) return InvalidArgument("data: --block must be at least 2 for JSON Lines");
  APOGEE_ASSIGN_OR_RETURN(const data::Instructions all,
                          data::ReadInstructions(flags.data, *corpus.tokenizer,
                                                 {.block = flags.block, .end_of_text = end}));
  const auto num_train =
      static_cast<int64_t>(static_cast<double>(all.size()) * (1 - kValidationFraction));
  if (num_train == 0) {
    return InvalidArgument("data: ", all.tokens->description(),
                           " has 1 sample; give at least 2: the last tenth is for validation");
  }
  const data::Instructions train = all.Part(0, num_train);
  const data::Instructions rest = all.Part(num_train, all.size() - num_train);
  corpus.train = train.tokens;
  corpus.validation = rest.tokens;
  corpus.train_samples = train.Samples(flags.pack);
  corpus.validation_samples = rest.Samples(flags.pack);
  corpus.epoch_samples = corpus.train_samples->num_samples();
  corpus.validation_bytes = -1;
  corpus.end_of_text = end;
  for (int64_t i = 0; i < std::min<int64_t>(2, rest.size()); ++i) {
    corpus.prompts.push_back(corpus.tokenizer->Decode(rest.BeginningOf(i), /*skip_special=*/true));
  }
  corpus.description = all.tokens->description() + ", " + FormatThousands(all.size()) +
                       " samples, " + FormatThousands(all.tokens->num_tokens()) + " tokens (" +
                       FormatThousands(all.num_targets()) + " learned); " +
                       corpus.tokenizer->description();
  corpus.notice = JoinTexts(all.notices, "; ");
  corpus.fingerprint = FingerprintOf(*train.tokens) + " in " + std::to_string(train.size()) +
                       (flags.pack ? " packed" : "") + " samples (prompts crc " +
                       Hex(Crc32c(train.prompts.data(), train.prompts.size() * sizeof(int64_t))) +
                       ")";
  return corpus;
}

absl::StatusOr<Corpus> FromTokenFiles(const DataFlags& flags) {
  if (flags.tokenizer == "byte") {
    return InvalidArgument("data: ", flags.data[0],
                           " holds tokens; say with --tokenizer which tokenizer made them");
  }
  Corpus corpus;
  APOGEE_ASSIGN_OR_RETURN(corpus.tokenizer, data::LoadTokenizer(flags.tokenizer));
  data::TokenFileOptions options{.vocab_size = corpus.tokenizer->vocab_size()};
  if (!flags.token_format.empty()) {
    APOGEE_ASSIGN_OR_RETURN(options.format, data::ParseTokenFormat(flags.token_format));
  }
  if (const auto end = corpus.tokenizer->end_of_text()) options.end_of_text = *end;
  APOGEE_ASSIGN_OR_RETURN(const data::TokenSourcePtr all,
                          data::OpenTokenFiles(flags.data, options));
  const int64_t n = all->num_tokens();
  const auto train =
      static_cast<int64_t>(std::floor(static_cast<double>(n) * (1 - kValidationFraction)));
  corpus.train = data::SliceTokens(all, 0, train);
  corpus.validation = data::SliceTokens(all, train, n - train);
  corpus.description = all->description() + "; " + corpus.tokenizer->description();
  APOGEE_RETURN_IF_ERROR(CheckLength(corpus, flags.block));
  MakeBlocks(corpus, flags.block);
  corpus.fingerprint = FingerprintOf(*corpus.train);
  return corpus;
}

Corpus FromBytes(const DataFlags& flags, const data::TextCorpus& text) {
  const data::TextSpan train = text.train();
  Corpus corpus{
      .tokenizer = ValueOrThrow(data::LoadTokenizer("byte")),
      .train = data::BytesAsTokens(train),
      .validation = data::BytesAsTokens(text.validation()),
      .validation_bytes = text.validation().size,
      .unit = "bytes",
      .description = text.description(),
      .notice = text.notice(),
      .fingerprint =
          std::to_string(train.size) + " bytes of text (crc " +
          Hex(Crc32c(train.text->data() + train.offset, static_cast<size_t>(train.size))) + ")"};
  MakeBlocks(corpus, flags.block);
  return corpus;
}

data::TokenSourcePtr Tokenised(const data::Tokenizer& tokenizer, std::string_view text,
                               const std::string& name) {
  std::vector<int32_t> ids;
  tokenizer.Encode(text, ids);
  return std::make_shared<data::MemoryTokenSource>(std::move(ids), std::vector<int64_t>{0}, name);
}

absl::StatusOr<Corpus> FromText(const DataFlags& flags, const data::TextCorpus& text) {
  Corpus corpus;
  const std::string_view all = *text.train().text;
  // The cut between the two parts moves on to the next line.
  const size_t line = all.find('\n', static_cast<size_t>(text.train().size));
  const size_t cut =
      line == std::string_view::npos ? static_cast<size_t>(text.train().size) : line + 1;
  const std::string_view train = all.substr(0, cut), validation = all.substr(cut);
  if (flags.train_tokenizer > 0) {
    APOGEE_ASSIGN_OR_RETURN(data::TrainedBpe trained,
                            data::TrainBpe(train, {.vocab_size = flags.train_tokenizer}));
    corpus.tokenizer_json = std::move(trained.json);
    APOGEE_ASSIGN_OR_RETURN(corpus.tokenizer,
                            data::ParseTokenizerJson(corpus.tokenizer_json, "--train-tokenizer"));
  } else {
    APOGEE_ASSIGN_OR_RETURN(corpus.tokenizer, data::LoadTokenizer(flags.tokenizer));
  }
  corpus.train = Tokenised(*corpus.tokenizer, train, "training text");
  corpus.validation = Tokenised(*corpus.tokenizer, validation, "validation text");
  corpus.validation_bytes = static_cast<int64_t>(validation.size());
  corpus.description =
      text.description() + ", " +
      FormatThousands(corpus.train->num_tokens() + corpus.validation->num_tokens()) + " tokens; " +
      corpus.tokenizer->description();
  corpus.notice = text.notice();
  APOGEE_RETURN_IF_ERROR(CheckLength(corpus, flags.block));
  MakeBlocks(corpus, flags.block);
  corpus.fingerprint = FingerprintOf(*corpus.train);
  return corpus;
}

}  // namespace

void DataFlags::Declare(CommandLine& line) {
  line.Group("Data");
  line.AddTexts("--data", data,
                "Text files or folders, or token files (.bin and .idx of llm.c or Megatron; "
                "patterns with *)" +
                    std::string(fine_tunes ? ", or JSON Lines (.jsonl) of \"prompt\" and "
                                             "\"completion\", or of \"text\""
                                           : "") +
                    "; default: the King James Bible (Debian's bible-kjv)");
  if (fine_tunes) {
    line.AddSwitch("--pack", pack,
                   "Of JSON Lines: put as many samples as fit into one sequence, instead of "
                   "padding each");
    line.AddText("--end-of-text", end_of_text,
                 "Of JSON Lines: the token behind each completion; default: the model's");
  } else {
    line.AddText("--tokenizer", tokenizer,
                 "byte, or a file: tokenizer.json, tiktoken's ranks, SentencePiece's .model");
    line.AddCount("--train-tokenizer", train_tokenizer,
                  "Train a byte-level BPE of so many tokens on the training text; "
                  "OUT/tokenizer.json keeps it; default: none",
                  0);
    line.HideDefault("--train-tokenizer");
  }
  line.AddText("--token-format", token_format,
               "Of token files without a header: raw_u16 or raw_u32");
  line.AddCount("--block", block, "Tokens of context");
}

void DataFlags::Settle() const {
  if (train_tokenizer == 0) return;
  if (tokenizer != "byte") Throw("--train-tokenizer makes a tokenizer: leave --tokenizer out");
  if (std::ranges::any_of(data, IsTokenFile)) {
    Throw("--train-tokenizer needs text, but --data names token files");
  }
}

absl::StatusOr<Corpus> LoadCorpus(const DataFlags& flags) {
  const auto json_lines = flags.fine_tunes ? std::ranges::count_if(flags.data, IsJsonLines) : 0;
  if (json_lines > 0 && json_lines == std::ssize(flags.data)) return FromInstructions(flags);
  if (json_lines > 0) {
    return InvalidArgument(
        "data: some of the files are JSON Lines (.jsonl) and some are not; give one kind");
  }
  if (flags.pack || !flags.end_of_text.empty()) {
    return InvalidArgument("data: ", flags.pack ? "--pack" : "--end-of-text",
                           " is for JSON Lines, whose names end in .jsonl");
  }
  const auto token_files = std::ranges::count_if(flags.data, IsTokenFile);
  if (token_files > 0 && token_files == std::ssize(flags.data)) return FromTokenFiles(flags);
  if (token_files > 0) {
    return InvalidArgument(
        "data: some of the files are token files (.bin, .idx) and some are not; "
        "give one kind");
  }
  if (!flags.token_format.empty()) {
    return InvalidArgument("data: --token-format ", flags.token_format,
                           " is for token files, whose names end in .bin or .idx");
  }
  APOGEE_ASSIGN_OR_RETURN(
      const data::TextCorpus text,
      data::TextCorpus::Load(flags.data,
                             {.block = flags.block, .validation_fraction = kValidationFraction}));
  if (flags.tokenizer == "byte" && flags.train_tokenizer == 0) return FromBytes(flags, text);
  return FromText(flags, text);
}

int64_t ValidationBytes(const Corpus& corpus, int64_t num_tokens) {
  if (corpus.validation_bytes < 0) return 0;
  if (corpus.validation_bytes > 0) {
    return std::llround(static_cast<double>(corpus.validation_bytes) *
                        static_cast<double>(num_tokens) /
                        static_cast<double>(corpus.validation->num_tokens()));
  }
  // In pieces that fit in memory. A character that two pieces share counts as the replacement
  // characters of its halves.
  std::vector<int32_t> tokens(1 << 16);
  int64_t bytes = 0;
  for (int64_t first = 0; first < num_tokens;) {
    const int64_t count = std::min(static_cast<int64_t>(tokens.size()), num_tokens - first);
    const std::span<int32_t> piece = std::span(tokens).first(static_cast<size_t>(count));
    corpus.validation->Read(first, piece);
    bytes += static_cast<int64_t>(corpus.tokenizer->Decode(piece, /*skip_special=*/true).size());
    first += count;
  }
  return bytes;
}

}  // namespace apogee::driver
