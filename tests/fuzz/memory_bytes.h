// SPDX-License-Identifier: Apache-2.0

// A file that is a fuzzer's input.
#ifndef APOGEE_TESTS_FUZZ_MEMORY_BYTES_H_
#define APOGEE_TESTS_FUZZ_MEMORY_BYTES_H_

#include <cstring>
#include <span>
#include <string>

#include "apogee/data/token_files/token_bytes.h"

namespace apogee::fuzz {

class MemoryBytes : public data::RandomBytes {
 public:
  explicit MemoryBytes(std::span<const uint8_t> bytes) : bytes_(bytes) {}
  const std::string& path() const override { return path_; }
  int64_t size() const override { return static_cast<int64_t>(bytes_.size()); }
  absl::Status Read(int64_t offset, std::span<std::byte> to) const override {
    const auto begin = static_cast<size_t>(offset);
    if (offset < 0 || begin > bytes_.size() || to.size() > bytes_.size() - begin) {
      return DataLoss(path_, ": byte ", offset, ": the file ends there");
    }
    if (!to.empty()) std::memcpy(to.data(), bytes_.data() + begin, to.size());
    return absl::OkStatus();
  }

 private:
  std::string path_ = "fuzz";
  std::span<const uint8_t> bytes_;
};

}  // namespace apogee::fuzz

#endif  // APOGEE_TESTS_FUZZ_MEMORY_BYTES_H_
