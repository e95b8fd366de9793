// SPDX-License-Identifier: Apache-2.0

// Adapters on a base in few bits: the same codes under every plugin, their memory, checkpoints, and
// what is refused. The matrix compares the trained adapters with those of one rank.
#include <gmock/gmock-matchers.h>

#include "apogee/nn/quantized/quantized_weight.h"
#include "apogee/tensor/kernels/block_codes.h"
#include "apogee/tests/booster/lora/tuned.h"
#include "apogee/tests/support/files/shared_temp_dir.h"
#include "apogee/tests/support/says.h"

namespace apogee {
namespace quantized_base_test {

using apogee::testing::RunRanks;
using apogee::testing::Says;
using apogee::testing::SharedTempDir;
using ::testing::HasSubstr;
using testing::adapters::kSpreads;
using testing::adapters::Tuned;

constexpr nn::QuantizeOptions kNf4 = {};

Tuned OnNf4(bool gpt2, const comm::World& world, const std::string& plugin,
            Precision precision = Precision::kF32) {
  return Tuned(gpt2, world, plugin, "", /*seed=*/1, precision, kNf4);
}

// The bytes of every weight, by name.
std::map<std::string, std::vector<uint8_t>> CodesOf(Tuned& run) {
  std::map<std::string, std::vector<uint8_t>> codes;
  for (const auto& quantized : run.model->QuantizedWeights()) {
    codes[quantized->stored()->name()] =
        run.plugin->WholeValue(*quantized->stored()).ToVector<uint8_t>();
  }
  return codes;
}

TEST(QuantizedBaseTest, TheSameCodesUnderEveryPluginBeforeAndAfterSteps) {
  for (const bool gpt2 : {false, true}) {
    for (const Precision precision : {Precision::kF32, Precision::kBf16}) {
      for (const auto& [plugin, ranks] : kSpreads) {
        RunRanks(ranks, [&, name = std::string(plugin)](comm::World& world) {
          Tuned run = OnNf4(gpt2, world, name, precision);
          const auto before = CodesOf(run);
          for (int i = 0; i < 2; ++i) run.Step(world);
          EXPECT_TRUE(CodesOf(run) == before) << name;
          Tuned alone = OnNf4(gpt2, world, "single", precision);
          EXPECT_TRUE(before == CodesOf(alone)) << name;
          EXPECT_EQ(before.size(), gpt2 ? 8U : 14U);
        });
      }
    }
  }
}

// A rank of Gemini has its share of the bytes; nothing of them has gradients or states.
TEST(QuantizedBaseTest, TheBytesAreShared) {
  RunRanks(2, [&](comm::World& world) {
    Tuned run = OnNf4(/*gpt2=*/false, world, "gemini");
    run.Step(world);
    int64_t bytes = 0, here = 0;
    for (const auto& quantized : run.model->QuantizedWeights()) {
      bytes += quantized->codes().bytes();
      here += quantized->stored()->data().bytes();
      EXPECT_FALSE(quantized->stored()->has_grad());
    }
    // The padding of a chunk belongs to no parameter.
    const Tensor sum = Tensor::Full({1}, DType::kF64, static_cast<double>(here), world.context());
    world.group()->AllReduce(sum);
    EXPECT_EQ(sum.Item(), static_cast<double>(bytes));
    EXPECT_LT(std::abs(2 * here - bytes), bytes / 20);
    for (const optim::ParamView& view : run.boosted->optimizer.views()) {
      EXPECT_TRUE(IsFloat(view.dtype())) << view.name();
    }
  });
}

TEST(QuantizedBaseTest, CheckpointsKnowTheCodes) {
  const SharedTempDir shared;
  for (const auto& [plugin, ranks] : kSpreads) {
    const SharedTempDir folder;
    RunRanks(ranks, [&, name = std::string(plugin)](comm::World& world) {
      Tuned whole = OnNf4(/*gpt2=*/false, world, name), first = OnNf4(false, world, name);
      for (int i = 0; i < 4; ++i) whole.Step(world);
      for (int i = 0; i < 2; ++i) first.Step(world);
      OkOrThrow(first.booster.save_training_state(folder / "run", {.step = 2}));
      Tuned next = OnNf4(/*gpt2=*/false, world, name);
      OkOrThrow(next.booster.resume(folder / "run").status());
      for (int i = 0; i < 2; ++i) next.Step(world);
      for (size_t i = 0; i < whole.model->Parameters().size(); ++i) {
        const auto a = whole.model->Parameters()[i], b = next.model->Parameters()[i];
        EXPECT_EQ(next.plugin->WholeValue(*b).ToVector<double>(),
                  whole.plugin->WholeValue(*a).ToVector<double>())
            << name << " " << a->name();
      }
      // From one rank, whose digest of the codes must be the same.
      if (name == "single") {
        OkOrThrow(first.booster.save_training_state(shared / "run", {.step = 2}));
      }
      Tuned other = OnNf4(/*gpt2=*/false, world, name);
      OkOrThrow(other.booster.resume(shared / "run").status());
      Tuned plain(/*gpt2=*/false, world, name);
      EXPECT_THAT(Message(plain.booster.resume(folder / "run").status()),
                  HasSubstr("the frozen weights below the adapters are others"));
    });
  }
}

TEST(QuantizedBaseTest, WhatIsRefused) {
  const SharedTempDir folder;
  RunRanks(2, [&](comm::World& world) {
    Tuned run = OnNf4(/*gpt2=*/false, world, "gemini");
    EXPECT_THAT(Message(run.booster.save_model(folder / "model")),
                HasSubstr("the base is quantized"));
    EXPECT_THAT(Message(run.booster.load_model(folder / "model").status()),
                HasSubstr("the base is quantized"));
    OkOrThrow(run.booster.save_adapter(folder / "adapter"));
    const Tuned again(/*gpt2=*/false, world, "hybrid", folder / "adapter", 1, Precision::kF32,
                      kNf4);
    EXPECT_EQ(again.model->QuantizedWeights().size(), 14U);
    // Nothing would be trained.
    SingleRankPlugin plugin;
    Booster booster(plugin);
    const auto model = testing::adapters::MakeModel(/*gpt2=*/false);
    model->Initialize(world.context(), {.seed = 1});
    nn::QuantizeLinears(*model, {});
    optim::AdamW optimizer(model->Parameters(), optim::AdamWOptions{});
    EXPECT_THAT([&] { std::ignore = booster.boost(*model, optimizer); },
                Says(HasSubstr("it has no adapters; call enable_lora")));
  });
}

}  // namespace quantized_base_test
}  // namespace apogee
