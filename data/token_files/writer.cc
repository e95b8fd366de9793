// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <array>
#include <limits>
#include <type_traits>

#include "apogee/data/token_files/llmc_header.h"
#include "apogee/data/token_files/megatron_index.h"
#include "apogee/data/token_files/output_file.h"
#include "apogee/data/token_files/resumable_writer.h"
#include "apogee/data/token_files/stored_tokens.h"

namespace apogee::data {
namespace {

constexpr size_t kPiece = 8192;

template <typename T>
std::span<const std::byte> BytesOf(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

class Writer : public ResumableWriter {
 public:
  Writer(OutputFile data, TokenFormat format, TokenType type, const TokenWriterState& state)
      : data_(std::move(data)), format_(format), type_(type), state_(state) {}

  absl::Status Append(std::span<const int32_t> ids) override { return AppendIds(ids); }
  absl::Status Append(std::span<const int64_t> ids) override { return AppendIds(ids); }
  absl::Status EndDocument() override {
    ++state_.num_documents;
    state_.open_tokens = 0;
    return absl::OkStatus();
  }
  absl::Status Sync() override { return data_.Sync(); }
  absl::Status Finish() override {
    if (format_ == TokenFormat::kLlmc) {
      APOGEE_RETURN_IF_ERROR(data_.WriteHead(FormatLlmcHeader({type_, state_.num_tokens})));
    }
    APOGEE_RETURN_IF_ERROR(data_.Sync());
    APOGEE_RETURN_IF_ERROR(data_.Publish());
    return SyncFolderOf(data_.path());
  }
  int64_t num_tokens() const override { return state_.num_tokens; }
  TokenWriterState state() const override { return state_; }
  TokenType type() const override { return type_; }

 protected:
  template <typename Id>
  absl::Status AppendIds(std::span<const Id> ids) {
    if (format_ == TokenFormat::kLlmc &&
        static_cast<int64_t>(ids.size()) > kLlmcMaxTokens - state_.num_tokens) {
      return absl::ResourceExhaustedError(
          internal::Concat(data_.path(), ": llm.c counts at most ", kLlmcMaxTokens,
                           " tokens in a file; write several, or another format"));
    }
    switch (SizeOf(type_)) {
      case 1:
        return AppendAs<uint8_t>(ids);
      case 2:
        return AppendAs<uint16_t>(ids);
      case 4:
        return AppendAs<uint32_t>(ids);
      default:
        return AppendAs<uint64_t>(ids);
    }
  }

  OutputFile data_;
  TokenFormat format_;
  TokenType type_;
  TokenWriterState state_;

 private:
  // Ids are not negative, so signed types have the same bytes as unsigned ones.
  template <typename Stored, typename Id>
  absl::Status AppendAs(std::span<const Id> ids) {
    const int64_t most = LargestId(type_);
    std::array<Stored, kPiece> buffer;
    while (!ids.empty()) {
      const auto piece = ids.first(std::min(kPiece, ids.size()));
      for (size_t i = 0; i < piece.size(); ++i) {
        if (piece[i] < 0 || piece[i] > most) {
          return absl::OutOfRangeError(internal::Concat(
              data_.path(), ": token ", state_.num_tokens + static_cast<int64_t>(i), " is ",
              piece[i], ", but ", Name(type_), " holds [0, ", most,
              "]; write a format with wider ids"));
        }
        buffer[i] = static_cast<Stored>(piece[i]);
      }
      APOGEE_RETURN_IF_ERROR(data_.Append(std::as_bytes(std::span(buffer).first(piece.size()))));
      state_.num_tokens += static_cast<int64_t>(piece.size());
      state_.open_tokens += static_cast<int64_t>(piece.size());
      ids = ids.subspan(piece.size());
    }
    return absl::OkStatus();
  }
};

// The lengths of documents go to a file of their own until the index is written: memory does not
// depend on their number.
class MegatronWriter : public Writer {
 public:
  MegatronWriter(OutputFile data, OutputFile lengths, std::string idx, TokenType type,
                 const TokenWriterState& state)
      : Writer(std::move(data), TokenFormat::kMegatron, type, state),
        lengths_(std::move(lengths)),
        idx_(std::move(idx)) {}

  absl::Status EndDocument() override {
    constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
    if (state_.open_tokens > kMost) {
      return absl::OutOfRangeError(internal::Concat(
          data_.path(), ": document ", state_.num_documents, " has ", state_.open_tokens,
          " tokens, but the index of Megatron holds at most ", kMost));
    }
    APOGEE_RETURN_IF_ERROR(lengths_.Append(BytesOf(static_cast<int32_t>(state_.open_tokens))));
    return Writer::EndDocument();
  }
  absl::Status Sync() override {
    APOGEE_RETURN_IF_ERROR(lengths_.Sync());
    return Writer::Sync();
  }
  absl::Status Finish() override {
    if (state_.open_tokens > 0) APOGEE_RETURN_IF_ERROR(EndDocument());
    APOGEE_ASSIGN_OR_RETURN(OutputFile idx, OutputFile::Open(idx_, 0));
    APOGEE_RETURN_IF_ERROR(WriteIndex(idx));
    APOGEE_RETURN_IF_ERROR(idx.Sync());
    // Readers look for the index, so that it comes last.
    APOGEE_RETURN_IF_ERROR(Writer::Finish());
    absl::Status named = idx.Publish();
    if (named.ok()) named = SyncFolderOf(idx_);
    if (!named.ok()) {
      idx.Withdraw();
      data_.Withdraw();
    }
    return named;
  }

 private:
  absl::Status WriteIndex(OutputFile& idx) {
    const auto count = static_cast<uint64_t>(state_.num_documents);
    APOGEE_RETURN_IF_ERROR(idx.Append(std::as_bytes(std::span(kMegatronMagic))));
    APOGEE_RETURN_IF_ERROR(idx.Append(BytesOf(uint64_t{1})));
    APOGEE_RETURN_IF_ERROR(idx.Append(BytesOf(MegatronCode(type_))));
    APOGEE_RETURN_IF_ERROR(idx.Append(BytesOf(count)));
    APOGEE_RETURN_IF_ERROR(idx.Append(BytesOf(count + 1)));
    APOGEE_RETURN_IF_ERROR(
        ForEachLength([&](int32_t length) { return idx.Append(BytesOf(length)); }));
    int64_t offset = 0;
    APOGEE_RETURN_IF_ERROR(ForEachLength([&](int32_t length) {
      const absl::Status status = idx.Append(BytesOf(offset));
      offset += length * SizeOf(type_);
      return status;
    }));
    for (int64_t index = 0; index <= state_.num_documents; ++index) {
      APOGEE_RETURN_IF_ERROR(idx.Append(BytesOf(index)));
    }
    return absl::OkStatus();
  }
  template <typename Fn>
  absl::Status ForEachLength(const Fn& fn) {
    std::array<int32_t, kPiece> lengths;
    for (int64_t first = 0; first < state_.num_documents; first += kPiece) {
      const auto piece = std::span(lengths).first(
          static_cast<size_t>(std::min<int64_t>(kPiece, state_.num_documents - first)));
      APOGEE_RETURN_IF_ERROR(lengths_.ReadBack(4 * first, std::as_writable_bytes(piece)));
      for (const int32_t length : piece) APOGEE_RETURN_IF_ERROR(fn(length));
    }
    return absl::OkStatus();
  }

  OutputFile lengths_;
  std::string idx_;
};

}  // namespace

TokenType WrittenType(TokenFormat format, int64_t vocab_size) {
  switch (format) {
    case TokenFormat::kLlmc:
      return vocab_size > 0 && vocab_size <= 65536 ? TokenType::kU16 : TokenType::kU32;
    case TokenFormat::kRawU16:
      return TokenType::kU16;
    case TokenFormat::kRawU32:
      return TokenType::kU32;
    case TokenFormat::kMegatron:
      return vocab_size > 0 && vocab_size < 65500 ? TokenType::kU16 : TokenType::kI32;
  }
  return TokenType::kU32;
}

int64_t LargestId(TokenType type) {
  switch (type) {
    case TokenType::kU8:
      return 255;
    case TokenType::kI8:
      return 127;
    case TokenType::kI16:
      return 32767;
    case TokenType::kU16:
      return 65535;
    case TokenType::kI32:
      return std::numeric_limits<int32_t>::max();
    case TokenType::kU32:
      return std::numeric_limits<uint32_t>::max();
    case TokenType::kI64:
      return std::numeric_limits<int64_t>::max();
  }
  return 0;
}

absl::StatusOr<std::unique_ptr<ResumableWriter>> ResumableWriter::Open(
    const std::string& path, TokenFormat format, TokenType type, const TokenWriterState& state) {
  const int64_t bytes = state.num_tokens * SizeOf(type);
  if (format == TokenFormat::kMegatron) {
    APOGEE_ASSIGN_OR_RETURN(const MegatronPaths paths, MegatronPathsOf(path));
    APOGEE_RETURN_IF_ERROR(CheckFree(paths.idx));
    APOGEE_ASSIGN_OR_RETURN(OutputFile data, OutputFile::Open(paths.bin, bytes));
    APOGEE_ASSIGN_OR_RETURN(OutputFile lengths,
                            OutputFile::Open(paths.idx + ".lengths", 4 * state.num_documents));
    return std::make_unique<MegatronWriter>(std::move(data), std::move(lengths), paths.idx, type,
                                            state);
  }
  const int64_t header = format == TokenFormat::kLlmc ? kLlmcHeaderBytes : 0;
  const bool begins = state.num_tokens == 0;
  APOGEE_ASSIGN_OR_RETURN(OutputFile data, OutputFile::Open(path, begins ? 0 : header + bytes));
  if (begins && header > 0) {
    // Until Finish there is no magic, so that nothing takes the file for a whole one.
    const std::array<std::byte, kLlmcHeaderBytes> nothing{};
    APOGEE_RETURN_IF_ERROR(data.Append(nothing));
  }
  return std::make_unique<Writer>(std::move(data), format, type, state);
}

absl::StatusOr<std::unique_ptr<TokenFileWriter>> TokenFileWriter::Create(
    const std::string& path, const TokenWriterOptions& options) {
  if (options.vocab_size < 0 || options.vocab_size > kIdLimit) {
    return InvalidArgument("vocab_size is ", options.vocab_size, ", it must be in [0, ", kIdLimit,
                           "]; 0: ids of 32 bits");
  }
  return ResumableWriter::Open(path, options.format,
                               WrittenType(options.format, options.vocab_size), {});
}

}  // namespace apogee::data
