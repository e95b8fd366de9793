// SPDX-License-Identifier: Apache-2.0

// BlockConfig::recompute_activations: the same bits, and the memory that its formula says.
#include <gmock/gmock-matchers.h>

#include <memory>
#include <vector>

#include "apogee/autograd/engine.h"
#include "apogee/nn/losses.h"
#include "apogee/nn/models/gpt2.h"
#include "apogee/nn/models/llama.h"
#include "apogee/tests/support/says.h"
#include "apogee/tests/support/test_context.h"

namespace apogee::nn {
namespace recompute_activations_test {

using ::testing::HasSubstr;
using testing::Says;

constexpr int64_t kTokens = 8, kBatch = 3, kWidth = 16, kInner = 24, kLayers = 3;

std::unique_ptr<Module> Make(bool gpt2, bool recompute, double dropout = 0) {
  if (gpt2) {
    return std::make_unique<Gpt2>(Gpt2Config{.vocab_size = 19,
                                             .n_positions = kTokens,
                                             .n_embd = kWidth,
                                             .n_layer = kLayers,
                                             .n_head = 4,
                                             .dropout = dropout,
                                             .recompute_activations = recompute});
  }
  return std::make_unique<Llama>(LlamaConfig{.vocab_size = 19,
                                             .hidden_size = kWidth,
                                             .intermediate_size = kInner,
                                             .num_hidden_layers = kLayers,
                                             .num_attention_heads = 4,
                                             .num_key_value_heads = 2,
                                             .max_position_embeddings = kTokens,
                                             .recompute_activations = recompute});
}

struct Result {
  std::vector<std::vector<double>> gradients;
  int64_t saved_bytes = 0;  // by the graph, after forward
};

Result Train(bool gpt2, bool recompute, DType dtype, double dropout = 0) {
  const ContextPtr context = TestContext({.num_threads = 2});
  const auto model = Make(gpt2, recompute, dropout);
  model->Initialize(context, {.seed = 3, .dtype = dtype});
  std::vector<int64_t> ids(kBatch * kTokens);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i * 7 % 19);
  const Tensor tokens = Tensor::FromVector<int64_t>(ids, {kBatch, kTokens}, context);
  const int64_t before = context->ledger().live_bytes(MemoryCategory::kActivation);
  Result result;
  const Tensor loss = CrossEntropyLoss()((*model)(tokens), tokens);
  result.saved_bytes = context->ledger().live_bytes(MemoryCategory::kActivation) - before;
  autograd::Backward(loss);
  result.gradients.push_back({loss.Item()});
  for (const auto& parameter : model->Parameters()) {
    result.gradients.push_back(parameter->grad().ToVector<double>());
  }
  return result;
}

TEST(RecomputeActivationsTest, TheBitsAreTheSame) {
  for (const bool gpt2 : {true, false}) {
    for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16}) {
      const double dropout = gpt2 ? 0.2 : 0;
      EXPECT_EQ(Train(gpt2, true, dtype, dropout).gradients,
                Train(gpt2, false, dtype, dropout).gradients)
          << (gpt2 ? "gpt2 " : "llama ") << DTypeName(dtype);
    }
  }
}

// Of every layer two results of norms and one of an activation; of the model one of a norm.
TEST(RecomputeActivationsTest, TheGraphKeepsThatMuchLess) {
  constexpr int64_t kRows = kBatch * kTokens, kBytes = 4;
  const auto saves = [&](bool gpt2) {
    return Train(gpt2, false, DType::kF32).saved_bytes - Train(gpt2, true, DType::kF32).saved_bytes;
  };
  EXPECT_EQ(saves(true), kRows * kBytes * (kLayers * (2 * kWidth + 4 * kWidth) + kWidth));
  EXPECT_EQ(saves(false), kRows * kBytes * (kLayers * (2 * kWidth + kInner) + kWidth));
}

TEST(RecomputeActivationsTest, NotTogetherWithRecompute) {
  EXPECT_THAT([] { Gpt2(Gpt2Config{.recompute = true, .recompute_activations = true}); },
              Says(HasSubstr("recompute_activations has no effect")));
}

}  // namespace recompute_activations_test
}  // namespace apogee::nn
