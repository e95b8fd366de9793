// SPDX-License-Identifier: Apache-2.0

// libFuzzer: the header of a token file of llm.c, from anybody. The first eight bytes are the size
// of the file, then comes its begin.
#include "apogee/data/token_files/llmc_header.h"
#include "apogee/tests/fuzz/memory_bytes.h"

namespace {

// A file of any size, of which only the begin is there.
class LargeFile : public apogee::fuzz::MemoryBytes {
 public:
  LargeFile(int64_t size, std::span<const uint8_t> begin) : MemoryBytes(begin), size_(size) {}
  int64_t size() const override { return size_; }

 private:
  int64_t size_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace apogee::data;
  if (size < 8) return 0;
  const auto file_bytes =
      Load<int64_t>(reinterpret_cast<const std::byte*>(data)) & ((int64_t{1} << 62) - 1);
  const auto header = ReadLlmcHeader(LargeFile(file_bytes, {data + 8, size - 8}));
  if (!header.ok()) return 0;
  // What it accepts fills the file, and is written as the same.
  const int64_t bytes = kLlmcHeaderBytes + header->num_tokens * SizeOf(header->type);
  if (header->num_tokens < 0 || bytes != file_bytes) __builtin_trap();
  if (__builtin_memcmp(FormatLlmcHeader(*header).data(), data + 8, 12) != 0) __builtin_trap();
  return 0;
}
