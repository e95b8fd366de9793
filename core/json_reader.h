// SPDX-License-Identifier: Apache-2.0

// JsonReader: JSON text as events, for text of anybody. It makes no document of the text, does not
// recurse, and beside a bit per open bracket holds one string at a time.
//
//   class Handler : public JsonHandler { ... bool Key(std::string& key) override; ... };
//   Handler handler;
//   JsonReader reader(text);
//   if (!reader.Read(handler)) ... reader.byte() ... reader.problem() ...    // "" if a handler
//   stopped
//
// Takes what RFC 8259 allows: one value in UTF-8, without a byte order mark, surrounded by white
// space. Whole numbers that fit are given as such, other ones as double; one that no double can
// hold is an error. Keys that are given twice are the handler's to find.
//
// ParseBudget bounds what a handler keeps, in proportion to the text: many tiny entries would take
// a multiple of it.
#ifndef APOGEE_CORE_JSON_READER_H_
#define APOGEE_CORE_JSON_READER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace apogee {

// Each event returns false to stop. Strings may be moved away. The default is to stop.
class JsonHandler {
 public:
  virtual ~JsonHandler() = default;
  virtual bool Null() { return false; }
  virtual bool Boolean(bool) { return false; }
  virtual bool Negative(int64_t) { return false; }  // -0, too
  virtual bool Unsigned(uint64_t) { return false; }
  virtual bool Real(double) { return false; }
  virtual bool String(std::string&) { return false; }
  virtual bool StartObject() { return false; }
  virtual bool Key(std::string&) { return false; }
  virtual bool EndObject() { return false; }
  virtual bool StartList() { return false; }
  virtual bool EndList() { return false; }
};

class JsonReader {
 public:
  // `text` must outlive it.
  explicit JsonReader(const std::string& text) : text_(text) {}
  explicit JsonReader(std::string&&) = delete;
  bool Read(JsonHandler& handler);
  // Bytes that were read, the one that stopped it included.
  size_t byte() const { return at_; }
  // Why the text is no JSON; "" as long as it is.
  const std::string& problem() const { return problem_; }

 private:
  enum class Expect { kValue, kValueOrEnd, kKey, kKeyOrEnd, kCommaOrEnd };

  bool ReadValue(JsonHandler& handler);
  bool ReadWord(const char* word);
  bool ReadNumber(JsonHandler& handler);
  bool ReadString();
  bool ReadEscape();
  bool ReadHex(uint32_t& value);
  bool ReadUtf8(unsigned char first);
  bool Close(JsonHandler& handler, char bracket);
  void SkipSpace();
  bool Fail(const char* problem);

  const std::string& text_;
  size_t at_ = 0;
  std::vector<bool> is_list_;  // of each open bracket
  Expect expect_ = Expect::kValue;
  std::string string_;
  std::string problem_;
};

class ParseBudget {
 public:
  explicit ParseBudget(size_t text_bytes) : left_(3 * text_bytes + (size_t{512} << 10)) {}
  // Of memory that is kept. False: refuse the text.
  bool Take(size_t bytes) {
    if (bytes > left_) return false;
    left_ -= bytes;
    return true;
  }
  // Of a string that is kept.
  bool TakeText(const std::string& text) {
    return Take(text.size() < sizeof(std::string) / 2 ? 0 : text.size() + 1);
  }
  // Of one more element of a vector, which may have to move to twice the room.
  template <typename T>
  bool TakeElement(const std::vector<T>& values) {
    if (values.size() < values.capacity()) return true;
    const size_t old_bytes = values.capacity() * sizeof(T);
    const size_t new_bytes = old_bytes == 0 ? sizeof(T) : 2 * old_bytes;
    return new_bytes <= left_ && Take(new_bytes - old_bytes);
  }
  // Of memory that is given back at once.
  bool Has(size_t bytes) const { return bytes <= left_; }

 private:
  size_t left_;
};

// What a node of std::map or std::set takes beside its value.
inline constexpr size_t kMapNodeBytes = 32;

// Whether JSON can hold the text as it is.
bool IsUtf8(const std::string& text);

// A text of anybody for a message: its beginning.
std::string Shortened(const std::string& text);

}  // namespace apogee

#endif  // APOGEE_CORE_JSON_READER_H_
