// SPDX-License-Identifier: Apache-2.0

// JsonReader takes what another JSON library takes, and finds the same in it.
#include "apogee/core/text/json_reader.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "apogee/tests/support/files/mutate_text.h"

namespace apogee {
namespace json_reader_test {

using apogee::testing::MutatedText;
using Json = nlohmann::json;
using ::testing::HasSubstr;

// Makes a document of the events.
class Builder : public JsonHandler {
 public:
  Json document;

  bool Null() override { return Put(nullptr); }
  bool Boolean(bool value) override { return Put(value); }
  bool Negative(int64_t value) override { return Put(value); }
  bool Unsigned(uint64_t value) override { return Put(value); }
  bool Real(double value) override { return Put(value); }
  bool String(std::string& value) override { return Put(value); }
  bool StartObject() override { return Open(Json::object()); }
  bool Key(std::string& key) override {
    keys_.back() = key;
    return true;
  }
  bool EndObject() override { return Close(); }
  bool StartList() override { return Open(Json::array()); }
  bool EndList() override { return Close(); }

 private:
  bool Open(Json value) {
    open_.push_back(std::move(value));
    keys_.emplace_back();
    return true;
  }
  bool Close() {
    Json value = std::move(open_.back());
    open_.pop_back();
    keys_.pop_back();
    return Put(std::move(value));
  }
  bool Put(Json value) {
    if (open_.empty()) {
      document = std::move(value);
    } else if (open_.back().is_array()) {
      open_.back().push_back(std::move(value));
    } else {
      open_.back()[keys_.back()] = std::move(value);
    }
    return true;
  }

  std::vector<Json> open_;
  std::vector<std::string> keys_;
};

TEST(JsonReaderTest, AsAnotherLibraryReadsIt) {
  const std::vector<std::string> texts = {
      "7",
      "null",
      "\"x\"",
      "[]",
      " [ ] ",
      "{}",
      R"({"a": [1, -2, 3.5, 1e-400, -0, 0.0, true, false, null], "b": {"c": {"d": []}}})",
      R"([18446744073709551615, 18446744073709551616, -9223372036854775808, 1E+2, 2e-3])",
      R"(["\u0000\ud83d\ude00\b\f\n\r\t\/\\\"", "ä😀"])",
      "[[[[[[[[1]]]]], {}]]]"};
  const std::vector<std::string> tokens = {"\\u",
                                           "\\ud800",
                                           "\\udc00",
                                           "e",
                                           "E+",
                                           ".",
                                           "-",
                                           "+",
                                           "0",
                                           "1e999",
                                           "nul",
                                           "tru",
                                           "[",
                                           "]",
                                           "{",
                                           "}",
                                           ",",
                                           ":",
                                           "\"",
                                           "\x1f",
                                           "\x7f",
                                           "\xff",
                                           "\xC0\x80",
                                           "\xED\xA0\x80",
                                           "\xC3\xA4",
                                           "\xF4\x90\x80\x80",
                                           "\xF0\x90\x80\x80",
                                           "\xE0\x80\x80",
                                           " ",
                                           "\n",
                                           "\v",
                                           "Infinity",
                                           "NaN"};
  std::mt19937_64 random(5);
  int accepted = 0, refused = 0;
  for (const std::string& text : texts) {
    for (int i = 0; i < 4000; ++i) {
      const std::string changed = i == 0 ? text : MutatedText(text, tokens, random);
      // The other one passes over a byte order mark, and takes a NUL for the end.
      if (changed.starts_with("\xEF\xBB\xBF") || changed.find('\0') != std::string::npos) continue;
      Builder builder;
      JsonReader reader(changed);
      const bool got = reader.Read(builder);
      ASSERT_EQ(got, Json::accept(changed)) << changed << "\n" << reader.problem();
      ASSERT_EQ(got, reader.problem().empty()) << changed;
      ++(got ? accepted : refused);
      if (got) {
        ASSERT_EQ(builder.document, Json::parse(changed)) << changed;
        ASSERT_EQ(builder.document.dump(), Json::parse(changed).dump()) << changed;
      }
    }
  }
  EXPECT_GT(accepted, 3000);
  EXPECT_GT(refused, 10'000);
}

TEST(JsonReaderTest, SaysWhere) {
  Builder builder;
  const std::string wrong = "{\"a\": 1, b}";
  JsonReader reader(wrong);
  EXPECT_FALSE(reader.Read(builder));
  EXPECT_EQ(reader.byte(), 10u);
  EXPECT_EQ(reader.problem(), "not valid JSON: expected a key");
  for (const char* text : {"", "[", "[1,", "\"a", "\"\\", "\"\\u00", "tr", "-", "\xEF\xBB\xBF{}"}) {
    const std::string kept = text;
    JsonReader other(kept);
    EXPECT_FALSE(other.Read(builder)) << text;
    EXPECT_THAT(other.problem(), HasSubstr("not valid JSON: ")) << text;
  }
}

// The default handler stops at once, and that is no problem of the text.
TEST(JsonReaderTest, HandlersStopIt) {
  JsonHandler handler;
  const std::string text = "[1, 2";
  JsonReader reader(text);
  EXPECT_FALSE(reader.Read(handler));
  EXPECT_EQ(reader.byte(), 1u);
  EXPECT_EQ(reader.problem(), "");
}

TEST(ParseBudgetTest, CountsWhatIsKept) {
  ParseBudget budget(1000);  // 3,000 bytes and half a MiB
  const size_t all = 3000 + (512 << 10);
  EXPECT_TRUE(budget.Has(all));
  EXPECT_FALSE(budget.Take(all + 1));
  EXPECT_TRUE(budget.Take(all - 100));
  EXPECT_TRUE(budget.TakeText("short"));
  EXPECT_TRUE(budget.Has(100));
  EXPECT_TRUE(budget.TakeText(std::string(59, 'x')));
  EXPECT_FALSE(budget.Has(41));
  std::vector<int64_t> values;
  EXPECT_TRUE(budget.TakeElement(values));
  values.push_back(1);
  EXPECT_TRUE(budget.Has(32));
  EXPECT_FALSE(budget.Has(33));
  EXPECT_EQ(Shortened(std::string(1000, 'x')).size(), 203u);
}

}  // namespace json_reader_test
}  // namespace apogee
