// SPDX-License-Identifier: Apache-2.0

// apogee::Error, the library's one exception type, and the checks that throw it.
//
// Misuse of the API (shape, dtype, device, order of calls) and device failures throw Error. Bad
// input from outside (files, flags, peers) returns absl::Status instead (core/status.h). Every
// message says what was wrong, where, and what would be right:
//
//   APOGEE_CHECK(a.dtype() == b.dtype(), "matmul: both operands need one dtype, got ",
//                DTypeName(a.dtype()), " and ", DTypeName(b.dtype()));
#ifndef APOGEE_CORE_ERROR_H_
#define APOGEE_CORE_ERROR_H_

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

namespace apogee {

class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message) : std::runtime_error(message) {}
};

namespace internal {

// One part of a message: anything that has an operator<<. It refers to the value that it was made
// from, which must live until the message is formatted (the end of the full expression). Formatting
// is not a template, so that a call costs the compiler little.
class MessagePart {
 public:
  // char and its signed and unsigned forms are characters, as in a stream; bool is 0 or 1.
  template <std::integral T>
  constexpr MessagePart(T value)
      : kind_(sizeof(T) == 1 && !std::same_as<T, bool> ? Kind::kCharacter
              : std::signed_integral<T>                ? Kind::kSigned
                                                       : Kind::kUnsigned),
        bits_(static_cast<uint64_t>(value)) {}
  constexpr MessagePart(double value) : kind_(Kind::kReal), real_(value) {}
  constexpr MessagePart(float value) : MessagePart(static_cast<double>(value)) {}
  constexpr MessagePart(const char* text) : kind_(Kind::kCString), pointer_(text) {}
  constexpr MessagePart(std::string_view text)
      : kind_(Kind::kText), pointer_(text.data()), bits_(text.size()) {}
  constexpr MessagePart(const std::string& text) : MessagePart(std::string_view(text)) {}
  template <typename T>
  requires(std::is_class_v<T> || std::is_enum_v<T>) constexpr MessagePart(const T& value)
      : kind_(Kind::kOther), pointer_(&value), print_([](std::ostream& out, const void* object) {
          out << *static_cast<const T*>(object);
        }) {}

  void Print(std::ostream& out) const;

 private:
  enum class Kind : uint8_t { kCharacter, kSigned, kUnsigned, kReal, kCString, kText, kOther };

  Kind kind_;
  const void* pointer_ = nullptr;
  union {
    uint64_t bits_ = 0;  // an integer, or the length of a text
    double real_;
    void (*print_)(std::ostream& out, const void* object);
  };
};
using MessageParts = std::initializer_list<MessagePart>;

std::string Format(MessageParts parts);
[[noreturn]] void ThrowParts(MessageParts parts);

template <typename... Parts>
std::string Concat(const Parts&... parts) {
  return Format({MessagePart(parts)...});
}

}  // namespace internal

// Throws Error with the concatenated parts.
template <typename... Parts>
[[noreturn]] void Throw(const Parts&... parts) {
  internal::ThrowParts({internal::MessagePart(parts)...});
}

}  // namespace apogee

// Throws Error unless `condition` holds. The message parts are evaluated only on failure.
#define APOGEE_CHECK(condition, ...)                 \
  do {                                               \
    if (!(condition)) [[unlikely]]                   \
      ::apogee::internal::ThrowParts({__VA_ARGS__}); \
  } while (false)

#endif  // APOGEE_CORE_ERROR_H_
