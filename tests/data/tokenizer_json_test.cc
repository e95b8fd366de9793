// SPDX-License-Identifier: Apache-2.0

// tokenizer.json: added tokens, what is done around the model, and the refusal of all else.
#include "apogee/data/tokenizer/formats/tokenizer_json.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "apogee/data/tokenizer/load_tokenizer.h"
#include "apogee/data/tokenizer/unicode/code_points.h"
#include "apogee/tests/data/tokenizer_json_text.h"
#include "apogee/tests/support/files/temp_dir.h"
#include "apogee/tests/support/message_of.h"

namespace apogee::data {
namespace tokenizer_json_test {

using ::testing::HasSubstr;
using Ids = std::vector<int32_t>;

std::string Problem(const std::string& json) {
  const auto tokenizer = ParseTokenizerJson(json, "a.json");
  if (tokenizer.ok()) return "it was accepted";
  EXPECT_EQ(tokenizer.status().code(), absl::StatusCode::kInvalidArgument);
  return Message(tokenizer.status());
}

TokenizerPtr Parse(const TokenizerText& text) {
  return ValueOrThrow(ParseTokenizerJson(text.Json(), "a.json"));
}

Ids Encode(const Tokenizer& tokenizer, const std::string& text) {
  Ids ids;
  tokenizer.Encode(text, ids);
  return ids;
}

std::string Added(int id, const std::string& content, const std::string& flag = "") {
  std::string json = "{\"id\": " + std::to_string(id) + ", \"content\": \"" + content + "\"";
  for (const char* name : {"single_word", "lstrip", "rstrip", "normalized", "special"}) {
    json += std::string(", \"") + name + "\": " + (flag == name ? "true" : "false");
  }
  return json + "}";
}

class TokenizerJsonTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (CodePointClasses::Get() == nullptr) GTEST_SKIP() << "without libutf8proc";
  }
  TokenizerText text_ = ByteLevelText();
};

TEST_F(TokenizerJsonTest, AddedTokensAreCutOut) {
  text_.added_tokens = "[" + Added(256, "<s>", "special") + "," + Added(257, "<l>", "lstrip") +
                       "," + Added(258, "<r>", "rstrip") + "," + Added(259, "word", "single_word") +
                       "," + Added(260, "<s><s>") + "," + Added('q', "q") + "]";
  const TokenizerPtr tokenizer = Parse(text_);
  EXPECT_EQ(tokenizer->vocab_size(), 261);
  EXPECT_EQ(Encode(*tokenizer, "x<s>y"), (Ids{'x', 256, 'y'}));
  EXPECT_EQ(Encode(*tokenizer, "<s><s><s>"), (Ids{260, 256}));  // the longest first
  EXPECT_EQ(Encode(*tokenizer, "x \t<l> y"), (Ids{'x', 257, ' ', 'y'}));
  EXPECT_EQ(Encode(*tokenizer, "x <r> \xC2\xA0 y"), (Ids{'x', ' ', 258, 'y'}));
  EXPECT_EQ(Encode(*tokenizer, "<r>  <l>"), (Ids{258, 257}));
  EXPECT_EQ(Encode(*tokenizer, "word,word_ \xC3\xA9word"),
            (Ids{259, ',', 'w', 'o', 'r', 'd', '_', ' ', 0xC3, 0xA9, 'w', 'o', 'r', 'd'}));
  EXPECT_EQ(Encode(*tokenizer, "<s"), (Ids{'<', 's'}));
  EXPECT_EQ(tokenizer->Decode(Ids{'x', 256, 257}), "x<s><l>");
  EXPECT_EQ(tokenizer->Decode(Ids{'x', 256, 257}, /*skip_special=*/true), "x<l>");
  EXPECT_EQ(tokenizer->IdOf("<l>"), 257);
  EXPECT_EQ(tokenizer->IdOf("Ġ"), ' ');
  EXPECT_EQ(tokenizer->IdOf("nothing"), std::nullopt);
  EXPECT_EQ(tokenizer->end_of_text(), std::nullopt);
  EXPECT_THAT(testing::MessageOf([&] { tokenizer->Decode(Ids{261}); }),
              HasSubstr("token 261 is outside of [0, 261)"));
}

TEST_F(TokenizerJsonTest, NormalizedTokensAreFoundInTheNormalizedText) {
  text_.normalizer = R"({"type": "NFC"})";
  text_.added_tokens =
      "[" + Added(256, "\xC5\x91", "normalized") + "," + Added(257, "\xC5\xB1") + "]";
  const TokenizerPtr tokenizer = Parse(text_);
  EXPECT_EQ(Encode(*tokenizer, "o\xCC\x8B"), (Ids{256}));
  EXPECT_EQ(Encode(*tokenizer, "\xC5\xB1"), (Ids{257}));
  EXPECT_EQ(Encode(*tokenizer, "u\xCC\x8B"), (Ids{0xC5, 0xB1}));
}

TEST_F(TokenizerJsonTest, IgnoreMergesTakesWholePieces) {
  text_.Merge("a", "b");
  text_.vocab.emplace_back("abc");  // no merge makes it
  EXPECT_EQ(Encode(*Parse(text_), "abc abcd"), (Ids{256, 'c', ' ', 256, 'c', 'd'}));
  text_.model += R"(, "ignore_merges": true)";
  EXPECT_EQ(Encode(*Parse(text_), "abc abcd"), (Ids{257, ' ', 256, 'c', 'd'}));
}

TEST_F(TokenizerJsonTest, PrefixSpaceAndSpecialTokensAround) {
  text_.pre_tokenizer = R"({"type": "ByteLevel", "add_prefix_space": true})";
  text_.added_tokens = "[" + Added(256, "<s>", "special") + "]";
  text_.post_processor = R"({"type": "TemplateProcessing", "pair": [], "single": [
      {"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
      "special_tokens": {"<s>": {"id": "<s>", "ids": [256], "tokens": ["<s>"]}}})";
  const TokenizerPtr tokenizer = Parse(text_);
  EXPECT_EQ(Encode(*tokenizer, "a<s>b<s> c"), (Ids{' ', 'a', 256, ' ', 'b', 256, ' ', 'c'}));
  EXPECT_EQ(Encode(*tokenizer, ""), Ids{});
  EXPECT_EQ(tokenizer->prefix(), (Ids{256}));
  EXPECT_EQ(tokenizer->suffix(), Ids{});
}

// Without a token for a byte, and without an unknown token, the library leaves the byte out.
TEST_F(TokenizerJsonTest, SymbolsWithoutAToken) {
  text_.vocab['!'] = "xx!";
  text_.Merge("a", "b");
  EXPECT_EQ(Encode(*Parse(text_), "(!!)"), (Ids{'(', ')'}));
  text_.vocab.emplace_back("<unk>");
  text_.model += R"(, "unk_token": "<unk>")";
  EXPECT_EQ(Encode(*Parse(text_), "(!!)"), (Ids{'(', 257, 257, ')'}));
  text_.model += R"(, "fuse_unk": true)";
  EXPECT_EQ(Encode(*Parse(text_), "(!!)"), (Ids{'(', 257, ')'}));
}

TEST_F(TokenizerJsonTest, RefusesByName) {
  struct Case {
    std::string TokenizerText::*part;
    const char* value;
    const char* problem;
  };
  using T = TokenizerText;
  const Case cases[] = {
      {&T::head, R"("version": "2.0")", "the file.version is \"2.0\": Apogee does only \"1.0\""},
      {&T::head, R"("truncation": {"max_length": 5})", "the file.truncation is an object"},
      {&T::head, R"("padding": {})", "the file.padding is an object"},
      {&T::head, R"("chat": 1)", "the file.chat (1) is a field that Apogee does not know"},
      {&T::head, R"("version": "1.0", "version": "1.0")", "the field version is given twice"},
      {&T::model, R"("type": "Unigram")", "model.type is \"Unigram\": Apogee does only \"BPE\""},
      {&T::model, R"("dropout": 0.1)", "model.dropout is 0.1"},
      {&T::model, R"("end_of_word_suffix": "</w>")", "model.end_of_word_suffix is \"</w>\""},
      {&T::model, R"("continuing_subword_prefix": "@@")", "model.continuing_subword_prefix"},
      {&T::model, R"("unk_token": "<none>")", "model.unk_token is \"<none>\": expected null or"},
      {&T::model, R"("beam": 3)", "model.beam (3) is a field"},
      {&T::model, R"("fuse_unk": 1)", "model.fuse_unk is 1: expected true or false"},
      {&T::normalizer, R"({"type": "NFKC"})", "normalizer.type is \"NFKC\""},
      {&T::normalizer, R"({"type": "NFC", "x": 1})", "normalizer.x (1) is a field"},
      {&T::normalizer, R"({"type": "Replace", "pattern": {"Regex": "a"}, "content": ""})",
       "no regular expression"},
      {&T::normalizer, R"({"type": "Sequence", "normalizers": [{"type": "Lowercase"}]})",
       "normalizer.normalizers[0].type is \"Lowercase\""},
      {&T::normalizer, "3", "normalizer is 3, expected an object"},
      {&T::pre_tokenizer, R"({"type": "Whitespace"})", "pre_tokenizer.type is \"Whitespace\""},
      {&T::pre_tokenizer, R"({"type": "ByteLevel"})", "pre_tokenizer.add_prefix_space is missing"},
      {&T::pre_tokenizer,
       R"({"type": "Split", "pattern": {"Regex": "\\d"}, "behavior": "Isolated", "invert": false})",
       "pre_tokenizer.pattern.Regex is \"\\d\": Apogee knows the patterns"},
      {&T::pre_tokenizer,
       R"({"type": "Split", "pattern": {"Regex": "\\d"}, "behavior": "Removed", "invert": false})",
       "pre_tokenizer.behavior is \"Removed\""},
      {&T::decoder, "null", "decoder is null"},
      {&T::decoder, R"({"type": "WordPiece"})", "decoder.type is \"WordPiece\""},
      {&T::post_processor, R"({"type": "BertProcessing"})", "post_processor.type"},
      {&T::added_tokens, R"([{"id": 256}])", "added_tokens[0].content is missing"},
      {&T::added_tokens, "3", "the file.added_tokens is 3: expected a list"},
  };
  for (const Case& bad : cases) {
    TokenizerText text = ByteLevelText();
    text.*bad.part = bad.value;
    EXPECT_THAT(Problem(text.Json()), HasSubstr(bad.problem)) << bad.value;
    EXPECT_THAT(Problem(text.Json()), HasSubstr("tokenizer: a.json: "));
  }
}

TEST_F(TokenizerJsonTest, RefusesAVocabularyThatDoesNotFit) {
  const auto with_merges = [](const std::string& merges) {
    TokenizerText text = ByteLevelText();
    text.merges = merges;
    return Problem(text.Json());
  };
  EXPECT_THAT(with_merges(R"(["a", "b"])"), HasSubstr("merges[0]: \"ab\" is not in model.vocab"));
  EXPECT_THAT(with_merges(R"(["zz", "b"])"), HasSubstr("merges[0]: \"zz\" is not in"));
  EXPECT_THAT(with_merges(R"("a b c")"), HasSubstr("is not two parts and a space"));
  EXPECT_THAT(with_merges(R"(["a"])"), HasSubstr("does not have two parts"));
  EXPECT_THAT(with_merges(R"(["a", "b", "c"])"), HasSubstr("does not have two parts"));
  EXPECT_THAT(with_merges("[1, 2]"), HasSubstr("something other than two strings"));
  TokenizerText text = ByteLevelText();
  text.Merge("a", "b");
  text.merges += "," + text.merges;
  EXPECT_THAT(Problem(text.Json()), HasSubstr("model.merges[1] is there twice"));

  const auto with_vocab = [](const std::string& vocab) {
    return Problem(R"({"decoder": {"type": "ByteLevel"}, "pre_tokenizer": {"type": "ByteLevel",
        "add_prefix_space": false}, "model": {"vocab": {)" +
                   vocab + R"(}, "merges": []}})");
  };
  EXPECT_THAT(with_vocab(R"("a": 0, "b": 0)"), HasSubstr("gives the id 0 to two tokens"));
  EXPECT_THAT(with_vocab(R"("a": 0, "a": 1)"), HasSubstr("has the token of id 1 twice"));
  EXPECT_THAT(with_vocab(R"("a": 2000000000)"), HasSubstr("the id 2000000000 of \"a\" is out of"));
  EXPECT_THAT(with_vocab(R"("a": -1)"), HasSubstr("a negative id"));
  EXPECT_THAT(with_vocab(R"("a": 0.5)"), HasSubstr("an id that is no whole number"));
  EXPECT_THAT(with_vocab(R"("a": 1e400)"), HasSubstr("not valid JSON"));
  EXPECT_THAT(with_vocab(R"("": 0)"), HasSubstr("a token without a name"));
  EXPECT_EQ(with_vocab(R"("a": 0, "b": 9)"), "it was accepted");

  const auto with_added = [](const std::string& added) {
    TokenizerText bytes = ByteLevelText();
    bytes.added_tokens = "[" + added + "]";
    return Problem(bytes.Json());
  };
  EXPECT_THAT(with_added(Added(300, "<s>")), HasSubstr("the id 300, but the next is 256"));
  EXPECT_THAT(with_added(Added(5, "a")), HasSubstr("the id 5, but model.vocab gives it 97"));
  EXPECT_THAT(with_added(Added(256, "<s>") + "," + Added(257, "<s>")), HasSubstr("\"<s>\" twice"));
  EXPECT_THAT(with_added(Added(-1, "<s>")), HasSubstr("added_tokens[0].id is -1"));
  EXPECT_THAT(with_added(Added(256, "")), HasSubstr("a token has a text"));

  text = ByteLevelText();
  text.pre_tokenizer = "null";
  text.model = R"("byte_fallback": true)";
  EXPECT_THAT(Problem(text.Json()), HasSubstr("byte_fallback is true: model.vocab lacks <0x00>"));
}

TEST(TokenizerJson, RefusesTextsThatAreNoTokenizers) {
  EXPECT_THAT(Problem(""), HasSubstr("not valid JSON"));
  EXPECT_THAT(Problem("{"), HasSubstr("not valid JSON"));
  EXPECT_THAT(Problem("[]"), HasSubstr("the file is a list, expected an object"));
  EXPECT_THAT(Problem("{}"), HasSubstr("the file.model is missing"));
  EXPECT_THAT(Problem("{\"a\":" + std::string(1000, '[')), HasSubstr("nested too deeply"));
  std::string many = "{\"a\": [0";
  for (int i = 0; i < 1000000; ++i) many += ",0";
  EXPECT_THAT(Problem(many), HasSubstr("too many tiny entries"));
}

TEST(LoadTokenizer, RecognisesFilesByTheirContent) {
  const testing::TempDir dir;
  const auto problem = [&](const std::string& text) {
    const auto tokenizer = LoadTokenizer(dir.Write("a.model", text));
    return tokenizer.ok() ? (*tokenizer)->description() : Message(tokenizer.status());
  };
  EXPECT_THAT(problem(" {}"), HasSubstr("the file.model is missing"));
  EXPECT_THAT(problem(""), HasSubstr("is no tokenizer: expected a tokenizer.json, ranks of"));
  EXPECT_THAT(problem("plain text"), HasSubstr("is no tokenizer"));
  EXPECT_THAT(problem("\x0A\xFFgarbage"), HasSubstr("a.model: "));
  EXPECT_EQ(LoadTokenizer(dir / "none").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(LoadTokenizer("/dev/null").status().code(), absl::StatusCode::kInvalidArgument);
  const TokenizerPtr bytes = ValueOrThrow(LoadTokenizer("byte"));
  EXPECT_EQ(bytes->vocab_size(), 256);
  EXPECT_EQ(Encode(*bytes, std::string("a\0\xFF", 3)), (Ids{97, 0, 255}));
  EXPECT_EQ(bytes->Decode(Ids{97, 0, 255}), std::string("a\0\xFF", 3));
  EXPECT_THAT(testing::MessageOf([&] { bytes->Decode(Ids{256}); }), HasSubstr("is not a byte"));
  EXPECT_EQ(bytes->SafeCut("abc"), 3u);
}

TEST(LoadTokenizer, RefusesDamagedRanks) {
  if (CodePointClasses::Get() == nullptr) GTEST_SKIP() << "without libutf8proc";
  const testing::TempDir dir;
  const auto problem = [&](const std::string& text, const TiktokenOptions& options = {}) {
    const auto tokenizer = LoadTiktoken(dir.Write("ranks", text), options);
    return tokenizer.ok() ? "it was accepted" : Message(tokenizer.status());
  };
  EXPECT_THAT(problem("IQ== 0\n"), HasSubstr("no token of the single byte 0"));
  EXPECT_THAT(problem("IQ== 0\nIg== x\n"), HasSubstr("line 2: Ig== x is not a token in base64"));
  EXPECT_THAT(problem("IQ= 0\n"), HasSubstr("line 1: "));
  EXPECT_THAT(problem("IQ== -1\n"), HasSubstr("line 1: "));
  EXPECT_THAT(problem("IQ== 0\nIg== 0\n"), HasSubstr("the rank 0 is there twice"));
  EXPECT_THAT(problem("IQ== 0\nIQ== 1\n"), HasSubstr("the token of rank 1 is there twice"));
  EXPECT_THAT(problem("IQ== 99999999\n"), HasSubstr("the rank 99999999 is out of range"));
  EXPECT_THAT(problem("IQ== 0\n", {.pattern = "\\w+"}), HasSubstr("the pattern \\w+ is none of"));
  EXPECT_THAT(problem("IQ== 0\n", {.special_tokens = {{"a", "a"}}}), HasSubstr("there twice: a"));
  EXPECT_THAT(problem(std::string(4000, 'A') + " 0\n"), HasSubstr("more than 512 bytes"));
}

}  // namespace tokenizer_json_test
}  // namespace apogee::data
