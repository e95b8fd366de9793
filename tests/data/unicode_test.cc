// SPDX-License-Identifier: Apache-2.0

// UTF-8 with errors, kinds of characters, NFC, and the pieces of the three patterns.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "apogee/core/text/utf8.h"
#include "apogee/data/tokenizer/bpe/pre_tokenizer.h"
#include "apogee/data/tokenizer/unicode/code_points.h"

namespace apogee::data {
namespace unicode_test {

std::string Readable(const std::string& text) {
  std::string copy;
  return std::string(ReadableUtf8(text, copy));
}

// What a decoder by the letter of table 3-7 finds: tries every length at each place.
std::string SlowReadable(const std::string& text) {
  const auto is_prefix = [](const std::string& bytes, bool whole) {
    // Whether some code point's encoding begins with `bytes` or, if `whole`, is it.
    const auto byte = [&](size_t i) { return static_cast<unsigned char>(bytes[i]); };
    const unsigned char lead = byte(0);
    size_t length = 0;
    if (lead <= 0x7F) length = 1;
    if (lead >= 0xC2 && lead <= 0xDF) length = 2;
    if (lead >= 0xE0 && lead <= 0xEF) length = 3;
    if (lead >= 0xF0 && lead <= 0xF4) length = 4;
    if (length == 0 || bytes.size() > length || (whole && bytes.size() != length)) return false;
    for (size_t i = 1; i < bytes.size(); ++i) {
      if (byte(i) < 0x80 || byte(i) > 0xBF) return false;
    }
    if (bytes.size() > 1) {
      const int first_two = lead << 8 | byte(1);
      if (lead == 0xE0 && first_two < 0xE0A0) return false;
      if (lead == 0xED && first_two > 0xED9F) return false;
      if (lead == 0xF0 && first_two < 0xF090) return false;
      if (lead == 0xF4 && first_two > 0xF48F) return false;
    }
    return true;
  };
  std::string result;
  for (size_t at = 0; at < text.size();) {
    size_t size = 1;
    bool found = false;
    for (size_t length = 1; length <= 4 && at + length <= text.size(); ++length) {
      const std::string bytes = text.substr(at, length);
      if (is_prefix(bytes, true)) {
        found = true;
        size = length;
        break;
      }
      if (is_prefix(bytes, false)) size = length;
    }
    result += found ? text.substr(at, size) : "\xEF\xBF\xBD";
    at += size;
  }
  return result;
}

TEST(Utf8, MaximalSubpartsAreReplaced) {
  const std::string r = "\xEF\xBF\xBD";
  EXPECT_EQ(Readable("plain"), "plain");
  EXPECT_EQ(Readable("\x80"), r);
  EXPECT_EQ(Readable("\xE2\x82"), r);  // cut short at the end
  EXPECT_EQ(Readable("\xE2\x82z"), r + "z");
  EXPECT_EQ(Readable("\xED\xA0\x80"), r + r + r);  // a surrogate
  EXPECT_EQ(Readable("\xC0\xAF"), r + r);          // overlong
  EXPECT_EQ(Readable("\xF0\x9F\x98"), r);
  EXPECT_EQ(Readable("\xF4\x90\x80\x80"), r + r + r + r);  // beyond U+10FFFF
  // The example of the Unicode Standard, table 3-11.
  EXPECT_EQ(Readable("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), r + r + r + r + "A");
}

// All sequences of three bytes that matter, with and without a fourth.
TEST(Utf8, AgreesWithTheTableOnAllLeadsAndTails) {
  const std::vector<int> tails = {0x00, 0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC2, 0xE1};
  for (int lead = 0x7F; lead < 256; ++lead) {
    for (const int a : tails) {
      for (const int b : tails) {
        for (const int c : tails) {
          std::string text = "xxxxxxxxxx";
          for (const int byte : {lead, a, b, c}) text += static_cast<char>(byte);
          ASSERT_EQ(Readable(text), SlowReadable(text)) << lead << " " << a << " " << b << " " << c;
        }
      }
    }
  }
}

std::vector<std::string> Pieces(PieceRule rule, const std::string& text) {
  const PreTokenizer split(rule);
  std::vector<std::string> pieces;
  for (size_t at = 0; at < text.size();) {
    const size_t end = split.PieceEnd(text, at);
    pieces.push_back(text.substr(at, end - at));
    at = end;
  }
  return pieces;
}

using Texts = std::vector<std::string>;

class UnicodeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (CodePointClasses::Get() == nullptr) GTEST_SKIP() << "without libutf8proc";
  }
};

TEST_F(UnicodeTest, Kinds) {
  using Classes = CodePointClasses;
  const Classes& classes = *Classes::Get();
  const auto has = [&](uint32_t code, uint8_t kind) { return (classes.Of(code) & kind) != 0; };
  for (const uint32_t code :
       {0x41u, 0xE9u, 0x3B1u, 0x4E2Du, 0xAC00u, 0x1D400u, 0x1C89u, 0x2EBF0u}) {
    EXPECT_TRUE(has(code, Classes::kLetter)) << code;
    EXPECT_FALSE(has(code, Classes::kNumber | Classes::kSpace)) << code;
  }
  for (const uint32_t code : {0x30u, 0xB2u, 0x2160u, 0x660u, 0x10D40u}) {
    EXPECT_TRUE(has(code, Classes::kNumber)) << code;
  }
  for (const uint32_t code : {0x9u, 0xBu, 0x1Cu, 0x20u, 0x85u, 0xA0u, 0x1680u, 0x2028u, 0x3000u}) {
    EXPECT_EQ(has(code, Classes::kSpace), code != 0x1C) << code;
  }
  for (const uint32_t code : {0x200Bu, 0xFEFFu, 0x180Eu, 0x0u, 0x1F600u, 0x10FFFFu}) {
    EXPECT_FALSE(has(code, Classes::kLetter | Classes::kNumber | Classes::kSpace)) << code;
  }
  EXPECT_TRUE(has('_', Classes::kWord));
  EXPECT_TRUE(has(0x301, Classes::kWord));
  EXPECT_FALSE(has('-', Classes::kWord));
  EXPECT_FALSE(has(0xB2, Classes::kWord));
}

std::string Nfc(const std::string& text) {
  std::string copy;
  return std::string(CodePointClasses::Get()->Nfc(text, copy));
}

TEST_F(UnicodeTest, NormalFormC) {
  EXPECT_EQ(Nfc("plain \xC3\xA9"), "plain \xC3\xA9");
  EXPECT_EQ(Nfc("xe\xCC\x81y e\xCC\x81"), "x\xC3\xA9y \xC3\xA9");
  EXPECT_EQ(Nfc("\xE2\x84\xAB"), "\xC3\x85");                              // Angstrom sign
  EXPECT_EQ(Nfc("\xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8"), "\xEA\xB0\x81");  // Hangul
  EXPECT_EQ(Nfc("q\xCC\x87\xCC\xA3"), "q\xCC\xA3\xCC\x87");                // reordered
  EXPECT_EQ(Nfc("\xE0\xA5\x98"), "\xE0\xA4\x95\xE0\xA4\xBC");              // composition exclusion
  // The second part is no combining mark, though it composes.
  EXPECT_EQ(Nfc("x\u0BC6\u0BD7\u0BC6\u0BBE"), "x\u0BCC\u0BCA");
  EXPECT_EQ(Nfc("\u09C7\u09D7\u1025\u102E"), "\u09CC\u1026");
  EXPECT_EQ(Nfc("\U000114B9\U000114BD"), "\U000114BE");
  std::string copy;
  const std::string same = "unchanged \xC3\xA9";
  EXPECT_EQ(CodePointClasses::Get()->Nfc(same, copy).data(), same.data());
}

// What tokenizers 0.23.3 gives: marks that are newer than Unicode 9 stay in their places.
TEST_F(UnicodeTest, NormalFormCLeavesNewMarks) {
  // U+07FD has class 220, the other marks 230, 220 (U+0323) and 230 (U+0301).
  EXPECT_EQ(Nfc("q\u0350\u07FD"), "q\u0350\u07FD");
  EXPECT_EQ(Nfc("e\u07FD\u0301"), "e\u07FD\u0301");
  EXPECT_EQ(Nfc("q\u07FD\u0301\u0323"), "q\u07FD\u0323\u0301");
  EXPECT_EQ(Nfc("e\u0301\u07FDe\u0301"), "\u00E9\u07FD\u00E9");
  EXPECT_EQ(Nfc("\U00011935\U00011930"), "\U00011935\U00011930");
}

TEST_F(UnicodeTest, PiecesOfGpt2) {
  const PieceRule rule = PieceRule::kGpt2;
  EXPECT_EQ(Pieces(rule, "it's I'VE 12345!!\n"),
            (Texts{"it", "'s", " I", "'", "VE", " 12345", "!!", "\n"}));
  EXPECT_EQ(Pieces(rule, "a   b\t\tc  "), (Texts{"a", "  ", " b", "\t", "\t", "c", "  "}));
  EXPECT_EQ(Pieces(rule, "a\n\n b"), (Texts{"a", "\n\n", " b"}));
  EXPECT_EQ(Pieces(rule, " \xC2\xA0x"), (Texts{" ", "\xC2\xA0", "x"}));
  EXPECT_EQ(Pieces(rule, "'"), (Texts{"'"}));
  EXPECT_EQ(Pieces(rule, "'l"), (Texts{"'", "l"}));
}

TEST_F(UnicodeTest, PiecesOfLlama3AndQwen2) {
  EXPECT_EQ(Pieces(PieceRule::kLlama3, "I'VE '\xC5\xBF 12345"),
            (Texts{"I", "'VE", " '", "\xC5\xBF", " ", "123", "45"}));
  EXPECT_EQ(Pieces(PieceRule::kLlama3, "'\xC5\xBFx"), (Texts{"'\xC5\xBF", "x"}));
  EXPECT_EQ(Pieces(PieceRule::kLlama3, "a.b\tc (x)\n\n  \n y"),
            (Texts{"a", ".b", "\tc", " (", "x", ")\n\n", "  \n", " y"}));
  EXPECT_EQ(Pieces(PieceRule::kLlama3, "\r\nx  "), (Texts{"\r\n", "x", "  "}));
  EXPECT_EQ(Pieces(PieceRule::kLlama3, "x   !"), (Texts{"x", "  ", " !"}));
  EXPECT_EQ(Pieces(PieceRule::kQwen2, "12a 3"), (Texts{"1", "2", "a", " ", "3"}));
}

}  // namespace unicode_test
}  // namespace apogee::data
