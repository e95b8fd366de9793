// SPDX-License-Identifier: Apache-2.0

// Byte-pair encoding against a slow one that is written here from the definition, on random
// vocabularies and texts: short and long pieces, with and without a pre-tokenizer.
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "apogee/data/tokenizer/bpe/train_bpe.h"
#include "apogee/data/tokenizer/formats/tiktoken.h"
#include "apogee/data/tokenizer/formats/tokenizer_json.h"
#include "apogee/data/tokenizer/unicode/code_points.h"
#include "apogee/tests/data/tokenizer_json_text.h"

namespace apogee::data {
namespace bpe_test {

using Ranks = std::map<std::pair<std::string, std::string>, size_t>;
using Random = std::mt19937;

size_t Below(Random& random, size_t limit) { return random() % limit; }

// The lowest rank, of equal ones the first pair, merges until none has a rank.
std::vector<std::string> SlowMerge(std::vector<std::string> parts, const Ranks& ranks) {
  while (true) {
    size_t best = parts.size(), best_rank = SIZE_MAX;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto found = ranks.find({parts[i], parts[i + 1]});
      if (found == ranks.end() || found->second >= best_rank) continue;
      best = i;
      best_rank = found->second;
    }
    if (best == parts.size()) return parts;
    parts[best] += parts[best + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

struct RandomModel {
  TokenizerText text = ByteLevelText();
  Ranks ranks;
  std::map<std::string, int32_t> id_of;

  // Merges of a few letters, in an order that training would not give.
  RandomModel(Random& random, size_t num_merges) {
    std::vector<std::string> tokens;
    for (const char* letter : {"a", "b", "c", "d", "Ġ"}) tokens.emplace_back(letter);
    for (size_t id = 0; id < text.vocab.size(); ++id) {
      id_of[text.vocab[id]] = static_cast<int32_t>(id);
    }
    while (ranks.size() < num_merges) {
      const std::string left = tokens[Below(random, tokens.size())];
      const std::string right = tokens[Below(random, tokens.size())];
      if (left.size() + right.size() > 12 || id_of.contains(left + right)) continue;
      id_of[left + right] = static_cast<int32_t>(text.vocab.size());
      ranks.emplace(std::pair(left, right), ranks.size());
      text.Merge(left, right);
      tokens.push_back(left + right);
    }
  }
  std::vector<int32_t> SlowIds(const std::string& piece) const {
    std::vector<std::string> parts;
    for (const char& c : piece) parts.push_back(NameOfBytes({&c, 1}));
    std::vector<int32_t> ids;
    for (const std::string& part : SlowMerge(parts, ranks)) ids.push_back(id_of.at(part));
    return ids;
  }
};

std::string RandomText(Random& random, size_t size, const std::string& letters) {
  std::string text;
  while (text.size() < size) text += letters[Below(random, letters.size())];
  return text;
}

std::vector<int32_t> Ids(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<int32_t> ids;
  tokenizer.Encode(text, ids);
  return ids;
}

TEST(Bpe, OnePieceOfAnyLengthAgreesWithTheDefinition) {
  Random random(1);
  for (int round = 0; round < 20; ++round) {
    RandomModel model(random, 1 + Below(random, 60));
    model.text.pre_tokenizer =
        R"({"type": "ByteLevel", "add_prefix_space": false, "use_regex": false})";
    const TokenizerPtr tokenizer = ValueOrThrow(ParseTokenizerJson(model.text.Json(), "random"));
    for (const size_t size : {1, 2, 3, 7, 20, 47, 48, 49, 300, 1000}) {
      if (size == 1000 && round >= 4) continue;  // the slow one takes long
      const std::string text = RandomText(random, size, round % 2 == 0 ? "abcd " : "ab");
      EXPECT_EQ(Ids(*tokenizer, text), model.SlowIds(text)) << text;
      EXPECT_EQ(Ids(*tokenizer, text), model.SlowIds(text)) << "again: " << text;
      EXPECT_EQ(tokenizer->Decode(Ids(*tokenizer, text)), text);
    }
  }
}

TEST(Bpe, PiecesAreMergedOneByOne) {
  if (CodePointClasses::Get() == nullptr) GTEST_SKIP() << "without libutf8proc";
  Random random(2);
  for (int round = 0; round < 10; ++round) {
    const RandomModel model(random, 60);
    const TokenizerPtr tokenizer = ValueOrThrow(ParseTokenizerJson(model.text.Json(), "random"));
    // Words of letters, each with the space before it.
    std::vector<int32_t> slow;
    std::string text;
    for (int word = 0; word < 200; ++word) {
      const std::string piece =
          (word == 0 ? "" : " ") + RandomText(random, 1 + Below(random, 30), "abcd");
      const std::vector<int32_t> ids = model.SlowIds(piece);
      slow.insert(slow.end(), ids.begin(), ids.end());
      text += piece;
    }
    EXPECT_EQ(Ids(*tokenizer, text), slow);
  }
}

std::vector<int32_t> IdsByCuts(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<int32_t> ids;
  while (!text.empty()) {
    const std::string_view window = text.substr(0, 1000);
    const size_t cut = window.size() == text.size() ? window.size() : tokenizer.SafeCut(window);
    if (cut == 0) return {};
    tokenizer.Encode(window.substr(0, cut), ids);
    text.remove_prefix(cut);
  }
  return ids;
}

// SafeCut against a text that is short enough to be encoded at once, then a long text, which is
// encoded in parts, against SafeCut.
TEST(Bpe, PartsOfALongTextGiveTheSameIds) {
  if (CodePointClasses::Get() == nullptr) GTEST_SKIP() << "without libutf8proc";
  Random random(3);
  RandomModel model(random, 60);
  model.text.normalizer = R"({"type": "NFC"})";
  model.text.added_tokens =
      R"([{"id": 316, "content": "<r>", "single_word": false, "lstrip": true, "rstrip": true,
          "normalized": false, "special": true}])";
  const TokenizerPtr tokenizer = ValueOrThrow(ParseTokenizerJson(model.text.Json(), "random"));
  std::string text;
  while (text.size() < 200000) {
    constexpr const char* kParts[] = {"ab", " ", "  ", "\n", "<r>", "d", "\xE9", "e\xCC\x81", "1"};
    text += kParts[Below(random, std::size(kParts))];
  }
  EXPECT_EQ(Ids(*tokenizer, text), IdsByCuts(*tokenizer, text));
  const std::string longer = text + text + text;
  EXPECT_EQ(Ids(*tokenizer, longer), IdsByCuts(*tokenizer, longer));
}

// The same vocabulary without a normalizer takes the normalised text, which has no space to cut at.
TEST(Bpe, PartsOfALongTextArePrefixedOnce) {
  Random random(8);
  RandomModel model(random, 60);
  model.text.pre_tokenizer =
      R"({"type": "ByteLevel", "add_prefix_space": false, "use_regex": false})";
  const TokenizerPtr plain = ValueOrThrow(ParseTokenizerJson(model.text.Json(), "random"));
  model.text.normalizer = R"({"type": "Sequence", "normalizers": [
      {"type": "Prepend", "prepend": "_"},
      {"type": "Replace", "pattern": {"String": " "}, "content": "_"}]})";
  const TokenizerPtr tokenizer = ValueOrThrow(ParseTokenizerJson(model.text.Json(), "random"));
  const std::string text = RandomText(random, 600000, "abcd    ");
  std::string normalised = "_" + text;
  std::replace(normalised.begin(), normalised.end(), ' ', '_');
  EXPECT_EQ(Ids(*tokenizer, text), Ids(*plain, normalised));
  EXPECT_EQ(tokenizer->SafeCut(text), 0u);
}

// Short pieces are kept with their ids. A NUL at the end makes another piece.
TEST(Bpe, PiecesThatDifferByANulAreDifferent) {
  if (CodePointClasses::Get() == nullptr) GTEST_SKIP() << "without libutf8proc";
  const TokenizerPtr tokenizer = ValueOrThrow(ParseTokenizerJson(ByteLevelText().Json(), "bytes"));
  for (const size_t length : {1, 7, 8, 15, 16, 22, 23, 24}) {
    const std::string marks(length, '!');
    const std::string text = marks + "a" + marks + std::string(1, '\0') + "a" + marks + "?";
    EXPECT_EQ(Ids(*tokenizer, text), std::vector<int32_t>(text.begin(), text.end())) << length;
  }
}

TEST(Bpe, ThreadsShareOneTokenizer) {
  if (CodePointClasses::Get() == nullptr) GTEST_SKIP() << "without libutf8proc";
  Random random(4);
  const RandomModel model(random, 60);
  const TokenizerPtr tokenizer = ValueOrThrow(ParseTokenizerJson(model.text.Json(), "random"));
  const std::string text = RandomText(random, 20000, "abcd  ");
  const std::vector<int32_t> alone = Ids(*tokenizer, text);
  std::atomic<int> same = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] { same += Ids(*tokenizer, text) == alone; });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(same, 4);
}

std::string Base64(const std::string& bytes) {
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t bits = 0;
    for (size_t j = 0; j < 3; ++j) {
      bits = bits << 8 | (i + j < bytes.size() ? static_cast<unsigned char>(bytes[i + j]) : 0u);
    }
    for (size_t j = 0; j < 4; ++j) {
      text += i + j > bytes.size() ? '=' : kDigits[bits >> (18 - 6 * j) & 63];
    }
  }
  return text;
}

// The rank of a pair is that of its text, whichever way the text is divided.
TEST(Bpe, TiktokenMergesByTheRankOfTheText) {
  if (CodePointClasses::Get() == nullptr) GTEST_SKIP() << "without libutf8proc";
  Random random(5);
  for (int round = 0; round < 10; ++round) {
    std::map<std::string, int32_t> ranks;
    std::string file;
    for (int byte = 0; byte < 256; ++byte) {
      const std::string text(1, static_cast<char>(byte));
      ranks[text] = byte;
      file += Base64(text) + " " + std::to_string(byte) + "\n";
    }
    while (ranks.size() < 300) {
      const std::string text = RandomText(random, 2 + Below(random, 5), "abc ");
      if (!ranks.emplace(text, static_cast<int32_t>(ranks.size())).second) continue;
      file += Base64(text) + " " + std::to_string(ranks.size() - 1) + "\n";
    }
    const TokenizerPtr tokenizer = ValueOrThrow(ParseTiktoken(file, "random", {}));
    for (int i = 0; i < 30; ++i) {
      const std::string piece = " " + RandomText(random, 1 + Below(random, 40), "abc");
      std::vector<std::string> parts;
      if (ranks.contains(piece)) {
        parts = {piece};
      } else {
        for (const char c : piece) parts.emplace_back(1, c);
      }
      while (true) {
        size_t best = parts.size();
        int32_t best_rank = INT32_MAX;
        for (size_t k = 0; k + 1 < parts.size(); ++k) {
          const auto found = ranks.find(parts[k] + parts[k + 1]);
          if (found == ranks.end() || found->second >= best_rank) continue;
          best = k;
          best_rank = found->second;
        }
        if (best == parts.size()) break;
        parts[best] += parts[best + 1];
        parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(best) + 1);
      }
      std::vector<int32_t> slow;
      for (const std::string& part : parts) slow.push_back(ranks.at(part));
      EXPECT_EQ(Ids(*tokenizer, piece), slow) << piece;
    }
  }
}

// Characters that are no token become bytes, and what is between does not hinder a merge.
TEST(Bpe, CharactersWithBytesAsFallback) {
  Random random(6);
  TokenizerText text;
  text.pre_tokenizer = "null";
  text.model = R"("type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true)";
  text.normalizer = R"({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
      {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]})";
  text.decoder = R"({"type": "Sequence", "decoders": [
      {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
      {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]})";
  text.vocab.emplace_back("<unk>");
  for (int byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof(name), "<0x%02X>", static_cast<unsigned>(byte));
    text.vocab.emplace_back(name);
  }
  std::vector<std::string> tokens = {"a", "b", "▁", "é"};
  text.vocab.insert(text.vocab.end(), tokens.begin(), tokens.end());
  std::set<std::string> known(tokens.begin(), tokens.end());
  Ranks ranks;
  while (ranks.size() < 25) {
    const std::string left = tokens[Below(random, tokens.size())];
    const std::string right = tokens[Below(random, tokens.size())];
    if (!known.insert(left + right).second) continue;
    ranks.emplace(std::pair(left, right), ranks.size());
    text.Merge(left, right);
    tokens.push_back(left + right);
  }
  const TokenizerPtr tokenizer = ValueOrThrow(ParseTokenizerJson(text.Json(), "random"));
  for (int round = 0; round < 200; ++round) {
    const std::vector<std::string> letters = {"a", "b", " ", "é", "x", "ж"};
    std::string plain;
    std::vector<std::string> parts = {"▁"};
    for (size_t i = 1 + Below(random, 60); i > 0; --i) {
      const std::string letter = letters[Below(random, letters.size())];
      plain += letter;
      if (letter == " " || known.contains(letter)) {
        parts.push_back(letter == " " ? "▁" : letter);
        continue;
      }
      for (const char c : letter) {
        parts.push_back(text.vocab[1 + static_cast<size_t>(static_cast<unsigned char>(c))]);
      }
    }
    std::vector<std::string> names;
    for (const int32_t id : Ids(*tokenizer, plain))
      names.push_back(text.vocab[static_cast<size_t>(id)]);
    EXPECT_EQ(names, SlowMerge(parts, ranks)) << plain;
    EXPECT_EQ(tokenizer->Decode(Ids(*tokenizer, plain)), plain);
  }
}

TEST(Bpe, TrainingTakesTheMostFrequentPair) {
  if (CodePointClasses::Get() == nullptr) GTEST_SKIP() << "without libutf8proc";
  // Pieces: "ab" twice, " ab" three times, " cd" twice, " x" once. The pair a b occurs five times,
  // then Ġ ab three times; c d and Ġ c occur twice each, and c has a smaller id than Ġ.
  const TrainedBpe trained = ValueOrThrow(TrainBpe("ab ab ab ab\nab cd cd x", {.vocab_size = 262}));
  EXPECT_EQ(trained.vocab_size, 261);
  const TokenizerPtr tokenizer = ValueOrThrow(ParseTokenizerJson(trained.json, "trained"));
  EXPECT_EQ(tokenizer->IdOf("ab"), 256);
  EXPECT_EQ(tokenizer->IdOf("Ġab"), 257);
  EXPECT_EQ(tokenizer->IdOf("cd"), 258);
  EXPECT_EQ(tokenizer->IdOf("Ġcd"), 259);
  EXPECT_EQ(tokenizer->IdOf("<|endoftext|>"), 260);
  EXPECT_EQ(tokenizer->end_of_text(), 260);
  EXPECT_EQ(Ids(*tokenizer, "ab cd<|endoftext|>"), (std::vector<int32_t>{256, 259, 260}));
  for (const TrainBpeOptions& wrong :
       {TrainBpeOptions{.vocab_size = 256}, TrainBpeOptions{.pattern = "gpt4"},
        TrainBpeOptions{.special_tokens = {"<s>", "<s>"}}, TrainBpeOptions{.min_count = 0}}) {
    EXPECT_EQ(TrainBpe("a", wrong).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

// Each merge is the most frequent pair of the whole text, counted anew.
TEST(Bpe, TrainingCountsAsTheDefinition) {
  if (CodePointClasses::Get() == nullptr) GTEST_SKIP() << "without libutf8proc";
  Random random(7);
  std::string text;
  std::vector<std::vector<std::string>> pieces;
  for (int word = 0; word < 400; ++word) {
    const std::string piece = " " + RandomText(random, 1 + Below(random, 8), "abc");
    text += piece;
    std::vector<std::string>& parts = pieces.emplace_back();
    for (const char& c : piece) parts.push_back(NameOfBytes({&c, 1}));
  }
  const TrainedBpe trained = ValueOrThrow(TrainBpe(text, {.vocab_size = 287}));
  const TokenizerPtr tokenizer = ValueOrThrow(ParseTokenizerJson(trained.json, "trained"));
  for (int32_t id = 256; id < 286; ++id) {
    std::map<std::pair<std::string, std::string>, int> counts;
    for (const auto& parts : pieces) {
      for (size_t i = 0; i + 1 < parts.size(); ++i) ++counts[{parts[i], parts[i + 1]}];
    }
    // The token that was made must be one of the most frequent pairs: merge it everywhere.
    int most = 0;
    for (const auto& [pair, count] : counts) most = std::max(most, count);
    std::pair<std::string, std::string> chosen;
    for (const auto& [pair, count] : counts) {
      if (count == most && tokenizer->IdOf(pair.first + pair.second) == id) chosen = pair;
    }
    ASSERT_NE(chosen.first, "") << "token " << id;
    for (auto& parts : pieces) parts = SlowMerge(parts, {{chosen, 0}});
  }
}

}  // namespace bpe_test
}  // namespace apogee::data
