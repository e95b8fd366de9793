// SPDX-License-Identifier: Apache-2.0

// Replays recorded tokenizers: ids of texts, texts of ids, special tokens, and the pieces into
// which a text is divided.
#include <filesystem>

#include "apogee/core/text/utf8.h"
#include "apogee/data/tokenizer/bpe/pre_tokenizer.h"
#include "apogee/data/tokenizer/load_tokenizer.h"
#include "apogee/verify/cases.h"

namespace apogee::verify {
namespace {

namespace fs = std::filesystem;
using data::Tokenizer;
using data::TokenizerPtr;

// The object of that name; empty if there is none.
const Json& Part(const Json& golden, const char* name) {
  static const Json& none = *new Json(Json::object());
  const auto found = golden.find(name);
  return found == golden.end() ? none : *found;
}

std::string FromHex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  }
  return bytes;
}

class TokenizerReplay {
 public:
  TokenizerReplay(const Tokenizer& tokenizer, Comparison& comparison)
      : tokenizer_(tokenizer), comparison_(comparison) {}

  std::vector<int32_t> Ids(const std::string& text) const {
    std::vector<int32_t> ids;
    tokenizer_.Encode(text, ids);
    return ids;
  }
  void SameIds(const std::vector<int32_t>& ids, const Json& golden, const std::string& where) {
    const auto expected = golden.get<std::vector<int32_t>>();
    comparison_.Elements({ids.begin(), ids.end()}, {expected.begin(), expected.end()}, {}, where);
  }
  void SameText(const std::string& text, const std::string& golden, const std::string& where) {
    if (text != golden) comparison_.Fail(where + " is \"" + text + "\", not \"" + golden + "\"");
    comparison_.Number(text == golden, true, {}, where);
  }

  void Texts(const Json& golden, const std::vector<std::string>& texts) {
    const Json& ids = golden.at("ids");
    const Json& decoded = Part(golden, "decoded_if_not_equal");
    for (size_t i = 0; i < texts.size(); ++i) {
      const std::string where = "text " + std::to_string(i);
      const std::vector<int32_t> own = Ids(texts[i]);
      SameIds(own, ids.at(i), where);
      SameText(tokenizer_.Decode(ids.at(i).get<std::vector<int32_t>>()),
               decoded.value(std::to_string(i), texts[i]), where + ", decoded");
    }
    for (const auto& [index, expected] : Part(golden, "ids_with_special").items()) {
      std::vector<int32_t> own = tokenizer_.prefix();
      tokenizer_.Encode(texts.at(std::stoul(index)), own);
      const std::vector<int32_t> suffix = tokenizer_.suffix();
      own.insert(own.end(), suffix.begin(), suffix.end());
      SameIds(own, expected, "text " + index + ", with special tokens");
    }
    for (const auto& [index, expected] : Part(golden, "decoded_skipping_special").items()) {
      const auto recorded = ids.at(std::stoul(index)).get<std::vector<int32_t>>();
      SameText(tokenizer_.Decode(recorded, /*skip_special=*/true), expected,
               "text " + index + ", decoded without special tokens");
    }
  }

  void Bytes(const Json& golden, const std::vector<std::string>& hex) {
    const Json& lossy = Part(golden, "hex_ids_of_lossy_text");
    for (size_t i = 0; i < hex.size(); ++i) {
      const std::string where = "bytes " + hex[i];
      const std::string bytes = FromHex(hex[i]);
      SameIds(Ids(bytes), golden.at("hex_ids").at(i), where);
      if (lossy.contains(std::to_string(i))) {
        std::string copy;
        SameIds(Ids(std::string(ReadableUtf8(bytes, copy))), lossy[std::to_string(i)],
                where + ", replaced");
      }
    }
    for (const Json& item : Part(golden, "decode_only")) {
      SameText(tokenizer_.Decode(item.at("ids").get<std::vector<int32_t>>()),
               item.at("text").get<std::string>(), "ids " + item.at("ids").dump() + ", decoded");
    }
  }

  void Pieces(const Json& golden, const std::vector<std::string>& texts) {
    const std::optional<data::PieceRule> rule =
        golden.contains("pattern") ? data::RuleOfPattern(golden["pattern"].get<std::string>())
                                   : data::PieceRule::kGpt2;
    APOGEE_CHECK(rule.has_value(), "the pattern is not known");
    const data::PreTokenizer split(*rule);
    const bool is_nfc = golden.value("normalizer", "") == "NFC";
    for (size_t i = 0; i < texts.size(); ++i) {
      std::string copy;
      const std::string_view text =
          is_nfc ? data::CodePointClasses::Get()->Nfc(texts[i], copy) : texts[i];
      std::vector<int32_t> lengths;
      for (size_t at = 0; at < text.size();) {
        const size_t end = split.PieceEnd(text, at);
        lengths.push_back(0);
        while (at < end) {
          ReadCodePoint(text, at);
          ++lengths.back();
        }
      }
      SameIds(lengths, golden.at("piece_lengths").at(i), "text " + std::to_string(i) + ", pieces");
    }
  }

 private:
  const Tokenizer& tokenizer_;
  Comparison& comparison_;
};

// The recorded tokenizer.json, or the tokenizer.model of SentencePiece or tiktoken.
absl::StatusOr<TokenizerPtr> Load(const fs::path& folder, const Json& golden) {
  const fs::path json = folder / "tokenizer.json";
  const std::string path = (fs::exists(json) ? json : folder / "tokenizer.model").string();
  if (golden.at("kind").get<std::string>().rfind("tiktoken", 0) != 0) {
    return data::LoadTokenizer(path);
  }
  data::TiktokenOptions options;
  options.pattern = golden.at("pattern");
  std::vector<std::pair<int64_t, std::string>> special;
  for (const auto& [name, id] : golden.at("special_ids").items()) special.emplace_back(id, name);
  std::ranges::sort(special);
  options.special_tokens.emplace();
  for (const auto& [id, name] : special) options.special_tokens->push_back(name);
  return data::LoadTiktoken(path, options);
}

}  // namespace

Comparison ReplayTokenizer(const std::string& path) {
  const Json golden = ReadJson(path);
  const std::string format = golden.value("format", "");
  APOGEE_CHECK(format == "interop-tokenizer/1", "format is \"", format,
               "\"; known: interop-tokenizer/1");
  const fs::path folder = fs::path(path).parent_path();
  const Json strings = ReadJson((folder / golden.at("strings").get<std::string>()).string());
  const auto texts = strings.at("text").get<std::vector<std::string>>();
  Comparison comparison;
  const absl::StatusOr<TokenizerPtr> loaded = Load(folder, golden);
  if (!loaded.ok() &&
      Message(loaded.status()).find("this build of Apogee has no") != std::string::npos) {
    comparison.Skip(Message(loaded.status()));
    return comparison;
  }
  const TokenizerPtr tokenizer = ValueOrThrow(loaded);
  comparison.Number(static_cast<double>(tokenizer->vocab_size()),
                    golden.at("vocab_size").get<double>(), {}, "vocab_size");
  for (const auto& [name, id] : Part(golden, "special_ids").items()) {
    comparison.Number(tokenizer->IdOf(name).value_or(-1), id.get<double>(), {}, "id of " + name);
  }
  TokenizerReplay replay(*tokenizer, comparison);
  replay.Texts(golden, texts);
  replay.Bytes(golden, strings.at("hex").get<std::vector<std::string>>());
  if (golden.contains("piece_lengths")) replay.Pieces(golden, texts);
  return comparison;
}

}  // namespace apogee::verify
