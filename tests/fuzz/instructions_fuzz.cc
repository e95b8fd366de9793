// SPDX-License-Identifier: Apache-2.0

// libFuzzer: JSON Lines of prompts and completions from anybody.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "apogee/data/json_lines/instruction_reader.h"
#include "apogee/data/tokenizer/byte_tokenizer.h"
#include "apogee/tests/fuzz/memory_bytes.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // A small block and a small line, so that both limits are met.
  constexpr int64_t kBlock = 24, kMaxLine = 512;
  const apogee::fuzz::MemoryBytes file({data, size});
  const apogee::data::ByteTokenizer tokenizer;
  apogee::data::InstructionReader reader(
      tokenizer, {.block = kBlock, .end_of_text = 256, .max_line_bytes = kMaxLine});
  if (!reader.Read(file).ok()) return 0;
  const apogee::data::Instructions all = reader.Finish("fuzz");
  const int64_t n = all.tokens->num_tokens();
  std::vector<int32_t> ids(static_cast<size_t>(n));
  all.tokens->Read(0, ids);
  for (const int32_t id : ids) {
    if (id < 0 || id > 256) __builtin_trap();
  }
  std::vector<int64_t> begins = all.tokens->DocumentBegins(0, n);
  begins.push_back(n);
  if (begins.size() != all.prompts.size() + 1) __builtin_trap();
  for (size_t i = 0; i < all.prompts.size(); ++i) {
    // Something is learned of every sample, and it fits into the block.
    const int64_t length = begins[i + 1] - begins[i];
    if (length < 2 || length > kBlock || all.prompts[i] < 0 || all.prompts[i] >= length) {
      __builtin_trap();
    }
  }
  return 0;
}
