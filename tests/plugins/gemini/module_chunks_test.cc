// SPDX-License-Identifier: Apache-2.0

// What padding wastes in chunks of published models: computed, nothing is allocated.
#include <gtest/gtest.h>

#include <set>

#include "apogee/nn/models/gpt2.h"
#include "apogee/nn/models/llama.h"
#include "apogee/plugins/gemini/module_windows.h"

namespace apogee {
namespace module_chunks_test {

// GPT-2 124 M and 1.5 B (Radford et al., 2019), Llama 7 B (Touvron et al., 2023).
nn::Gpt2Config Gpt2(int64_t layers, int64_t dim, int64_t heads) {
  return {
      .vocab_size = 50257, .n_positions = 1024, .n_embd = dim, .n_layer = layers, .n_head = heads};
}

// The fraction of all elements that belong to no parameter.
double ChunkWaste(std::span<const chunk::ChunkSpec> plan) {
  int64_t all = 0, used = 0;
  for (const chunk::ChunkSpec& chunk : plan) {
    all += chunk.numel();
    for (const chunk::ChunkItem& item : chunk.items) used += item.numel;
  }
  return all == 0 ? 0 : 1 - static_cast<double>(used) / static_cast<double>(all);
}

void ExpectLittleWaste(nn::Module& model, const char* name, int64_t parameters) {
  EXPECT_EQ(model.num_parameters(), parameters) << name;
  const std::vector<autograd::ParameterPtr> all = model.Parameters();
  for (const int num_shards : {1, 2, 3, 4, 8, 64}) {
    const auto plan = PlanModuleChunks(
        model, all,
        {.num_shards = num_shards, .element_bytes = std::vector<int64_t>(all.size(), 2)});
    std::set<size_t> seen;
    std::set<int64_t> sizes;
    for (const chunk::ChunkSpec& chunk : plan) {
      EXPECT_TRUE(sizes.insert(chunk.shard_numel).second) << name;
      for (const chunk::ChunkItem& item : chunk.items) {
        EXPECT_TRUE(seen.insert(item.parameter).second) << name;
      }
    }
    EXPECT_EQ(seen.size(), all.size()) << name;
    const double waste = ChunkWaste(plan);
    std::printf("%-12s %3d shards: %zu chunks, waste %.4f %%\n", name, num_shards, plan.size(),
                100 * waste);
    EXPECT_LE(waste, 0.05) << name << ", " << num_shards << " shards";
  }
}

TEST(ModuleChunksTest, WasteOfPublishedModels) {
  nn::Gpt2 small(Gpt2(12, 768, 12)), large(Gpt2(48, 1600, 25));
  ExpectLittleWaste(small, "GPT-2 124 M", 124439808);
  ExpectLittleWaste(large, "GPT-2 1.5 B", 1557611200);
  nn::Llama llama({.vocab_size = 32000,
                   .hidden_size = 4096,
                   .intermediate_size = 11008,
                   .num_hidden_layers = 32,
                   .num_attention_heads = 32,
                   .num_key_value_heads = 32,
                   .max_position_embeddings = 2048});
  ExpectLittleWaste(llama, "Llama 7 B", 6738415616);
}

}  // namespace module_chunks_test
}  // namespace apogee
