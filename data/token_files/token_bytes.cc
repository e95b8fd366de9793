// SPDX-License-Identifier: Apache-2.0

#include "apogee/data/token_files/token_bytes.h"

#include <algorithm>
#include <array>
#include <type_traits>
#include <utility>

namespace apogee::data {
namespace {

class FileBytes : public RandomBytes {
 public:
  FileBytes(std::string path, OpenedFile file) : path_(std::move(path)), file_(std::move(file)) {}
  const std::string& path() const override { return path_; }
  int64_t size() const override { return file_.size; }
  absl::Status Read(int64_t offset, std::span<std::byte> to) const override {
    return ReadAt(file_.descriptor.fd(), path_, offset, to);
  }

 private:
  std::string path_;
  OpenedFile file_;
};

// Calls fn(T{}) with the type of the stored ids.
template <typename Fn>
auto WithType(TokenType type, const Fn& fn) {
  switch (type) {
    case TokenType::kU8:
      return fn(uint8_t{});
    case TokenType::kI8:
      return fn(int8_t{});
    case TokenType::kI16:
      return fn(int16_t{});
    case TokenType::kI32:
      return fn(int32_t{});
    case TokenType::kI64:
      return fn(int64_t{});
    case TokenType::kU16:
      return fn(uint16_t{});
    default:
      return fn(uint32_t{});
  }
}

// Reads `count` values of type Stored in pieces that fit the stack and calls fn(first, piece).
template <typename Stored, typename Fn>
absl::Status ForEachPiece(const RandomBytes& file, int64_t byte, size_t count, const Fn& fn) {
  std::array<Stored, 32768 / sizeof(Stored)> buffer;
  for (size_t first = 0; first < count; first += buffer.size()) {
    const std::span<Stored> piece(buffer.data(), std::min(buffer.size(), count - first));
    APOGEE_RETURN_IF_ERROR(file.Read(byte + static_cast<int64_t>(first * sizeof(Stored)),
                                     std::as_writable_bytes(piece)));
    APOGEE_RETURN_IF_ERROR(fn(first, std::span<const Stored>(piece)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<RandomBytes>> OpenBytes(const std::string& path) {
  APOGEE_ASSIGN_OR_RETURN(OpenedFile file, OpenRegularFile(path));
  return std::make_unique<FileBytes>(path, std::move(file));
}

const char* Name(TokenType type) {
  static constexpr const char* kNames[] = {"u8", "i8", "i16", "i32", "i64", "u16", "u32"};
  return kNames[static_cast<size_t>(type)];
}

int64_t SizeOf(TokenType type) {
  return WithType(type, [](auto zero) { return static_cast<int64_t>(sizeof(zero)); });
}

absl::Status TokenBytes::ReadIds(int64_t byte, std::span<int32_t> ids, int64_t limit,
                                 int64_t token) const {
  return WithType(type_, [&](auto zero) {
    using Stored = decltype(zero);
    // A negative id is a large one here, so that one comparison finds both.
    using Wide = std::conditional_t<sizeof(Stored) == 8, uint64_t, uint32_t>;
    return ForEachPiece<Stored>(
        *file_, byte, ids.size(), [&](size_t first, std::span<const Stored> piece) {
          int32_t* const to = ids.data() + first;
          Wide largest = 0;
          for (size_t i = 0; i < piece.size(); ++i) {
            largest = std::max(largest, static_cast<Wide>(piece[i]));
            to[i] = static_cast<int32_t>(piece[i]);
          }
          if (largest < static_cast<uint64_t>(limit)) return absl::OkStatus();
          const auto bad = std::ranges::find_if(piece, [&](Stored id) {
            return static_cast<Wide>(id) >= static_cast<uint64_t>(limit);
          });
          const int64_t index = token + static_cast<int64_t>(first) + (bad - piece.begin());
          return IdOutOfRange(internal::Concat(path(), ": token ", index),
                              static_cast<int64_t>(*bad), limit);
        });
  });
}

absl::Status TokenBytes::ReadStored(int64_t byte, std::span<int64_t> ids) const {
  return WithType(type_, [&](auto zero) {
    using Stored = decltype(zero);
    return ForEachPiece<Stored>(*file_, byte, ids.size(),
                                [&](size_t first, std::span<const Stored> piece) {
                                  std::ranges::copy(piece, ids.data() + first);
                                  return absl::OkStatus();
                                });
  });
}

absl::Status IdOutOfRange(const std::string& place, int64_t value, int64_t limit) {
  return absl::OutOfRangeError(internal::Concat(
      place, " is ", value, "; ids must be in [0, ", limit, "), ",
      limit == kIdLimit ? "which an int32 holds: is this the right format?"
                        : "the model's vocabulary: tokenize the text with the model's tokenizer"));
}

}  // namespace apogee::data
