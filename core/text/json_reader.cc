// SPDX-License-Identifier: Apache-2.0

#include "apogee/core/text/json_reader.h"

#include <charconv>
#include <cmath>
#include <cstdlib>

#include "apogee/core/text/utf8.h"

namespace apogee {
namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

std::string Shortened(const std::string& text) {
  constexpr size_t kShown = 200;
  return text.size() <= kShown ? text : text.substr(0, kShown) + "...";
}

bool JsonReader::Fail(const char* problem) {
  problem_ = std::string("not valid JSON: ") + problem;
  return false;
}

void JsonReader::SkipSpace() {
  while (at_ < text_.size() &&
         (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r')) {
    ++at_;
  }
}

bool JsonReader::Read(JsonHandler& handler) {
  do {
    SkipSpace();
    if (at_ == text_.size()) return Fail("the text ends too early");
    const char c = text_[at_++];
    if (c == '}' || c == ']') {
      if (!Close(handler, c)) return false;
    } else if (expect_ == Expect::kCommaOrEnd) {
      if (c != ',') return Fail("expected a comma or the end of a list or object");
      expect_ = is_list_.back() ? Expect::kValue : Expect::kKey;
    } else if (expect_ == Expect::kKey || expect_ == Expect::kKeyOrEnd) {
      if (c != '"') return Fail("expected a key");
      if (!ReadString() || !handler.Key(string_)) return false;
      SkipSpace();
      if (at_ == text_.size() || text_[at_++] != ':') return Fail("expected a colon");
      expect_ = Expect::kValue;
    } else {
      --at_;
      if (!ReadValue(handler)) return false;
    }
  } while (!is_list_.empty());
  SkipSpace();
  if (at_ == text_.size()) return true;
  ++at_;
  return Fail("there is more after the value");
}

bool JsonReader::Close(JsonHandler& handler, char bracket) {
  const bool may_end = expect_ == Expect::kCommaOrEnd || expect_ == Expect::kValueOrEnd ||
                       expect_ == Expect::kKeyOrEnd;
  const bool is_list = bracket == ']';
  if (!may_end || is_list_.empty() || is_list_.back() != is_list) {
    return Fail("a bracket closes what is not open");
  }
  is_list_.pop_back();
  expect_ = Expect::kCommaOrEnd;
  return is_list ? handler.EndList() : handler.EndObject();
}

bool JsonReader::ReadValue(JsonHandler& handler) {
  expect_ = Expect::kCommaOrEnd;
  switch (text_[at_]) {
    case '{':
    case '[': {
      const bool is_list = text_[at_++] == '[';
      is_list_.push_back(is_list);
      expect_ = is_list ? Expect::kValueOrEnd : Expect::kKeyOrEnd;
      return is_list ? handler.StartList() : handler.StartObject();
    }
    case '"':
      ++at_;
      return ReadString() && handler.String(string_);
    case 'n':
      return ReadWord("null") && handler.Null();
    case 't':
      return ReadWord("true") && handler.Boolean(true);
    case 'f':
      return ReadWord("false") && handler.Boolean(false);
    default:
      return ReadNumber(handler);
  }
}

bool JsonReader::ReadWord(const char* word) {
  for (; *word != '\0'; ++word) {
    if (at_ == text_.size()) return Fail("the text ends too early");
    if (text_[at_++] != *word) return Fail("expected null, true or false");
  }
  return true;
}

bool JsonReader::ReadNumber(JsonHandler& handler) {
  const size_t begin = at_;
  const auto is_digit = [this] { return at_ < text_.size() && IsDigit(text_[at_]); };
  const auto take = [this](char a, char b) {
    const bool there = at_ < text_.size() && (text_[at_] == a || text_[at_] == b);
    if (there) ++at_;
    return there;
  };
  const auto no_digit = [this] {
    if (at_ < text_.size()) ++at_;
    return Fail("expected a value, or a digit of a number");
  };
  const bool negative = take('-', '-');
  if (!is_digit()) return no_digit();
  if (text_[at_++] != '0') {
    while (is_digit()) ++at_;
  }
  bool whole = true;
  if (take('.', '.')) {
    whole = false;
    if (!is_digit()) return no_digit();
    while (is_digit()) ++at_;
  }
  if (take('e', 'E')) {
    whole = false;
    take('+', '-');
    if (!is_digit()) return no_digit();
    while (is_digit()) ++at_;
  }
  const char *first = text_.data() + begin, *last = text_.data() + at_;
  if (whole && negative) {
    int64_t value = 0;
    if (std::from_chars(first, last, value).ec == std::errc()) return handler.Negative(value);
  } else if (whole) {
    uint64_t value = 0;
    if (std::from_chars(first, last, value).ec == std::errc()) return handler.Unsigned(value);
  }
  double value = 0;
  if (std::from_chars(first, last, value).ec != std::errc()) {
    value = std::strtod(first, nullptr);  // 0 for a too small number, infinity for a too large one
    if (std::abs(value) > 1) return Fail("a number is too large");
  }
  return handler.Real(value);
}

bool JsonReader::ReadString() {
  size_t end = at_;  // end of the string: reserve exactly the room that it needs
  while (end < text_.size() && text_[end] != '"') end += text_[end] == '\\' ? 2 : 1;
  const size_t length = end > text_.size() ? text_.size() - at_ : end - at_;
  if (length > string_.capacity()) {
    string_ = std::string();
    string_.reserve(length);
  }
  string_.clear();
  while (at_ < text_.size()) {
    const auto c = static_cast<unsigned char>(text_[at_++]);
    if (c == '"') return true;
    if (c < 0x20) return Fail("a control character in a string");
    if (c == '\\') {
      if (!ReadEscape()) return false;
    } else if (c < 0x80) {
      string_ += static_cast<char>(c);
    } else if (!ReadUtf8()) {
      return false;
    }
  }
  return Fail("the text ends in a string");
}

bool JsonReader::ReadEscape() {
  if (at_ == text_.size()) return Fail("the text ends in a string");
  static constexpr char kEscapes[] = "\"\\/bfnrt", kMeaning[] = "\"\\/\b\f\n\r\t";
  const char c = text_[at_++];
  for (size_t i = 0; i + 1 < sizeof(kEscapes); ++i) {
    if (c != kEscapes[i]) continue;
    string_ += kMeaning[i];
    return true;
  }
  if (c != 'u') return Fail("an unknown escape in a string");
  uint32_t code = 0;
  if (!ReadHex(code)) return false;
  if (code >= 0xD800 && code < 0xE000) {
    uint32_t low = 0;
    const bool pair = code < 0xDC00 && text_.compare(at_, 2, "\\u") == 0;
    if (!pair) return Fail("half of a surrogate pair in a string");
    at_ += 2;
    if (!ReadHex(low)) return false;
    if (low < 0xDC00 || low >= 0xE000) return Fail("half of a surrogate pair in a string");
    code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
  }
  AppendUtf8(code, string_);
  return true;
}

bool JsonReader::ReadHex(uint32_t& value) {
  if (text_.size() - at_ < 4) return Fail("the text ends in a string");
  const char* end = text_.data() + at_ + 4;
  const auto [reached, error] = std::from_chars(text_.data() + at_, end, value, 16);
  at_ += 4;
  return (error == std::errc() && reached == end) || Fail("\\u needs four hexadecimal digits");
}

// Reads the character of several bytes that began with the byte before.
bool JsonReader::ReadUtf8() {
  const size_t begin = at_ - 1;
  const Utf8Sequence sequence = Utf8SequenceAt(text_, begin);
  at_ = begin + sequence.bytes;
  if (sequence.valid) {
    string_.append(text_, begin, sequence.bytes);
    return true;
  }
  if (at_ == text_.size()) return Fail("the text ends in a string");
  ++at_;
  return Fail("a string is not UTF-8");
}

}  // namespace apogee
