// SPDX-License-Identifier: Apache-2.0

// A second, slow and simple implementation of the rules of safetensors headers, which shares no
// code with the library. It parses the text into a document, recursively, and then checks that.
//
//   std::optional<PlainHeader> header =
//       PlainSafetensorsHeader(json, data_bytes);   // nullopt: refused
//
// The rules:
//   text      UTF-8; starts with one JSON object, after which only spaces follow; no key twice
//   names     1 to 1,024 bytes without NUL
//   tensors   exactly dtype, shape and data_offsets; known dtypes
//   shapes    at most 16 sizes, all integers from 0 to 2^63 - 1; their product with the element's
//             size does not overflow at any step and equals end - begin
//   ranges    cover the data without gap or overlap, from its first byte to its last
//   metadata  strings only
#ifndef APOGEE_TESTS_SUPPORT_FILES_PLAIN_SAFETENSORS_H_
#define APOGEE_TESTS_SUPPORT_FILES_PLAIN_SAFETENSORS_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace apogee::testing {

struct PlainHeader {
  // By name: dtype, shape, begin, end.
  std::map<std::string, std::tuple<std::string, std::vector<int64_t>, int64_t, int64_t>> tensors;
  std::map<std::string, std::string> metadata;
};

namespace plain {

struct Refused : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Json {
  char kind = 0;  // { [ " 0 (a number) n t f
  std::string text;
  std::vector<std::pair<std::string, Json>> members;
  std::vector<Json> items;
};

// Decodes UTF-8 bit by bit; accepts only the shortest forms.
inline std::u32string Decode(const std::string& bytes) {
  std::u32string points;
  for (size_t i = 0; i < bytes.size();) {
    const auto at = [&](size_t k) { return static_cast<unsigned char>(bytes[k]); };
    int more = 0;
    while (more < 7 && (at(i) & (0x80 >> more)) != 0) ++more;  // leading ones
    if (more == 1 || more > 4) throw Refused("a byte that begins no character");
    char32_t point = more == 0 ? at(i) : at(i) & (0xFF >> (more + 1));
    for (int k = 1; k < more; ++k) {
      if (i + static_cast<size_t>(k) >= bytes.size()) throw Refused("half a character");
      const unsigned char next = at(i + static_cast<size_t>(k));
      if (next / 64 != 2) throw Refused("half a character");
      point = point * 64 + next % 64;
    }
    constexpr char32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
    if (point < kLeast[more] || point > 0x10FFFF || (point >= 0xD800 && point <= 0xDFFF)) {
      throw Refused("no character");
    }
    points += point;
    i += static_cast<size_t>(std::max(more, 1));
  }
  return points;
}

inline void Encode(char32_t point, std::string& to) {
  const auto tail = [&](int shift) { to += static_cast<char>(0x80 + (point >> shift) % 64); };
  if (point < 0x80) {
    to += static_cast<char>(point);
  } else if (point < 0x800) {
    to += static_cast<char>(0xC0 + point / 64);
    tail(0);
  } else if (point < 0x10000) {
    to += static_cast<char>(0xE0 + point / 4096);
    tail(6), tail(0);
  } else {
    to += static_cast<char>(0xF0 + point / 262144);
    tail(12), tail(6), tail(0);
  }
}

class Parser {
 public:
  explicit Parser(const std::u32string& text) : text_(text) {}

  Json Whole() {
    if (text_.empty() || text_[0] != '{') throw Refused("must begin with {");
    Json json = Value(1);
    for (; at_ < text_.size(); ++at_) {
      if (text_[at_] != ' ') throw Refused("more behind the object");
    }
    return json;
  }

 private:
  char32_t Peek() const { return at_ < text_.size() ? text_[at_] : U'\0'; }
  void Expect(const char* word) {
    for (; *word != '\0'; ++word) {
      if (at_ >= text_.size() || text_[at_++] != static_cast<char32_t>(*word)) {
        throw Refused("something else was expected");
      }
    }
  }
  void Space() {
    while (Peek() == ' ' || Peek() == '\t' || Peek() == '\n' || Peek() == '\r') ++at_;
  }

  Json Value(int depth) {
    if (depth > 4) throw Refused("too deep");
    Space();
    Json json;
    json.kind = static_cast<char>(Peek());
    switch (Peek()) {
      case '{':
        ++at_;
        Space();
        if (Peek() == '}') break;
        while (true) {
          Space();
          std::string name = String();
          Space();
          Expect(":");
          json.members.emplace_back(std::move(name), Value(depth + 1));
          Space();
          if (Peek() != ',') break;
          ++at_;
        }
        if (Peek() != '}') throw Refused("unclosed object");
        break;
      case '[':
        ++at_;
        Space();
        if (Peek() == ']') break;
        while (true) {
          json.items.push_back(Value(depth + 1));
          Space();
          if (Peek() != ',') break;
          ++at_;
        }
        if (Peek() != ']') throw Refused("unclosed list");
        break;
      case '"':
        json.text = String();
        return json;
      case 'n':
        Expect("null");
        return json;
      case 't':
        Expect("true");
        return json;
      case 'f':
        Expect("false");
        return json;
      default:
        json.kind = '0';
        json.text = Number();
        return json;
    }
    ++at_;
    return json;
  }

  std::string Digits() {
    std::string digits;
    while (Peek() >= '0' && Peek() <= '9') digits += static_cast<char>(text_[at_++]);
    if (digits.empty()) throw Refused("no digit");
    return digits;
  }
  std::string Number() {
    std::string number;
    if (Peek() == '-') number += static_cast<char>(text_[at_++]);
    const std::string whole = Digits();
    if (whole.size() > 1 && whole[0] == '0') throw Refused("a leading zero");
    number += whole;
    if (Peek() == '.') {
      ++at_;
      number += "." + Digits();
    }
    if (Peek() == 'e' || Peek() == 'E') {
      ++at_;
      if (Peek() == '+' || Peek() == '-') ++at_;
      number += "e" + Digits();
    }
    return number;
  }

  char32_t Hex4() {
    char32_t value = 0;
    for (int i = 0; i < 4; ++i) {
      const char32_t c = Peek();
      const std::string digits = "0123456789abcdef0123456789ABCDEF";
      const size_t digit = c < 128 && c > 0 ? digits.find(static_cast<char>(c)) : std::string::npos;
      if (digit == std::string::npos) throw Refused("no hexadecimal digit");
      value = value * 16 + static_cast<char32_t>(digit % 16);
      ++at_;
    }
    return value;
  }
  std::string String() {
    Expect("\"");
    std::string string;
    while (true) {
      if (at_ >= text_.size() || text_[at_] < 0x20) throw Refused("unclosed string");
      const char32_t c = text_[at_++];
      if (c == '"') return string;
      if (c != '\\') {
        Encode(c, string);
        continue;
      }
      const std::map<char32_t, char32_t> escapes = {{'"', '"'},  {'\\', '\\'}, {'/', '/'},
                                                    {'b', '\b'}, {'f', '\f'},  {'n', '\n'},
                                                    {'r', '\r'}, {'t', '\t'}};
      const char32_t escape = Peek();
      ++at_;
      if (escapes.contains(escape)) {
        Encode(escapes.at(escape), string);
        continue;
      }
      if (escape != 'u') throw Refused("unknown escape");
      char32_t point = Hex4();
      if (point >= 0xDC00 && point <= 0xDFFF) throw Refused("half of a pair");
      if (point >= 0xD800 && point <= 0xDBFF) {
        Expect("\\u");
        const char32_t low = Hex4();
        if (low < 0xDC00 || low > 0xDFFF) throw Refused("half of a pair");
        point = (point % 0x400) * 0x400 + low % 0x400 + 0x10000;
      }
      Encode(point, string);
    }
  }

  const std::u32string& text_;
  size_t at_ = 0;
};

inline const Json* Member(const Json& json, const std::string& name) {
  const Json* found = nullptr;
  for (const auto& [key, value] : json.members) {
    if (key == name && found != nullptr) throw Refused("twice");
    if (key == name) found = &value;
  }
  return found;
}

inline std::vector<int64_t> Sizes(const Json* json) {
  if (json == nullptr || json->kind != '[') throw Refused("no list");
  std::vector<int64_t> sizes;
  for (const Json& item : json->items) {
    if (item.kind != '0' || item.text.find_first_not_of("0123456789") != std::string::npos) {
      throw Refused("no whole number");
    }
    const std::string most = "9223372036854775807";
    if (item.text.size() > most.size() || (item.text.size() == most.size() && item.text > most)) {
      throw Refused("too large");
    }
    sizes.push_back(std::stoll(item.text));
  }
  if (sizes.size() > 16) throw Refused("too many");
  return sizes;
}

inline PlainHeader Look(const Json& top, int64_t data_bytes) {
  const std::map<std::string, int64_t> dtypes = {
      {"F64", 8}, {"I64", 8}, {"U64", 8},     {"F32", 4},     {"I32", 4},
      {"U32", 4}, {"F16", 2}, {"BF16", 2},    {"I16", 2},     {"U16", 2},
      {"I8", 1},  {"U8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"BOOL", 1}};
  PlainHeader header;
  std::vector<std::pair<int64_t, int64_t>> ranges;
  for (const auto& [name, value] : top.members) {
    Member(top, name);
    if (name.empty() || name.size() > 1024 || name.find('\0') != std::string::npos) {
      throw Refused("a bad name");
    }
    if (value.kind != '{') throw Refused("no object");
    if (name == "__metadata__") {
      for (const auto& [key, text] : value.members) {
        Member(value, key);
        if (text.kind != '"') throw Refused("no string");
        header.metadata[key] = text.text;
      }
      continue;
    }
    const Json* dtype = Member(value, "dtype");
    const std::vector<int64_t> shape = Sizes(Member(value, "shape"));
    const std::vector<int64_t> range = Sizes(Member(value, "data_offsets"));
    if (value.members.size() != 3 || dtype == nullptr || dtype->kind != '"' ||
        !dtypes.contains(dtype->text) || range.size() != 2 || range[0] > range[1]) {
      throw Refused("bad fields");
    }
    int64_t bytes = dtypes.at(dtype->text);
    for (const int64_t size : shape) {
      if (size != 0 && bytes > INT64_MAX / size) throw Refused("overflow");
      bytes *= size;
    }
    if (bytes != range[1] - range[0]) throw Refused("another size");
    header.tensors[name] = {dtype->text, shape, range[0], range[1]};
    ranges.emplace_back(range[0], range[1]);
  }
  std::sort(ranges.begin(), ranges.end());
  int64_t next = 0;
  for (const auto& [begin, end] : ranges) {
    if (begin != next) throw Refused("a hole, or an overlap");
    next = end;
  }
  if (next != data_bytes) throw Refused("another end");
  return header;
}

}  // namespace plain

inline std::optional<PlainHeader> PlainSafetensorsHeader(const std::string& json,
                                                         int64_t data_bytes) {
  try {
    const std::u32string text = plain::Decode(json);
    return plain::Look(plain::Parser(text).Whole(), data_bytes);
  } catch (const plain::Refused&) {
    return std::nullopt;
  }
}

}  // namespace apogee::testing

#endif  // APOGEE_TESTS_SUPPORT_FILES_PLAIN_SAFETENSORS_H_
