// SPDX-License-Identifier: Apache-2.0

#include "apogee/data/tokenizer/bpe/train_bpe.h"

#include <algorithm>
#include <array>
#include <set>
#include <unordered_map>
#include <utility>

#include "apogee/core/text/text.h"
#include "apogee/core/text/utf8.h"
#include "apogee/data/tokenizer/bpe/byte_alphabet.h"
#include "apogee/data/tokenizer/bpe/pair_counts.h"
#include "apogee/data/tokenizer/bpe/pre_tokenizer.h"

namespace apogee::data {
namespace {

constexpr int64_t kMaxVocabSize = int64_t{1} << 24;

std::optional<PieceRule> RuleOfName(const std::string& name) {
  if (name == "gpt2") return PieceRule::kGpt2;
  if (name == "llama3") return PieceRule::kLlama3;
  if (name == "qwen2") return PieceRule::kQwen2;
  return std::nullopt;
}

std::string PreTokenizerJson(PieceRule rule) {
  const bool is_gpt2 = rule == PieceRule::kGpt2;
  const std::string byte_level =
      std::string(R"({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, )") +
      "\"use_regex\": " + (is_gpt2 ? "true}" : "false}");
  if (is_gpt2) return byte_level;
  return R"({"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": )" +
         JsonQuoted(PatternOf(rule)) + R"(}, "behavior": "Isolated", "invert": false}, )" +
         byte_level + "]}";
}

// The token texts in the alphabet, in the order of their ids, and the merges.
struct Model {
  std::vector<std::string> names;
  std::vector<std::array<int32_t, 2>> merges;
};

std::string TokenizerJsonText(const Model& model, const TrainBpeOptions& options, PieceRule rule) {
  std::string json = "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n";
  json += "  \"added_tokens\": [";
  size_t id = model.names.size();
  for (const std::string& name : options.special_tokens) {
    json += id == model.names.size() ? "\n" : ",\n";
    json += "    {\"id\": " + std::to_string(id++) + ", \"content\": " + JsonQuoted(name) +
            ", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, "
            "\"normalized\": false, \"special\": true}";
  }
  json += "\n  ],\n  \"normalizer\": null,\n  \"pre_tokenizer\": " + PreTokenizerJson(rule);
  json += ",\n  \"post_processor\": null,\n  \"decoder\": {\"type\": \"ByteLevel\", ";
  json += "\"add_prefix_space\": true, \"trim_offsets\": true, \"use_regex\": true},\n";
  json += "  \"model\": {\n    \"type\": \"BPE\",\n    \"dropout\": null,\n";
  json += "    \"unk_token\": null,\n    \"continuing_subword_prefix\": null,\n";
  json += "    \"end_of_word_suffix\": null,\n    \"fuse_unk\": false,\n";
  json += "    \"byte_fallback\": false,\n    \"ignore_merges\": false,\n    \"vocab\": {";
  for (size_t i = 0; i < model.names.size(); ++i) {
    json += i == 0 ? "\n" : ",\n";
    json += "      " + JsonQuoted(model.names[i]) + ": " + std::to_string(i);
  }
  json += "\n    },\n    \"merges\": [";
  for (size_t i = 0; i < model.merges.size(); ++i) {
    json += i == 0 ? "\n" : ",\n";
    json += "      [" + JsonQuoted(model.names[static_cast<size_t>(model.merges[i][0])]) + ", " +
            JsonQuoted(model.names[static_cast<size_t>(model.merges[i][1])]) + "]";
  }
  return json + "\n    ]\n  }\n}\n";
}

absl::Status Check(const TrainBpeOptions& options) {
  const int64_t least = 256 + static_cast<int64_t>(options.special_tokens.size());
  if (options.vocab_size < least || options.vocab_size > kMaxVocabSize) {
    return InvalidArgument("vocab_size is ", options.vocab_size, "; expected ", least,
                           " (the bytes and the special tokens) to ", kMaxVocabSize);
  }
  if (options.min_count < 1) {
    return InvalidArgument("min_count is ", options.min_count, "; expected at least 1");
  }
  std::set<std::string> names;
  for (const std::string& name : options.special_tokens) {
    const bool has_control = std::ranges::any_of(
        name, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; });
    // A shorter name could be the text of a merged token.
    if (name.size() < 3 || has_control || !IsUtf8(name) || !names.insert(name).second) {
      return InvalidArgument("a special token is ", name,
                             "; expected different names of at least 3 characters, in UTF-8, "
                             "without control characters");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TrainedBpe> TrainBpe(std::string_view text, const TrainBpeOptions& options) {
  const std::optional<PieceRule> rule = RuleOfName(options.pattern);
  if (!rule) {
    return InvalidArgument("the pattern is ", options.pattern, "; expected gpt2, llama3 or qwen2");
  }
  APOGEE_RETURN_IF_ERROR(Check(options));
  if (CodePointClasses::Get() == nullptr) {
    return InvalidArgument("training divides the text by kinds of characters, and ",
                           kNeedsUtf8proc);
  }

  std::string copy;
  text = ReadableUtf8(text, copy);
  const PreTokenizer split(*rule);
  std::unordered_map<std::string_view, int64_t> counts;
  for (size_t at = 0; at < text.size();) {
    const size_t end = split.PieceEnd(text, at);
    ++counts[text.substr(at, end - at)];
    at = end;
  }

  // Bytes have the ids of GPT-2: in the order of their characters in the alphabet.
  Model model;
  std::unordered_map<std::string, int32_t> id_of;
  for (int byte = 0; byte < 256; ++byte) {
    const char raw = static_cast<char>(byte);
    model.names.push_back(NameOfBytes({&raw, 1}));
  }
  std::ranges::sort(model.names);  // UTF-8 sorts as the code points
  std::array<int32_t, 256> id_of_byte;
  for (size_t id = 0; id < 256; ++id) {
    const std::string bytes = *BytesOfName(model.names[id]);
    id_of_byte[static_cast<unsigned char>(bytes[0])] = static_cast<int32_t>(id);
    id_of.emplace(model.names[id], static_cast<int32_t>(id));
  }
  PairCounts pairs;
  for (const auto& [piece, count] : counts) {
    std::vector<int32_t> tokens;
    for (const char c : piece) tokens.push_back(id_of_byte[static_cast<unsigned char>(c)]);
    if (tokens.size() > 1) pairs.AddPiece(std::move(tokens), count);
  }

  const auto num_merged = static_cast<size_t>(options.vocab_size) - options.special_tokens.size();
  while (model.names.size() < num_merged) {
    const std::optional<PairCounts::Pair> best = pairs.TakeMostFrequent();
    if (!best || best->count < options.min_count) break;
    const std::string name = model.names[static_cast<size_t>(best->left)] +
                             model.names[static_cast<size_t>(best->right)];
    // Two pairs may make the same text, which is one token.
    const auto [it, is_new] = id_of.emplace(name, static_cast<int32_t>(model.names.size()));
    if (is_new) model.names.push_back(name);
    model.merges.push_back({best->left, best->right});
    pairs.Merge(*best, it->second);
  }
  TrainedBpe trained;
  trained.vocab_size = static_cast<int64_t>(model.names.size() + options.special_tokens.size());
  trained.json = TokenizerJsonText(model, options, *rule);
  return trained;
}

}  // namespace apogee::data
