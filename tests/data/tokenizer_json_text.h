// SPDX-License-Identifier: Apache-2.0

// The text of a tokenizer.json for tests; each part can be replaced.
//
//   TokenizerText text = ByteLevelText({{"Ġ", "t"}});
//   text.normalizer = R"({"type": "NFC"})";
//   ParseTokenizerJson(text.Json(), "file");
#ifndef APOGEE_TESTS_DATA_TOKENIZER_JSON_TEXT_H_
#define APOGEE_TESTS_DATA_TOKENIZER_JSON_TEXT_H_

#include <string>
#include <utility>
#include <vector>

#include "apogee/data/tokenizer/bpe/byte_alphabet.h"

namespace apogee::data {

struct TokenizerText {
  std::string head = R"("version": "1.0", "truncation": null, "padding": null)";
  std::string added_tokens = "[]";
  std::string normalizer = "null";
  std::string pre_tokenizer = R"({"type": "ByteLevel", "add_prefix_space": false})";
  std::string post_processor = "null";
  std::string decoder = R"({"type": "ByteLevel"})";
  std::string model = R"("type": "BPE")";  // fields other than these
  std::vector<std::string> vocab;          // in the order of their ids
  std::string merges;

  static std::string Quoted(const std::string& text) {
    std::string quoted = "\"";
    for (const char c : text) {
      if (c == '"' || c == '\\') quoted += '\\';
      quoted += c;
    }
    return quoted + '"';
  }
  std::string VocabJson() const {
    std::string json;
    for (size_t id = 0; id < vocab.size(); ++id) {
      json += (id == 0 ? "" : ",") + Quoted(vocab[id]) + ":" + std::to_string(id);
    }
    return "{" + json + "}";
  }
  std::string Json() const {
    return "{" + head + ",\"added_tokens\":" + added_tokens + ",\"normalizer\":" + normalizer +
           ",\"pre_tokenizer\":" + pre_tokenizer + ",\"post_processor\":" + post_processor +
           ",\"decoder\":" + decoder + ",\"model\":{" + model + ",\"vocab\":" + VocabJson() +
           ",\"merges\":[" + merges + "]}}";
  }
  // Adds the merge and its token.
  void Merge(const std::string& left, const std::string& right) {
    merges += (merges.empty() ? "[" : ",[") + Quoted(left) + "," + Quoted(right) + "]";
    vocab.push_back(left + right);
  }
};

// Every byte is a token, its id the byte's value.
inline TokenizerText ByteLevelText() {
  TokenizerText text;
  for (int byte = 0; byte < 256; ++byte) {
    const char raw = static_cast<char>(byte);
    text.vocab.push_back(NameOfBytes({&raw, 1}));
  }
  return text;
}

}  // namespace apogee::data

#endif  // APOGEE_TESTS_DATA_TOKENIZER_JSON_TEXT_H_
