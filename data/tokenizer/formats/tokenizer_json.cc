// SPDX-License-Identifier: Apache-2.0

#include "apogee/data/tokenizer/formats/tokenizer_json.h"

#include <algorithm>
#include <set>
#include <utility>

#include "apogee/core/text/json_reader.h"
#include "apogee/data/tokenizer/bpe/bpe_tokenizer.h"
#include "apogee/data/tokenizer/bpe/byte_alphabet.h"
#include "apogee/data/tokenizer/formats/json_steps.h"

namespace apogee::data {
namespace {

// Ids may have holes, but not so many that a short file makes a long table.
int64_t MaxTokens(size_t num_tokens) { return 2 * static_cast<int64_t>(num_tokens) + 1024; }

std::string Quoted(std::string_view text) {
  std::string quoted = "\"";
  quoted += Shortened(std::string(text));
  return quoted += '"';
}

// What Decode makes of a token: the bytes that its name stands for.
struct TokenText {
  std::string text;
  bool mergeable;  // the name is of the alphabet, so merges can make it
};
TokenText TextOf(std::string_view name, bool byte_level) {
  if (!byte_level) return {std::string(name), true};
  std::optional<std::string> bytes = BytesOfName(name);
  if (!bytes) return {std::string(name), false};
  return {std::move(*bytes), true};
}

// The vocabulary of the model, then the added tokens that it does not have.
absl::Status ReadTokens(const TokenizerJson& json, BpeParts& parts) {
  const int64_t max_tokens = MaxTokens(json.vocab.size() + parts.added.size());
  int64_t size = 0;
  const auto check_id = [&](std::string_view name, int64_t id) -> absl::Status {
    if (id >= max_tokens) {
      return InvalidArgument("the id ", id, " of ", Quoted(name),
                             " is out of range: ", static_cast<int64_t>(json.vocab.size()),
                             " tokens have ids below ", max_tokens);
    }
    size = std::max(size, id + 1);
    return absl::OkStatus();
  };
  for (const TokenizerJson::Token& token : json.vocab) {
    APOGEE_RETURN_IF_ERROR(check_id(json.Name(token), token.id));
  }
  for (const AddedToken& token : parts.added) {
    APOGEE_RETURN_IF_ERROR(check_id(token.text, token.id));
  }
  parts.tokens = TokenTable(static_cast<size_t>(size));
  for (const TokenizerJson::Token& token : json.vocab) {
    const TokenText text = TextOf(json.Name(token), parts.byte_level);
    if (!parts.tokens.Set(static_cast<int32_t>(token.id), text.text, text.mergeable)) {
      return InvalidArgument("model.vocab gives the id ", token.id, " to two tokens, one of them ",
                             Quoted(json.Name(token)));
    }
  }
  if (const int32_t twice = parts.tokens.Index(); twice != TokenTable::kNone) {
    return InvalidArgument("model.vocab has the token of id ", twice, " twice");
  }
  return absl::OkStatus();
}

// Hugging Face's library gives an added token that is not in the vocabulary the next free id,
// whatever the file says. A file with another id would not mean the same there.
absl::Status PlaceAddedTokens(const TokenizerJson& json, BpeParts& parts) {
  std::set<std::string_view> names;
  int64_t next = static_cast<int64_t>(json.vocab.size());
  for (const AddedToken& token : parts.added) {
    if (!names.insert(token.text).second) {
      return InvalidArgument("added_tokens has ", Quoted(token.text), " twice");
    }
    const TokenText text = TextOf(token.text, parts.byte_level);
    int64_t known = text.mergeable ? parts.tokens.Find(text.text) : TokenTable::kNone;
    if (!text.mergeable && parts.tokens.contains(token.id) &&
        parts.tokens.Text(token.id) == text.text) {
      known = token.id;  // in the vocabulary, but no bytes merge to it
    }
    const int64_t expected = known != TokenTable::kNone ? known : next;
    if (token.id != expected) {
      return InvalidArgument(
          "added_tokens gives ", Quoted(token.text), " the id ", token.id, ", but ",
          known != TokenTable::kNone ? "model.vocab gives it " : "the next is ", expected);
    }
    next = std::max<int64_t>(next, expected + 1);
    if (known == TokenTable::kNone && !parts.tokens.Set(token.id, text.text, false)) {
      return InvalidArgument("added_tokens gives ", Quoted(token.text), " the id ", token.id,
                             ", which another token has");
    }
  }
  std::array<std::string, 2> copy;
  std::set<std::string> normalized;
  for (const AddedToken& token : parts.added) {
    if (!token.normalized) continue;
    const std::string text(Normalize(parts.normalizer, token.text, copy));
    if (text.empty() || !normalized.insert(text).second) {
      return InvalidArgument("added_tokens: ", Quoted(token.text), " becomes by the normalizer ",
                             text.empty() ? "nothing" : "the same as another one");
    }
  }
  for (const auto* ids : {&parts.prefix, &parts.suffix}) {
    for (const int32_t id : *ids) {
      if (!parts.tokens.contains(id)) {
        return InvalidArgument("post_processor: there is no token ", id);
      }
    }
  }
  return absl::OkStatus();
}

absl::Status ReadMerges(const TokenizerJson& json, BpeParts& parts) {
  parts.merges = MergeTable(json.merges.size());
  std::string joined;
  for (size_t rank = 0; rank < json.merges.size(); ++rank) {
    const TokenizerJson::Merge& merge = json.merges[rank];
    joined = json.Left(merge);
    joined += json.Right(merge);
    const auto find = [&](std::string_view name) -> int32_t {
      const TokenText text = TextOf(name, parts.byte_level);
      return text.mergeable ? parts.tokens.Find(text.text) : TokenTable::kNone;
    };
    const int32_t left = find(json.Left(merge)), right = find(json.Right(merge));
    const int32_t token = find(joined);
    const auto place = [rank] { return "model.merges[" + std::to_string(rank) + "]"; };
    if (left == TokenTable::kNone || right == TokenTable::kNone || token == TokenTable::kNone) {
      return InvalidArgument(place(), ": ",
                             Quoted(left == TokenTable::kNone    ? json.Left(merge)
                                    : right == TokenTable::kNone ? json.Right(merge)
                                                                 : std::string_view(joined)),
                             " is not in model.vocab");
    }
    if (!parts.merges.Insert(left, right, {static_cast<uint32_t>(rank), token})) {
      return InvalidArgument(place(), " is there twice");
    }
    if (parts.rule == PieceRule::kWhole) parts.pairs.push_back({left, right});
  }
  return absl::OkStatus();
}

absl::Status ReadFallback(JsonFields& model, BpeParts& parts) {
  parts.byte_fallback = model.BooleanOr("byte_fallback", false);
  if (const JsonNode* unknown = model.Optional("unk_token")) {
    const TokenText text = TextOf(unknown->text, parts.byte_level);
    parts.unknown = unknown->kind == JsonNode::Kind::kText && text.mergeable
                        ? parts.tokens.Find(text.text)
                        : TokenTable::kNone;
    if (parts.unknown == TokenTable::kNone) {
      model.Refuse("unk_token", "expected null or a token of model.vocab");
    }
  }
  if (!parts.byte_fallback) return absl::OkStatus();
  for (int byte = 0; byte < 256; ++byte) {
    constexpr char kDigits[] = "0123456789ABCDEF";
    const char raw = static_cast<char>(byte);
    const std::string name = std::string("<0x") + kDigits[byte / 16] + kDigits[byte % 16] + ">";
    if (parts.tokens.Find(parts.byte_level ? std::string_view(&raw, 1) : name) ==
        TokenTable::kNone) {
      model.Refuse("byte_fallback", "model.vocab lacks " + name);
      break;
    }
  }
  return absl::OkStatus();
}

absl::Status ReadModel(const JsonNode& node, const TokenizerJson& json, BpeParts& parts) {
  JsonFields model(node, "model");
  model.ExpectOneOf("type", {"\"BPE\""});
  model.ExpectOneOf("dropout", {"null"});
  model.ExpectOneOf("continuing_subword_prefix", {"null", "\"\""});
  model.ExpectOneOf("end_of_word_suffix", {"null", "\"\""});
  parts.fuse_unknown = model.BooleanOr("fuse_unk", false);
  parts.ignore_merges = model.BooleanOr("ignore_merges", false);
  model.Object("vocab");
  model.List("merges");
  // So that an unknown field is named rather than what follows from it.
  for (const char* later : {"byte_fallback", "unk_token"}) model.Optional(later);
  APOGEE_RETURN_IF_ERROR(model.Finish());
  APOGEE_RETURN_IF_ERROR(ReadTokens(json, parts));
  APOGEE_RETURN_IF_ERROR(ReadFallback(model, parts));
  APOGEE_RETURN_IF_ERROR(model.Finish());
  return ReadMerges(json, parts);
}

// Why this build, without libutf8proc, cannot do it; nullptr if it can.
const char* NeedsUnicode(const BpeParts& parts) {
  if (CodePointClasses::Get() != nullptr) return nullptr;
  if (parts.rule != PieceRule::kWhole) return "pre_tokenizer divides a text by kinds of characters";
  for (const NormalizerStep& step : parts.normalizer) {
    if (step.kind == NormalizerKind::kNfc) return "normalizer is NFC";
  }
  for (const AddedToken& token : parts.added) {
    if (token.lstrip || token.rstrip || token.single_word) {
      return "added_tokens has lstrip, rstrip or single_word";
    }
  }
  return nullptr;
}

absl::StatusOr<TokenizerPtr> Build(const TokenizerJson& json) {
  JsonFields root(json.root, "the file");
  root.ExpectOneOf("version", {"\"1.0\""});
  root.ExpectOneOf("truncation", {"null"});
  root.ExpectOneOf("padding", {"null"});
  const JsonNode& model = root.Object("model");
  static const std::vector<JsonNode> none;
  const std::vector<JsonNode>& added = root.Has("added_tokens") ? root.List("added_tokens") : none;
  const JsonNode* const normalizer = root.Optional("normalizer");
  const JsonNode* const pre_tokenizer = root.Optional("pre_tokenizer");
  const JsonNode* const decoder = root.Optional("decoder");
  const JsonNode* const post_processor = root.Optional("post_processor");
  APOGEE_RETURN_IF_ERROR(root.Finish());

  BpeParts parts;
  parts.byte_level = false;
  APOGEE_RETURN_IF_ERROR(ReadNormalizer(normalizer, "normalizer", parts));
  APOGEE_RETURN_IF_ERROR(ReadPreTokenizer(pre_tokenizer, "pre_tokenizer", parts));
  if (parts.rule != PieceRule::kWhole && !parts.byte_level) {
    return InvalidArgument("pre_tokenizer is a Split without ByteLevel; Apogee does not do it");
  }
  APOGEE_RETURN_IF_ERROR(ReadDecoder(decoder, "decoder", parts));
  APOGEE_RETURN_IF_ERROR(ReadPostProcessor(post_processor, "post_processor", parts));
  APOGEE_ASSIGN_OR_RETURN(parts.added, ReadAddedTokens(added));
  if (const char* why = NeedsUnicode(parts)) {
    return InvalidArgument(why, ", and ", kNeedsUtf8proc);
  }
  APOGEE_RETURN_IF_ERROR(ReadModel(model, json, parts));
  APOGEE_RETURN_IF_ERROR(PlaceAddedTokens(json, parts));
  parts.kind = parts.byte_level ? "byte-level BPE" : "BPE";
  return std::make_shared<const BpeTokenizer>(std::move(parts));
}

}  // namespace

absl::StatusOr<TokenizerPtr> ParseTokenizerJson(const std::string& text, const std::string& path) {
  absl::StatusOr<TokenizerJson> json = ReadTokenizerJson(text);
  absl::StatusOr<TokenizerPtr> tokenizer =
      json.ok() ? Build(*json) : absl::StatusOr<TokenizerPtr>(json.status());
  if (!tokenizer.ok()) {
    return InvalidArgument("tokenizer: ", path, ": ", Message(tokenizer.status()));
  }
  return tokenizer;
}

}  // namespace apogee::data
