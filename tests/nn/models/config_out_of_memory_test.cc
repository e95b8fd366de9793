// SPDX-License-Identifier: Apache-2.0

// Memory runs out while the configuration of a model is made: what stands is freed once. g++ 12
// frees parts of a struct twice if they were initialised by nested braces.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <new>

#include "apogee/nn/models/bert.h"
#include "apogee/nn/models/decoder.h"
#include "apogee/nn/models/gpt2.h"
#include "apogee/nn/models/llama.h"
#include "apogee/nn/models/vit.h"

namespace {

// While `watching`: the allocations that may still succeed, the memory in use, and frees of memory
// that is not in use.
bool watching = false;
int allowed = 0;
std::array<void*, 1000> in_use;
int num_in_use = 0;
int wrong_frees = 0;

}  // namespace

// The allocator of this program. Inlined, GCC takes free() here for a mistake of the callers.
[[gnu::noinline]] void* operator new(size_t num_bytes) {
  void* const memory = watching && allowed-- == 0 ? nullptr : std::malloc(num_bytes);
  if (memory == nullptr) throw std::bad_alloc();
  if (watching) in_use.at(static_cast<size_t>(num_in_use++)) = memory;
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  if (watching && memory != nullptr) {
    void** const end = in_use.data() + num_in_use;
    void** const found = std::find(in_use.data(), end, memory);
    if (found == end) {
      ++wrong_frees;
      return;
    }
    *found = in_use[static_cast<size_t>(--num_in_use)];
  }
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { operator delete(memory); }

namespace apogee {
namespace config_out_of_memory_test {

// Lets each allocation of `make` fail once, until `make` succeeds.
template <typename Make>
void ExpectEachPartFreedOnce(const Make& make) {
  for (int number = 0;; ++number) {
    bool made = false;
    num_in_use = wrong_frees = 0;
    allowed = number;
    watching = true;
    try {
      make();
      made = true;
    } catch (const std::bad_alloc&) {
    }
    watching = false;
    EXPECT_EQ(wrong_frees, 0) << "allocation " << number << " fails";
    EXPECT_EQ(num_in_use, 0) << "allocation " << number << " fails";
    if (made) {
      EXPECT_GT(number, 3);  // or nothing was tested
      return;
    }
    ASSERT_LT(number, 900);
  }
}

TEST(ConfigOutOfMemoryTest, Decoder) {
  ExpectEachPartFreedOnce([] { nn::DecoderConfig config; });
  ExpectEachPartFreedOnce([] {
    const nn::DecoderConfig config;
    const nn::DecoderConfig copy = config;
  });
}
TEST(ConfigOutOfMemoryTest, Gpt2) {
  ExpectEachPartFreedOnce([] { nn::DecoderConfigOf(nn::Gpt2Config()); });
}
TEST(ConfigOutOfMemoryTest, Llama) {
  ExpectEachPartFreedOnce([] { nn::DecoderConfigOf(nn::LlamaConfig()); });
}
TEST(ConfigOutOfMemoryTest, Bert) {
  ExpectEachPartFreedOnce([] { nn::BertConfig config; });
}
TEST(ConfigOutOfMemoryTest, Vit) {
  ExpectEachPartFreedOnce([] { nn::VitConfig config; });
}

}  // namespace config_out_of_memory_test
}  // namespace apogee
