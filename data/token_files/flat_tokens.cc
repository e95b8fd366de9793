// SPDX-License-Identifier: Apache-2.0

// llm.c and raw files: ids without gaps, in which an end-of-text id divides the documents.
#include <algorithm>
#include <array>
#include <limits>

#include "apogee/core/text/text.h"
#include "apogee/data/token_files/llmc_header.h"
#include "apogee/data/token_files/stored_tokens.h"

namespace apogee::data {
namespace {

constexpr int64_t kNoEndOfText = -1;

class FlatTokens : public StoredTokens {
 public:
  struct Place {
    TokenFormat format;
    int64_t first_byte, num_tokens;
  };
  FlatTokens(TokenBytes bytes, const Place& place, const TokenFileOptions& options,
             int64_t end_of_text)
      : bytes_(std::move(bytes)),
        place_(place),
        limit_(options.vocab_size == 0 ? kIdLimit : options.vocab_size),
        end_of_text_(end_of_text) {}

  int64_t num_tokens() const override { return place_.num_tokens; }

  void Read(int64_t first, std::span<int32_t> tokens) const override {
    CheckRange(first, static_cast<int64_t>(tokens.size()));
    OkOrThrow(bytes_.ReadIds(ByteOf(first), tokens, limit_, first));
  }

  void ReadStored(int64_t first, std::span<int64_t> ids) const override {
    CheckRange(first, static_cast<int64_t>(ids.size()));
    OkOrThrow(bytes_.ReadStored(ByteOf(first), ids));
  }

  std::vector<int64_t> DocumentBegins(int64_t first, int64_t length) const override {
    CheckRange(first, length);
    std::vector<int64_t> begins;
    if (length == 0) return begins;
    if (first == 0) begins.push_back(0);
    if (end_of_text_ == kNoEndOfText) return begins;
    // A document begins at such an id, or behind it.
    const int64_t behind = BeginsWithEndOfText(place_.format) ? 0 : 1;
    std::array<int64_t, 4096> ids;
    const int64_t end = first + length - behind;
    for (int64_t at = std::max<int64_t>(first, 1) - behind; at < end;) {
      const std::span<int64_t> piece(ids.data(),
                                     static_cast<size_t>(std::min<int64_t>(ids.size(), end - at)));
      OkOrThrow(bytes_.ReadStored(ByteOf(at), piece));
      for (const int64_t id : piece) {
        if (id == end_of_text_) begins.push_back(at + behind);
        ++at;
      }
    }
    return begins;
  }

  std::string description() const override {
    return internal::Concat(bytes_.path(), ": ", Name(place_.format), " (", Name(bytes_.type()),
                            "), ", FormatThousands(num_tokens()), " tokens");
  }
  std::string PlaceOf(int64_t index) const override {
    return internal::Concat(bytes_.path(), ": token ", index);
  }
  std::vector<TokenFileFacts> Facts() const override {
    return {{bytes_.path(), place_.format, bytes_.type(), std::nullopt}};
  }

 private:
  int64_t ByteOf(int64_t token) const { return place_.first_byte + token * SizeOf(bytes_.type()); }

  TokenBytes bytes_;
  Place place_;
  int64_t limit_, end_of_text_;
};

}  // namespace

absl::StatusOr<StoredTokensPtr> OpenLlmc(const std::string& path, const TokenFileOptions& options) {
  APOGEE_ASSIGN_OR_RETURN(std::unique_ptr<RandomBytes> file, OpenBytes(path));
  APOGEE_ASSIGN_OR_RETURN(const LlmcHeader header, ReadLlmcHeader(*file));
  return std::make_shared<FlatTokens>(
      TokenBytes(std::move(file), header.type),
      FlatTokens::Place{TokenFormat::kLlmc, kLlmcHeaderBytes, header.num_tokens}, options,
      options.end_of_text.value_or(LlmcEndOfText(header.type)));
}

absl::StatusOr<StoredTokensPtr> OpenRaw(const std::string& path, TokenFormat format,
                                        const TokenFileOptions& options) {
  APOGEE_ASSIGN_OR_RETURN(std::unique_ptr<RandomBytes> file, OpenBytes(path));
  const TokenType type = format == TokenFormat::kRawU16 ? TokenType::kU16 : TokenType::kU32;
  const int64_t bytes = file->size();
  if (bytes == 0) return DataLoss(path, ": is empty; a raw file has at least one token");
  if (bytes % SizeOf(type) != 0) {
    return DataLoss(path, ": has ", bytes, " bytes, which is no multiple of ", SizeOf(type),
                    ": the file is cut short, or its ids are not ", Name(type));
  }
  return std::make_shared<FlatTokens>(TokenBytes(std::move(file), type),
                                      FlatTokens::Place{format, 0, bytes / SizeOf(type)}, options,
                                      options.end_of_text.value_or(kNoEndOfText));
}

}  // namespace apogee::data
