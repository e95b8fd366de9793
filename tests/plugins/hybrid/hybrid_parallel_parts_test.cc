// SPDX-License-Identifier: Apache-2.0

// Optimizers, norms and criteria over parts of parameters and of logits: parts that are padding
// only, targets that do not count, states that go out and back in.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "apogee/booster/booster.h"
#include "apogee/nn/losses.h"
#include "apogee/optim/adam/adam.h"
#include "apogee/optim/grad_clip.h"
#include "apogee/optim/registry.h"
#include "apogee/plugins/hybrid_parallel.h"
#include "apogee/tests/plugins/hybrid/hybrid_short_run.h"
#include "apogee/tests/support/exactness.h"
#include "apogee/tests/support/run_ranks.h"
#include "apogee/tests/support/says.h"

namespace apogee {
namespace hybrid_parallel_parts_test {

using ::testing::AllOf;
using testing::ExpectEqualRuns;
using ::testing::HasSubstr;
using testing::HybridTask;
using testing::Ids;
using testing::kShortTokens;
using testing::RunRanks;
using testing::Says;
using testing::ShortGpt2;
using testing::ShortGpt2Task;
using testing::Weights;
using testing::WeightsOf;

// A rank's own norm would be another one on every rank, and so would the factor.
TEST(HybridParallelPartsTest, ANormOfPartsIsRefused) {
  RunRanks(2, [](comm::World& world) {
    nn::Gpt2 model(ShortGpt2(8));
    model.Initialize(world.context(), {.seed = 1});
    optim::AdamW optimizer(model.Parameters(), {});
    HybridParallelPlugin plugin(world, {}, {.tp_size = 2});
    Booster booster(plugin);
    Boosted boosted = booster.boost(model, optimizer, {.criterion = nn::CrossEntropyLoss()});
    const Tensor ids = Ids(8, 0, 0, 2, 0, world.context());
    booster.backward(boosted.criterion(boosted.model(ids), ids), optimizer);
    const auto refused =
        Says(AllOf(HasSubstr("transformer.wte.weight"), HasSubstr("part"), HasSubstr("max_norm")));
    EXPECT_THAT([&] { optim::ClipGradNorm(model.Parameters(), {.max_norm = 1}); }, refused);
    EXPECT_THAT([&] { optim::GradNorm(model.Parameters()); }, refused);
    // Element by element, parts are no different.
    EXPECT_NO_THROW(optim::ClipGradValue(model.Parameters(), 1e-3));
  });
}

// 5 words on 4 ranks: two each, so that the last rank has padding only.
TEST(HybridParallelPartsTest, ARankWithPaddingOnly) {
  for (const bool tied : {true, false}) {
    HybridTask task = ShortGpt2Task(5, tied);
    for (const int zero : {0, 1, 2, 3}) ExpectEqualRuns(task, 4, {.tp_size = 4, .stage = zero});
    ExpectEqualRuns(task, 8, {.tp_size = 4, .stage = 2});
  }
  for (const std::string optimizer : {"lamb", "adafactor", "came", "adamw8bit"}) {
    HybridTask task = ShortGpt2Task(5);
    task.optimizer = optimizer;
    if (optimizer == "adamw8bit") task.options["min_8bit_size"] = "0";
    if (optimizer == "adafactor") task.options["relative_step"] = "false";
    for (const int zero : {0, 2, 3}) ExpectEqualRuns(task, 8, {.tp_size = 4, .stage = zero});
  }
}

// Matrices of 16 have a rank of 4; 8-bit blocks end within rows and parts.
TEST(HybridParallelPartsTest, EveryOptimizerOnParts) {
  for (const std::string& name : optim::OptimizerNames()) {
    const optim::OptionMap defaults = ValueOrThrow(optim::OptimizerDefaults(name));
    HybridTask task = ShortGpt2Task(7);
    task.optimizer = name;
    task.options.clear();
    const auto set = [&](const char* key, const char* value) {
      if (defaults.contains(key)) task.options[key] = value;
    };
    if (!defaults.contains("relative_step")) set("lr", "0.005");
    set("weight_decay", "0.05");
    set("rank", "4");
    set("update_proj_gap", "2");
    set("min_8bit_size", "0");
    set("block_size", "64");
    if (name == "zero_one_adam") task.max_norm = 0;  // which it refuses
    // In its bases some gradients are little more than rounding, and a small eps magnifies them.
    if (name == "soap") set("eps", "1");
    for (const int zero : {0, 1, 2, 3}) {
      if (zero > 0 && optim::TakesLocalGradients(name)) continue;
      ExpectEqualRuns(task, 2, {.tp_size = 2, .stage = zero});
      ExpectEqualRuns(task, 8, {.tp_size = 4, .stage = zero});
    }
  }
}

// Targets that do not count, inside and outside of the vocabulary.
TEST(HybridParallelPartsTest, IgnoredTargets) {
  for (const int64_t ignored : {3, -100}) {
    HybridTask task = ShortGpt2Task(7);
    task.criterion = nn::CrossEntropyLoss{.ignore_index = ignored};
    ExpectEqualRuns(task, 2, {.tp_size = 2});
    ExpectEqualRuns(task, 4, {.tp_size = 4, .stage = 1});
  }
  RunRanks(2, [](comm::World& world) {
    nn::Gpt2 model(ShortGpt2(7));
    model.Initialize(world.context(), {.seed = 1});
    optim::AdamW optimizer(model.Parameters(), {});
    HybridParallelPlugin plugin(world, {}, {.tp_size = 2});
    Booster booster(plugin);
    Boosted boosted = booster.boost(model, optimizer, {.criterion = nn::CrossEntropyLoss()});
    const Tensor ids = Ids(7, 0, 0, 2, 0, world.context());
    const Tensor none = Tensor::Full({2, kShortTokens}, DType::kI64, -100, world.context());
    const Tensor logits = boosted.model(ids);
    // No target at all, regardless of one rank's report.
    const double want = nn::CrossEntropyLoss()(
                            Tensor::Zeros({2, kShortTokens, 7}, DType::kF32, world.context()), none)
                            .Item();
    EXPECT_EQ(std::isnan(boosted.criterion(logits, none).Item()), std::isnan(want));
    const Tensor narrow = Tensor::Zeros({2, kShortTokens, 3}, DType::kF32, world.context());
    EXPECT_THAT([&] { boosted.criterion(narrow, ids); },
                Says(AllOf(HasSubstr("[2, 4, 3]"), HasSubstr("neither whole, 7 words"),
                           HasSubstr("4 words of this rank"))));
    const Tensor outside = Tensor::Full({2, kShortTokens}, DType::kI64, 7, world.context());
    EXPECT_THAT([&] { boosted.criterion(logits, outside); }, Says(HasSubstr("7")));
  });
}

// What state_dict gives goes back in, and training from there gives the same weights.
TEST(HybridParallelPartsTest, StatesGoBackIn) {
  for (const std::string name : {"adamw", "came"}) {
    for (const int zero : {0, 2, 3}) {
      RunRanks(4, [&](comm::World& world) {
        nn::Gpt2 model(ShortGpt2(7));
        model.Initialize(world.context(), {.seed = 1});
        const auto optimizer =
            ValueOrThrow(optim::MakeOptimizer(name, model.Parameters(), {{"lr", "0.01"}}));
        HybridParallelPlugin plugin(world, {.precision = Precision::kBf16, .max_norm = 0.5},
                                    {.tp_size = 2, .stage = zero});
        Booster booster(plugin);
        Boosted boosted = booster.boost(model, *optimizer, {.criterion = nn::CrossEntropyLoss()});
        const auto train = [&](int64_t begin, int64_t end) {
          for (int64_t step = begin; step < end; ++step) {
            const int64_t first = plugin.data_rank() * 4;
            booster.backward(
                boosted.criterion(boosted.model(Ids(7, step, first, 4, 0, world.context())),
                                  Ids(7, step, first, 4, 1, world.context())),
                *optimizer);
            optimizer->step();
            optimizer->zero_grad();
          }
        };
        train(0, 2);
        optim::StateDict saved = optimizer->state_dict();
        for (auto& [parameter, state] : saved.params) {
          for (auto& [state_name, entry] : state.states) entry.value = entry.value.Clone();
        }
        std::map<std::string, Tensor> values;
        for (const auto& p : model.Parameters()) values[p->name()] = p->data().Clone();
        train(2, 4);
        const Weights want = WeightsOf(model);
        for (const auto& p : model.Parameters()) p->data().CopyFrom(values[p->name()]);
        const absl::Status status = optimizer->load_state_dict(saved);
        EXPECT_TRUE(status.ok()) << status;
        train(2, 4);
        EXPECT_EQ(WeightsOf(model), want) << name << " zero " << zero;
      });
    }
  }
}

}  // namespace hybrid_parallel_parts_test
}  // namespace apogee
