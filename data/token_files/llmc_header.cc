// SPDX-License-Identifier: Apache-2.0

#include "apogee/data/token_files/llmc_header.h"

#include <cstring>

namespace apogee::data {
namespace {

struct Kind {
  uint32_t magic, version;
  TokenType type;
};
constexpr Kind kKinds[] = {{20240520, 1, TokenType::kU16}, {20240801, 7, TokenType::kU32}};
constexpr uint32_t kEvaluationMagic = 20240522;

absl::StatusOr<Kind> KindOf(const std::string& path, uint32_t magic) {
  for (const Kind& kind : kKinds) {
    if (magic == kind.magic) return kind;
  }
  std::string what = "; tokens of llm.c begin with 20240520 (u16) or 20240801 (u32)";
  if (magic == kEvaluationMagic) {
    what = ", an evaluation set of llm.c: it has questions and answers, not a stream of tokens";
  }
  for (const Kind& kind : kKinds) {
    if (magic == __builtin_bswap32(kind.magic)) what = ", a big-endian header" + what;
  }
  return DataLoss(path, ": magic is ", magic, what);
}

}  // namespace

bool IsLlmcMagic(uint32_t magic) {
  for (const Kind& kind : kKinds) {
    if (magic == kind.magic || magic == __builtin_bswap32(kind.magic)) return true;
  }
  return magic == kEvaluationMagic;
}

absl::StatusOr<LlmcHeader> ReadLlmcHeader(const RandomBytes& file) {
  if (file.size() < kLlmcHeaderBytes) {
    return DataLoss(file.path(), ": has ", file.size(), " bytes, but the header of llm.c takes ",
                    kLlmcHeaderBytes);
  }
  std::array<std::byte, 12> bytes;
  APOGEE_RETURN_IF_ERROR(file.Read(0, bytes));
  APOGEE_ASSIGN_OR_RETURN(const Kind kind, KindOf(file.path(), Load<uint32_t>(bytes.data())));
  const auto version = Load<uint32_t>(bytes.data() + 4);
  if (version != kind.version) {
    return DataLoss(file.path(), ": version is ", version, ", but with magic ", kind.magic,
                    " it is ", kind.version);
  }
  const auto num_tokens = int64_t{Load<int32_t>(bytes.data() + 8)};
  if (num_tokens < 0) {
    return DataLoss(file.path(), ": the number of tokens is ", num_tokens, ", it is at least 0");
  }
  const int64_t expected = kLlmcHeaderBytes + num_tokens * SizeOf(kind.type);
  if (file.size() != expected) {
    return DataLoss(file.path(), ": has ", file.size(), " bytes, but ", num_tokens, " tokens of ",
                    Name(kind.type), " and the header take ", expected);
  }
  return LlmcHeader{kind.type, num_tokens};
}

std::array<std::byte, kLlmcHeaderBytes> FormatLlmcHeader(const LlmcHeader& header) {
  const Kind& kind = kKinds[header.type == TokenType::kU32 ? 1 : 0];
  const std::array<uint32_t, 3> numbers = {kind.magic, kind.version,
                                           static_cast<uint32_t>(header.num_tokens)};
  std::array<std::byte, kLlmcHeaderBytes> bytes{};
  std::memcpy(bytes.data(), numbers.data(), sizeof(numbers));
  return bytes;
}

int64_t LlmcEndOfText(TokenType type) { return type == TokenType::kU32 ? 128000 : 50256; }

}  // namespace apogee::data
