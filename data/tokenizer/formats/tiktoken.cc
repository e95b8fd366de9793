// SPDX-License-Identifier: Apache-2.0

#include "apogee/data/tokenizer/formats/tiktoken.h"

#include <absl/strings/escaping.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <utility>
#include <vector>

#include "apogee/core/text/json_reader.h"
#include "apogee/core/text/utf8.h"
#include "apogee/data/tokenizer/bpe/bpe_tokenizer.h"

namespace apogee::data {
namespace {

// The longest tokens of known files have 128 bytes.
constexpr size_t kMaxTokenBytes = 512;
// Meta's file for Llama 3 has this many ranks.
constexpr size_t kLlama3Ranks = 128000;

struct Rank {
  std::string token;
  int64_t rank;
};

// RFC 4648 with padding. Empty if it is not that, or of no byte.
std::string FromBase64(std::string_view text) {
  std::string bytes;
  // Abseil also takes white space and no padding.
  const bool is_same = absl::Base64Unescape(absl::string_view(text.data(), text.size()), &bytes) &&
                       absl::Base64Escape(bytes) == text;
  return is_same ? bytes : "";
}

// Empty if the line is none of ranks.
std::optional<Rank> ReadLine(std::string_view line) {
  const size_t space = line.find(' ');
  if (space == line.npos) return std::nullopt;
  Rank rank{FromBase64(line.substr(0, space)), 0};
  const char* end = line.data() + line.size();
  const auto [rest, error] = std::from_chars(line.data() + space + 1, end, rank.rank);
  if (rank.token.empty() || error != std::errc() || rest != end || rank.rank < 0) {
    return std::nullopt;
  }
  return rank;
}

std::string_view FirstLine(std::string_view text) {
  std::string_view line = text.substr(0, text.find('\n'));
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

absl::StatusOr<std::vector<Rank>> ReadRanks(std::string_view text) {
  std::vector<Rank> ranks;
  for (int64_t number = 1; !text.empty(); ++number) {
    const std::string_view line = FirstLine(text);
    const size_t newline = text.find('\n');
    text = newline == text.npos ? std::string_view() : text.substr(newline + 1);
    if (line.empty()) continue;
    std::optional<Rank> rank = ReadLine(line);
    if (!rank) {
      return InvalidArgument("line ", number, ": ", Shortened(std::string(line)),
                             " is not a token in base64, a space and a rank");
    }
    if (rank->token.size() > kMaxTokenBytes) {
      return InvalidArgument("line ", number, ": the token has more than ",
                             static_cast<int64_t>(kMaxTokenBytes), " bytes");
    }
    ranks.push_back(*std::move(rank));
  }
  return ranks;
}

// The names of Llama 3's special tokens, in the order of their ids.
std::vector<std::string> Llama3Names() {
  std::vector<std::string> names = {"<|begin_of_text|>", "<|end_of_text|>"};
  int reserved = 0;
  const auto reserve = [&](int count) {
    for (int i = 0; i < count; ++i) {
      names.push_back("<|reserved_special_token_" + std::to_string(reserved++) + "|>");
    }
  };
  reserve(4);
  names.insert(names.end(), {"<|start_header_id|>", "<|end_header_id|>"});
  reserve(1);
  names.push_back("<|eot_id|>");
  reserve(246);
  return names;
}

absl::Status PlaceTokens(const std::vector<Rank>& ranks, const std::vector<std::string>& special,
                         BpeParts& parts) {
  const int64_t max_rank = 2 * static_cast<int64_t>(ranks.size()) + 1024;
  int64_t size = 0;
  for (const Rank& rank : ranks) {
    if (rank.rank >= max_rank) {
      return InvalidArgument("the rank ", rank.rank,
                             " is out of range: ", static_cast<int64_t>(ranks.size()),
                             " tokens have ranks below ", max_rank);
    }
    size = std::max(size, rank.rank + 1);
  }
  parts.tokens = TokenTable(static_cast<size_t>(size) + special.size());
  for (const Rank& rank : ranks) {
    if (!parts.tokens.Set(static_cast<int32_t>(rank.rank), rank.token)) {
      return InvalidArgument("the rank ", rank.rank, " is there twice");
    }
  }
  std::set<std::string> names;
  for (const std::string& name : special) {
    if (name.empty() || !IsUtf8(name) || !names.insert(name).second) {
      return InvalidArgument("a special token is empty, no UTF-8 or there twice: ",
                             Shortened(name));
    }
    AddedToken token;
    token.id = static_cast<int32_t>(size++);
    token.text = name;
    token.special = true;
    parts.tokens.Set(token.id, name, false);
    parts.added.push_back(std::move(token));
  }
  if (const int32_t twice = parts.tokens.Index(); twice != TokenTable::kNone) {
    return InvalidArgument("the token of rank ", twice, " is there twice");
  }
  for (int byte = 0; byte < 256; ++byte) {
    const char text = static_cast<char>(byte);
    if (parts.tokens.Find({&text, 1}) == TokenTable::kNone) {
      return InvalidArgument("there is no token of the single byte ", byte,
                             "; every byte needs one");
    }
  }
  return absl::OkStatus();
}

void FindMerges(const std::vector<Rank>& ranks, BpeParts& parts) {
  struct Pair {
    int32_t left, right, token;
  };
  std::vector<Pair> pairs;
  for (const auto& [text, rank] : ranks) {
    for (size_t cut = 1; cut < text.size(); ++cut) {
      const std::string_view token = text;
      const int32_t left = parts.tokens.Find(token.substr(0, cut));
      if (left == TokenTable::kNone) continue;
      const int32_t right = parts.tokens.Find(token.substr(cut));
      if (right != TokenTable::kNone) pairs.push_back({left, right, static_cast<int32_t>(rank)});
    }
  }
  parts.merges = MergeTable(pairs.size());
  for (const Pair& pair : pairs) {
    parts.merges.Insert(pair.left, pair.right, {static_cast<uint32_t>(pair.token), pair.token});
  }
}

absl::StatusOr<TokenizerPtr> Build(std::string_view text, const TiktokenOptions& options) {
  BpeParts parts;
  const std::optional<PieceRule> rule =
      options.pattern.empty() ? PieceRule::kLlama3 : RuleOfPattern(options.pattern);
  if (!rule) {
    return InvalidArgument("the pattern ", Shortened(options.pattern),
                           " is none of GPT-2, Llama 3 and Qwen2");
  }
  parts.rule = *rule;
  if (CodePointClasses::Get() == nullptr) {
    return InvalidArgument("the pattern divides a text by kinds of characters, and ",
                           kNeedsUtf8proc);
  }
  parts.kind = "tiktoken";
  parts.ignore_merges = true;
  parts.decoder = {{.kind = DecoderKind::kByteLevel}};
  APOGEE_ASSIGN_OR_RETURN(const std::vector<Rank> ranks, ReadRanks(text));
  std::vector<std::string> special;
  if (options.special_tokens) {
    special = *options.special_tokens;
  } else if (ranks.size() == kLlama3Ranks) {
    special = Llama3Names();
  } else {
    special = {"<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|start_header_id|>",
               "<|end_header_id|>"};
  }
  APOGEE_RETURN_IF_ERROR(PlaceTokens(ranks, special, parts));
  FindMerges(ranks, parts);
  return std::make_shared<const BpeTokenizer>(std::move(parts));
}

}  // namespace

bool LooksLikeTiktoken(std::string_view text) { return ReadLine(FirstLine(text)).has_value(); }

absl::StatusOr<TokenizerPtr> ParseTiktoken(std::string_view text, const std::string& path,
                                           const TiktokenOptions& options) {
  absl::StatusOr<TokenizerPtr> tokenizer = Build(text, options);
  if (!tokenizer.ok()) {
    return InvalidArgument("tokenizer: ", path, ": ", Message(tokenizer.status()));
  }
  return tokenizer;
}

}  // namespace apogee::data
