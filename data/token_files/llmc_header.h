// SPDX-License-Identifier: Apache-2.0

// The header of llm.c's token files: 256 int32, of which the first three say magic, version and
// number of tokens.
//
//   magic      version  ids
//   20240520   1        u16 (GPT-2)
//   20240801   7        u32 (Llama 3)
#ifndef APOGEE_DATA_TOKEN_FILES_LLMC_HEADER_H_
#define APOGEE_DATA_TOKEN_FILES_LLMC_HEADER_H_

#include <array>

#include "apogee/data/token_files/token_bytes.h"

namespace apogee::data {

inline constexpr int64_t kLlmcHeaderBytes = 1024;
// What the header's int32 can count.
inline constexpr int64_t kLlmcMaxTokens = (int64_t{1} << 31) - 1;

struct LlmcHeader {
  TokenType type = TokenType::kU16;
  int64_t num_tokens = 0;
};

// Whether a file with this first number is meant to be llm.c's.
bool IsLlmcMagic(uint32_t magic);
// DataLoss, with file, field, value and what would be right, unless header and size agree.
absl::StatusOr<LlmcHeader> ReadLlmcHeader(const RandomBytes& file);
std::array<std::byte, kLlmcHeaderBytes> FormatLlmcHeader(const LlmcHeader& header);
// The id that begins documents in files of llm.c's own scripts.
int64_t LlmcEndOfText(TokenType type);

}  // namespace apogee::data

#endif  // APOGEE_DATA_TOKEN_FILES_LLMC_HEADER_H_
