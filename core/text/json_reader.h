// SPDX-License-Identifier: Apache-2.0

// JsonReader: reads JSON text as a sequence of events. The text may be hostile: the reader builds
// no document, does not recurse, and holds only one string and a bit per open bracket at a time.
//
//   class Handler : public JsonHandler { ... bool Key(std::string& key) override; ... };
//   Handler handler;
//   JsonReader reader(text);
//   if (!reader.Read(handler)) {
//     // reader.problem() at reader.byte(); problem() is "" if the handler stopped
//   }
//
// Accepts the JSON of RFC 8259: one value in UTF-8, without a byte order mark, surrounded by white
// space. Whole numbers that fit 64 bits are given as integers, all others as double. A number that
// no double can hold is an error. Repeated keys are passed on: the handler has to check for them.
//
// ParseBudget bounds the memory that a handler keeps, in proportion to the text's size. Without it,
// many tiny entries could take a multiple of the text.
#ifndef APOGEE_CORE_TEXT_JSON_READER_H_
#define APOGEE_CORE_TEXT_JSON_READER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace apogee {

// One function per event; each returns false to stop. Strings may be moved from. The default stops.
class JsonHandler {
 public:
  virtual ~JsonHandler() = default;
  virtual bool Null() { return false; }
  virtual bool Boolean(bool) { return false; }
  virtual bool Negative(int64_t) { return false; }  // -0 too
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
  // Number of bytes read, including the byte that stopped the reader.
  size_t byte() const { return at_; }
  // Why the text is not valid JSON; "" while no error was found.
  const std::string& problem() const { return problem_; }

 private:
  enum class Expect { kValue, kValueOrEnd, kKey, kKeyOrEnd, kCommaOrEnd };

  bool ReadValue(JsonHandler& handler);
  bool ReadWord(const char* word);
  bool ReadNumber(JsonHandler& handler);
  bool ReadString();
  bool ReadEscape();
  bool ReadHex(uint32_t& value);
  bool ReadUtf8();
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
  // Counts memory that is kept. False: the budget is exceeded, refuse the text.
  bool Take(size_t bytes) {
    if (bytes > left_) return false;
    left_ -= bytes;
    return true;
  }
  // The same for a string that is kept.
  bool TakeText(const std::string& text) {
    return Take(text.size() < sizeof(std::string) / 2 ? 0 : text.size() + 1);
  }
  // The same for one more element of a vector, which may have to double its capacity.
  template <typename T>
  bool TakeElement(const std::vector<T>& values) {
    if (values.size() < values.capacity()) return true;
    const size_t old_bytes = values.capacity() * sizeof(T);
    const size_t new_bytes = old_bytes == 0 ? sizeof(T) : 2 * old_bytes;
    return new_bytes <= left_ && Take(new_bytes - old_bytes);
  }
  // Whether memory that is freed again at once fits into the rest. Counts nothing.
  bool Has(size_t bytes) const { return bytes <= left_; }

 private:
  size_t left_;
};

// Bytes that a node of std::map or std::set takes besides its value.
inline constexpr size_t kMapNodeBytes = 32;

// The beginning of a text of any length, to quote in a message.
std::string Shortened(const std::string& text);

}  // namespace apogee

#endif  // APOGEE_CORE_TEXT_JSON_READER_H_
