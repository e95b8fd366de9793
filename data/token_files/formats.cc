// SPDX-License-Identifier: Apache-2.0

#include "apogee/core/text/text.h"
#include "apogee/data/token_files/token_file.h"

namespace apogee::data {
namespace {

constexpr TokenFormat kFormats[] = {TokenFormat::kLlmc, TokenFormat::kRawU16, TokenFormat::kRawU32,
                                    TokenFormat::kMegatron};

}  // namespace

const char* Name(TokenFormat format) {
  switch (format) {
    case TokenFormat::kLlmc:
      return "llmc";
    case TokenFormat::kRawU16:
      return "raw_u16";
    case TokenFormat::kRawU32:
      return "raw_u32";
    case TokenFormat::kMegatron:
      return "megatron";
  }
  return "";
}

absl::StatusOr<TokenFormat> ParseTokenFormat(const std::string& name) {
  std::vector<std::string> known;
  for (const TokenFormat format : kFormats) {
    if (name == Name(format)) return format;
    known.push_back(Name(format));
  }
  return InvalidArgument(UnknownName("token format", name, known));
}

bool BeginsWithEndOfText(TokenFormat format) { return format == TokenFormat::kLlmc; }

}  // namespace apogee::data
