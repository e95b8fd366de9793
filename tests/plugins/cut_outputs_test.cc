// SPDX-License-Identifier: Apache-2.0

// Outputs that stay cut for the criterion that boost returns are of no use to anything else: no
// number that only looks right.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/functions/shape.h"
#include "apogee/booster/booster.h"
#include "apogee/nn/losses.h"
#include "apogee/nn/models/gpt2.h"
#include "apogee/optim/adam/adam.h"
#include "apogee/plugins/hybrid_parallel.h"
#include "apogee/tests/support/run_ranks.h"
#include "apogee/tests/support/says.h"

namespace apogee {
namespace cut_outputs_test {

using nn::parallel::SequenceMode;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::RunRanks;
using testing::Says;

constexpr int64_t kWords = 40, kSamples = 2, kTokens = 8;
const nn::Gpt2Config kConfig = {
    .vocab_size = kWords, .n_positions = kTokens, .n_embd = 16, .n_layer = 2, .n_head = 4};

// All in the first half of the vocabulary, as ASCII is of bytes: nothing fails of itself.
Tensor Words(int64_t seed, const ContextPtr& context) {
  std::vector<int64_t> words;
  for (int64_t i = 0; i < kSamples * kTokens; ++i) words.push_back((i * i + seed) % (kWords / 2));
  return Tensor::FromVector<int64_t>(words, {kSamples, kTokens}, context);
}

Tensor Shifted(const Tensor& x) { return autograd::Slice(x, 1, 0, kTokens - 1); }

struct Case {
  const char* name;
  HybridParallelOptions options;
  const char* what;  // is said of the outputs
};

const Case kCases[] = {{"tp", {.tp_size = 2}, "part of the vocabulary"},
                       {"tp zero 2", {.tp_size = 2, .stage = 2}, "part of the vocabulary"},
                       {"tp zero 3", {.tp_size = 2, .stage = 3}, "part of the vocabulary"},
                       {"split_gather",
                        {.tp_size = 2, .sp_mode = SequenceMode::kSplitGather},
                        "part of the vocabulary"},
                       {"ring_attn",
                        {.sp_size = 2, .sp_mode = SequenceMode::kRingAttention},
                        "4 tokens of 8 of each sequence"},
                       {"all_to_all",
                        {.sp_size = 2, .sp_mode = SequenceMode::kAllToAll},
                        "4 tokens of 8 of each sequence"}};

TEST(CutOutputsTest, AreForTheCriterionOfBoostAlone) {
  for (const Case& each : kCases) {
    SCOPED_TRACE(each.name);
    RunRanks(2, [&](comm::World& world) {
      nn::Gpt2 model(kConfig), plain(kConfig);
      for (nn::Gpt2* any : {&model, &plain}) {
        any->Initialize(world.context(), {.seed = 1, .dtype = DType::kF64});
      }
      optim::AdamW optimizer(model.Parameters(), {});
      HybridParallelPlugin plugin(world, {.precision = Precision::kF64}, each.options);
      Booster booster(plugin);
      const nn::CrossEntropyLoss raw;
      const Boosted boosted = booster.boost(model, optimizer, {.criterion = raw});
      const Tensor inputs = Words(1, world.context()), targets = Words(3, world.context());
      const double want = raw(plain(inputs), targets).Item();
      const Tensor output = boosted.model(inputs);
      const auto refused =
          Says(AllOf(HasSubstr(each.what), HasSubstr("use boosted.criterion (from boost)")));
      EXPECT_THAT([&] { raw(output, targets); }, refused);
      EXPECT_THAT([&] { raw(output, Words(30, world.context())); }, refused);
      EXPECT_THAT([&] { autograd::Mean(autograd::Mul(output, output)); }, refused);
      EXPECT_THAT(
          [&] {
            raw(autograd::View(output, {output.numel() / output.size(-1), output.size(-1)}),
                targets);
          },
          refused);
      EXPECT_THAT([&] { output.ToVector<double>(); }, refused);
      EXPECT_NEAR(boosted.criterion(output, targets).Item(), want, 1e-12);
      booster.backward(boosted.criterion(output, targets), boosted.optimizer);
      boosted.optimizer.zero_grad();
      if (each.options.sp_size == 1) {  // a part of the tokens is a part of each rank's logits
        EXPECT_NEAR(boosted.criterion(Shifted(output), Shifted(targets)).Item(),
                    raw(Shifted(plain(inputs)), Shifted(targets)).Item(), 1e-12);
      }
      model.Train(false);
      EXPECT_NEAR(raw(boosted.model(inputs), targets).Item(), want, 1e-12);
      EXPECT_NEAR(boosted.criterion(boosted.model(inputs), targets).Item(), want, 1e-12);
    });
  }
}

TEST(CutOutputsTest, AreWholeForAnotherCriterion) {
  for (const Case& each : kCases) {
    SCOPED_TRACE(each.name);
    RunRanks(2, [&](comm::World& world) {
      nn::Gpt2 model(kConfig), plain(kConfig);
      for (nn::Gpt2* any : {&model, &plain}) any->Initialize(world.context(), {.seed = 1});
      optim::AdamW optimizer(model.Parameters(), {});
      HybridParallelPlugin plugin(world, {}, each.options);
      Booster booster(plugin);
      std::ignore = booster.boost(model, optimizer);
      const Tensor inputs = Words(1, world.context());
      const auto want = plain(inputs).ToVector<double>();
      EXPECT_THAT(model(inputs).ToVector<double>(),
                  ::testing::Pointwise(::testing::DoubleNear(1e-5), want));
    });
  }
}

// The last stage's ranks alone see the outputs; the others are told why those ended.
TEST(CutOutputsTest, InAPipeline) {
  const HybridParallelOptions layouts[] = {
      {.tp_size = 2, .pp_size = 2, .num_microbatches = 2},
      {.pp_size = 2, .sp_size = 2, .sp_mode = SequenceMode::kRingAttention, .num_microbatches = 2}};
  for (const HybridParallelOptions& options : layouts) {
    const absl::Status status = testing::LaunchRanks(
        {.num_ranks = 4, .threads_per_rank = 1, .timeout_seconds = 20}, [&](comm::World& world) {
          nn::Gpt2 model(kConfig);
          model.Initialize(world.context(), {.seed = 1});
          optim::AdamW optimizer(model.Parameters(), {});
          HybridParallelPlugin plugin(world, {}, options);
          Booster booster(plugin);
          const nn::CrossEntropyLoss raw;
          Boosted boosted = booster.boost(model, optimizer, {.criterion = raw});
          const data::Batch batch = {Words(1, world.context()), Words(3, world.context())};
          const PipelineResult result = booster.execute_pipeline(
              batch, model, boosted.criterion, &boosted.optimizer, {.return_outputs = true});
          if (result.outputs.defined()) {
            EXPECT_EQ(result.outputs.size(0), kSamples);
            EXPECT_THAT([&] { result.outputs.ToVector<float>(); },
                        Says(HasSubstr("use boosted.criterion (from boost)")));
          }
          booster.execute_pipeline(batch, model, raw, &boosted.optimizer);
        });
    EXPECT_THAT(Message(status), HasSubstr("use boosted.criterion (from boost)"));
  }
}

}  // namespace cut_outputs_test
}  // namespace apogee
