// SPDX-License-Identifier: Apache-2.0

// TokenBytes: the ids of one file, as integers of one width from some byte on.
//
//   TokenBytes bytes(std::move(file), TokenType::kU16);
//   std::array<int64_t, 8> ids;
//   APOGEE_RETURN_IF_ERROR(bytes.ReadStored(/*byte=*/1024, ids));
//
// RandomBytes is what index parsers read, so that tests and fuzzers can give them memory.
#ifndef APOGEE_DATA_TOKEN_FILES_TOKEN_BYTES_H_
#define APOGEE_DATA_TOKEN_FILES_TOKEN_BYTES_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "apogee/core/process/raw_file.h"

namespace apogee::data {

class RandomBytes {
 public:
  virtual ~RandomBytes() = default;
  virtual const std::string& path() const = 0;
  virtual int64_t size() const = 0;
  // DataLoss if they are not there.
  virtual absl::Status Read(int64_t offset, std::span<std::byte> to) const = 0;
};
// The bytes of a regular file.
absl::StatusOr<std::unique_ptr<RandomBytes>> OpenBytes(const std::string& path);

// An integer of a file.
static_assert(std::endian::native == std::endian::little, "token files are little-endian");
template <typename T>
T Load(const std::byte* bytes) {
  T value;
  __builtin_memcpy(&value, bytes, sizeof(T));
  return value;
}

enum class TokenType { kU8, kI8, kI16, kI32, kI64, kU16, kU32 };
const char* Name(TokenType type);
int64_t SizeOf(TokenType type);

// Ids must be in [0, limit).
inline constexpr int64_t kIdLimit = int64_t{1} << 31;

class TokenBytes {
 public:
  TokenBytes(std::unique_ptr<RandomBytes> file, TokenType type)
      : file_(std::move(file)), type_(type) {}
  const std::string& path() const { return file_->path(); }
  int64_t size() const { return file_->size(); }
  TokenType type() const { return type_; }

  // The ids from `byte` on. `token`: the number of the first one, for messages. DataLoss if the
  // file ends before, OutOfRange for an id outside [0, limit), limit <= kIdLimit.
  absl::Status ReadIds(int64_t byte, std::span<int32_t> ids, int64_t limit, int64_t token) const;
  // The stored values, without a limit.
  absl::Status ReadStored(int64_t byte, std::span<int64_t> ids) const;

 private:
  std::unique_ptr<RandomBytes> file_;
  TokenType type_;
};

// "corpus.bin: token 17 is 70000, but ids must be in [0, 50257), the model's vocabulary; ...".
absl::Status IdOutOfRange(const std::string& place, int64_t value, int64_t limit);

}  // namespace apogee::data

#endif  // APOGEE_DATA_TOKEN_FILES_TOKEN_BYTES_H_
