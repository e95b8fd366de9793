// SPDX-License-Identifier: Apache-2.0

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <memory>

#include "apogee/core/text/text.h"
#include "apogee/data/token_files/resumable_writer.h"
#include "apogee/tools/data/commands.h"

namespace apogee::tools {
namespace {

using data::ResumableWriter;
using data::StoredTokens;
using data::TokenFormat;
using data::TokenType;

struct ConvertFlags {
  TokenFileFlags files;
  std::string output, to;
  int64_t vocab_size = 0;
};

// The width of the new file: what the vocabulary needs, else that of the old one.
TokenType TypeOf(TokenFormat to, int64_t vocab_size, TokenType from) {
  if (vocab_size > 0 || (to != TokenFormat::kLlmc && to != TokenFormat::kMegatron)) {
    return data::WrittenType(to, vocab_size);
  }
  if (data::LargestId(from) <= data::LargestId(TokenType::kU16)) return TokenType::kU16;
  return to == TokenFormat::kLlmc ? TokenType::kU32 : TokenType::kI32;
}

// Returns the number of documents.
absl::StatusOr<int64_t> Copy(const StoredTokens& from, ResumableWriter& to) {
  constexpr int64_t kPiece = 1 << 16;
  const int64_t most = data::LargestId(to.type());
  std::vector<int64_t> ids(static_cast<size_t>(kPiece));
  int64_t num_documents = 0;
  for (int64_t first = 0; first < from.num_tokens(); first += kPiece) {
    const int64_t count = std::min(kPiece, from.num_tokens() - first);
    const std::span<int64_t> piece = std::span(ids).first(static_cast<size_t>(count));
    from.ReadStored(first, piece);
    const auto bad = std::ranges::find_if(piece, [&](int64_t id) { return id < 0 || id > most; });
    if (bad != piece.end()) {
      return absl::OutOfRangeError(internal::Concat(
          from.PlaceOf(first + (bad - piece.begin())), " is ", *bad, ", but ", Name(to.type()),
          " holds [0, ", most, "]; choose a format with wider ids"));
    }
    std::vector<int64_t> begins = from.DocumentBegins(first, count);
    num_documents += static_cast<int64_t>(begins.size());
    if (first == 0 && !begins.empty()) begins.erase(begins.begin());  // nothing ends there
    int64_t done = 0;
    for (const int64_t begin : begins) {
      APOGEE_RETURN_IF_ERROR(to.Append(std::span<const int64_t>(piece).subspan(
          static_cast<size_t>(done), static_cast<size_t>(begin - first - done))));
      APOGEE_RETURN_IF_ERROR(to.EndDocument());
      done = begin - first;
    }
    APOGEE_RETURN_IF_ERROR(
        to.Append(std::span<const int64_t>(piece).subspan(static_cast<size_t>(done))));
  }
  APOGEE_RETURN_IF_ERROR(to.Finish());
  return num_documents;
}

absl::Status Convert(const ConvertFlags& flags) {
  APOGEE_ASSIGN_OR_RETURN(const TokenFormat to, data::ParseTokenFormat(flags.to));
  APOGEE_ASSIGN_OR_RETURN(const data::TokenizerPtr tokenizer, LoadTokenizerOf(flags.files));
  APOGEE_ASSIGN_OR_RETURN(const data::StoredTokensPtr from,
                          OpenTokens(flags.files, tokenizer.get()));
  int64_t vocab_size = flags.vocab_size;
  if (vocab_size == 0 && tokenizer != nullptr) vocab_size = tokenizer->vocab_size();
  const TokenType type = TypeOf(to, vocab_size, from->Facts()[0].type);
  APOGEE_ASSIGN_OR_RETURN(const std::unique_ptr<ResumableWriter> writer,
                          ResumableWriter::Open(flags.output, to, type, {}));
  APOGEE_ASSIGN_OR_RETURN(const int64_t num_documents, Copy(*from, *writer));
  std::cout << flags.output << ": " << Name(to) << " (" << Name(type) << "), "
            << FormatThousands(writer->num_tokens()) << " tokens\n";
  if (from->Facts()[0].format == TokenFormat::kMegatron && to != TokenFormat::kMegatron &&
      num_documents > 1) {
    std::cerr << "apogee data convert: of " << FormatThousands(num_documents)
              << " documents, readers of " << Name(to)
              << " find those that an end-of-text id divides\n";
  }
  return absl::OkStatus();
}

}  // namespace

void AddConvertTokensCommand(CLI::App& data, int& exit_code) {
  auto flags = std::make_shared<ConvertFlags>();
  CLI::App* command = data.add_subcommand("convert", "Write token files in another format");
  AddTokenFileFlags(*command, flags->files);
  command->add_option("--output", flags->output, "The file to create; nothing is ever overwritten")
      ->required();
  command->add_option("--to", flags->to, "llmc, raw_u16, raw_u32 or megatron")->required();
  command
      ->add_option("--vocab-size", flags->vocab_size,
                   "Chooses the width of ids in llmc and megatron; default: that of the input")
      ->check(CLI::Range(int64_t{1}, data::kIdLimit));
  command->footer(
      "Exit status: 0 done, 1 a file is damaged or an id does not fit, 2 wrong use or another "
      "error");
  OnTokenFiles(*command, exit_code, [flags] { return Convert(*flags); });
}

}  // namespace apogee::tools
