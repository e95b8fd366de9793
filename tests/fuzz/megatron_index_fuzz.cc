// SPDX-License-Identifier: Apache-2.0

// libFuzzer: the index of a Megatron pair, from anybody. The first two bytes are the size of its
// .bin.
#include <vector>

#include "apogee/data/token_files/megatron_index.h"
#include "apogee/tests/fuzz/memory_bytes.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace apogee::data;
  if (size < 2) return 0;
  const int64_t bin_bytes = data[0] | data[1] << 8;
  const auto index = MegatronIndex::Read(
      std::make_unique<apogee::fuzz::MemoryBytes>(std::span(data + 2, size - 2)), "bin", bin_bytes);
  if (!index.ok()) return 0;
  // What it accepts lies in the .bin: every run, and every document begins at a token.
  const int64_t total = index->num_tokens(), id_bytes = SizeOf(index->type());
  for (int64_t at = 0, runs = 0; at < total && runs < 300; ++runs) {
    const auto run = index->RunAt(at, 1 << 20);
    if (!run.ok() || run->num_tokens < 1 || run->num_tokens > total - at || run->byte < 0 ||
        run->num_tokens > (bin_bytes - run->byte) / id_bytes) {
      __builtin_trap();
    }
    at += run->num_tokens;
  }
  const auto begins = index->DocumentBegins(0, total);
  if (total > 0 && (!begins.ok() || begins->empty() || begins->front() != 0)) __builtin_trap();
  if (!begins.ok()) __builtin_trap();
  for (size_t i = 0; i < begins->size(); ++i) {
    if ((*begins)[i] >= total || (i > 0 && (*begins)[i] <= (*begins)[i - 1])) __builtin_trap();
  }
  if (total > 2) {
    // A part finds the same ones.
    const auto part = index->DocumentBegins(1, total - 2);
    std::vector<int64_t> expected;
    for (const int64_t begin : *begins) {
      if (begin >= 1 && begin < total - 1) expected.push_back(begin);
    }
    if (!part.ok() || *part != expected) __builtin_trap();
  }
  return 0;
}
