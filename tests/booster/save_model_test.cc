// SPDX-License-Identifier: Apache-2.0

// Booster::save_model writes the same weights under every plugin, and load_model reads them, bit
// for bit, under any.
#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "apogee/booster/booster.h"
#include "apogee/checkpoint/format/safetensors_reader.h"
#include "apogee/nn/losses.h"
#include "apogee/nn/models/gpt2.h"
#include "apogee/nn/models/llama.h"
#include "apogee/optim/adam/adam.h"
#include "apogee/optim/schedule/lr_schedule.h"
#include "apogee/plugins/ddp.h"
#include "apogee/plugins/gemini.h"
#include "apogee/plugins/hybrid_parallel.h"
#include "apogee/plugins/low_level_zero.h"
#include "apogee/plugins/single_rank.h"
#include "apogee/tests/support/files/shared_temp_dir.h"
#include "apogee/tests/support/run_ranks.h"

namespace apogee {
namespace save_model_test {

using apogee::testing::ReadFile;
using apogee::testing::RunRanks;
using apogee::testing::SharedTempDir;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kVocab = 19;  // odd: two ranks pad it

struct Spread {
  std::string plugin;
  int ranks;
};

std::unique_ptr<Plugin> Make(const Spread& spread, Precision precision, const comm::World& world) {
  if (spread.plugin == "single") {
    return std::make_unique<SingleRankPlugin>(TrainingOptions{.precision = precision});
  }
  if (spread.plugin == "ddp") {
    return std::make_unique<DdpPlugin>(world.group(), TrainingOptions{.precision = precision});
  }
  if (spread.plugin == "hybrid") {
    return std::make_unique<HybridParallelPlugin>(world, TrainingOptions{.precision = precision},
                                                  HybridParallelOptions{.tp_size = 2, .stage = 1});
  }
  if (spread.plugin == "gemini") {
    return std::make_unique<GeminiPlugin>(
        world.group(), TrainingOptions{.precision = precision, .bucket_bytes = 700});
  }
  return std::make_unique<LowLevelZeroPlugin>(
      world.group(), TrainingOptions{.precision = precision}, LowLevelZeroOptions{.stage = 2});
}

const std::vector<Spread>& Spreads() {
  static const auto& spreads = *new std::vector<Spread>{
      {"single", 1}, {"ddp", 2}, {"zero2", 3}, {"gemini", 3}, {"hybrid", 4}};
  return spreads;
}

std::unique_ptr<nn::Module> MakeModel(const std::string& name, bool tied) {
  if (name == "gpt2") {
    return std::make_unique<nn::Gpt2>(nn::Gpt2Config{.vocab_size = kVocab,
                                                     .n_positions = 8,
                                                     .n_embd = 16,
                                                     .n_layer = 2,
                                                     .n_head = 4,
                                                     .tie_word_embeddings = tied});
  }
  return std::make_unique<nn::Llama>(nn::LlamaConfig{.vocab_size = kVocab,
                                                     .hidden_size = 32,
                                                     .intermediate_size = 24,
                                                     .num_hidden_layers = 2,
                                                     .num_attention_heads = 4,
                                                     .num_key_value_heads = 2,
                                                     .max_position_embeddings = 8,
                                                     .tie_word_embeddings = tied});
}

struct Trained {
  Trained(const std::string& name, bool tied, uint64_t seed, const Spread& spread,
          Precision precision, const comm::World& world, bool schedule = false)
      : model(MakeModel(name, tied)) {
    model->Initialize(world.context(), {.seed = seed});
    optimizer = std::make_unique<optim::AdamW>(model->Parameters(), optim::AdamWOptions{.lr = 0.1});
    plugin = Make(spread, precision, world);
    booster = std::make_unique<Booster>(*plugin);
    if (schedule) {
      scheduler = std::make_unique<optim::LrScheduler>(
          *optimizer, optim::CosineSchedule({.total_steps = 10, .warmup_steps = 2}));
    }
    boosted.emplace(booster->boost(
        *model, *optimizer, {.criterion = nn::CrossEntropyLoss(), .scheduler = scheduler.get()}));
  }
  std::unique_ptr<nn::Module> model;
  std::unique_ptr<optim::Optimizer> optimizer;
  std::unique_ptr<optim::LrScheduler> scheduler;
  std::unique_ptr<Plugin> plugin;
  std::unique_ptr<Booster> booster;
  std::optional<Boosted> boosted;
};

absl::Status Save(Trained& setup, const std::string& path) {
  return setup.booster->save_model(path);
}
absl::Status Load(Trained& setup, const std::string& path) {
  return setup.booster->load_model(path).status();
}

class SaveModelTest : public ::testing::TestWithParam<std::tuple<const char*, bool>> {};

TEST_P(SaveModelTest, AnyPluginToAnyPlugin) {
  const auto [name, tied] = GetParam();
  const SharedTempDir folder;
  // What the single rank writes of the values that Initialize draws.
  std::string want;
  for (const Spread& spread : Spreads()) {
    const std::string path = folder / spread.plugin, again = folder / (spread.plugin + "_again");
    RunRanks(spread.ranks, [&, model = std::string(name), is_tied = tied](comm::World& world) {
      Trained saved(model, is_tied, 1, spread, Precision::kF32, world);
      ASSERT_EQ(Save(saved, path), absl::OkStatus());
    });
    const std::string wrote = ReadFile(path + "/model.safetensors");
    ASSERT_FALSE(wrote.empty());
    if (want.empty()) want = wrote;
    EXPECT_EQ(wrote, want) << spread.plugin << ": other bytes than a single rank's";
    RunRanks(spread.ranks, [&, model = std::string(name), is_tied = tied](comm::World& world) {
      Trained loaded(model, is_tied, 2, spread, Precision::kF32, world);
      ASSERT_EQ(Load(loaded, folder / "single"), absl::OkStatus());
      ASSERT_EQ(Save(loaded, again), absl::OkStatus());
    });
    EXPECT_EQ(ReadFile(again + "/model.safetensors"), want) << spread.plugin;
  }
  const auto file = checkpoint::SafetensorsReader::Open(folder / "single/model.safetensors");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->contains("lm_head.weight"), !tied);
  EXPECT_EQ(static_cast<size_t>(MakeModel(name, tied)->Parameters().size()),
            file->entries().size());
}

INSTANTIATE_TEST_SUITE_P(Models, SaveModelTest,
                         ::testing::Combine(::testing::Values("gpt2", "llama"), ::testing::Bool()));

// Masters that kept the old weights would bring them back with the first step.
TEST(LoadModelTest, MastersFollow) {
  const SharedTempDir folder;
  RunRanks(1, [&](comm::World& world) {
    Trained saved("gpt2", true, 1, {"single", 1}, Precision::kF32, world);
    ASSERT_EQ(Save(saved, folder / "f32"), absl::OkStatus());
  });
  for (const Spread& spread : Spreads()) {
    const auto step = [&](uint64_t seed, const std::string& path, comm::World& world) {
      Trained setup("gpt2", true, seed, spread, Precision::kBf16, world);
      ASSERT_EQ(Load(setup, folder / "f32"), absl::OkStatus());
      const Tensor tokens = Tensor::Zeros({1, 8}, DType::kI64, world.context());
      const Tensor loss = setup.boosted->criterion(setup.boosted->model(tokens), tokens);
      setup.booster->backward(loss, setup.boosted->optimizer);
      setup.boosted->optimizer.step();
      ASSERT_EQ(Save(setup, path), absl::OkStatus());
    };
    // From other values, and from those that the file has.
    for (const uint64_t seed : {1, 2}) {
      RunRanks(spread.ranks, [&](comm::World& world) {
        step(seed, folder / (spread.plugin + std::to_string(seed)), world);
      });
    }
    const std::string want = ReadFile(folder / (spread.plugin + "1/model.safetensors"));
    EXPECT_FALSE(want.empty());
    EXPECT_EQ(ReadFile(folder / (spread.plugin + "2/model.safetensors")), want) << spread.plugin;
  }
}

TEST(LoadModelTest, WhatDoesNotFit) {
  const SharedTempDir folder;
  RunRanks(2, [&](comm::World& world) {
    Trained saved("gpt2", false, 1, {"ddp", 2}, Precision::kF32, world);
    ASSERT_EQ(Save(saved, folder / "out"), absl::OkStatus());
    Trained other("gpt2", true, 1, {"ddp", 2}, Precision::kF32, world);
    EXPECT_THAT(Message(Load(other, folder / "out")),
                AllOf(HasSubstr("rank 0: "),
                      HasSubstr("\"lm_head.weight\" is not \"transformer.wte.weight\"")));
    const auto loaded = other.booster->load_model(folder / "out", {.strict = false});
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_EQ(loaded->unexpected, std::vector<std::string>{"lm_head.weight"});
    SingleRankPlugin plugin;
    Booster unused(plugin);
    EXPECT_THROW(unused.save_model(folder / "x").IgnoreError(), Error);
  });
}

// Pieces of a run in folders of their own are the run, under another plugin too.
TEST(SaveOptimizerTest, PiecesGoOnAsTheWhole) {
  const SharedTempDir folder;
  const auto train = [](Trained& setup, optim::LrScheduler& scheduler, int64_t steps) {
    for (int64_t i = 0; i < steps; ++i) {
      const Tensor tokens =
          Tensor::Full({12, 8}, DType::kI64, static_cast<double>(scheduler.num_steps() + 1),
                       setup.model->Parameters()[0]->data().context());
      setup.booster->backward(setup.boosted->criterion(setup.boosted->model(tokens), tokens),
                              setup.boosted->optimizer);
      setup.boosted->optimizer.step();
      setup.boosted->optimizer.zero_grad();
      scheduler.step();
    }
  };
  for (const Precision precision : {Precision::kF32, Precision::kBf16}) {
    const std::string at = folder / Name(precision);
    std::filesystem::create_directory(at);
    RunRanks(1, [&](comm::World& world) {
      Trained setup("gpt2", true, 1, {"single", 1}, precision, world, /*schedule=*/true);
      train(setup, *setup.scheduler, 2);
      ASSERT_EQ(setup.booster->save_model(at + "/model"), absl::OkStatus());
      ASSERT_EQ(setup.booster->save_optimizer(at + "/optimizer"), absl::OkStatus());
      ASSERT_EQ(setup.booster->save_lr_scheduler(at + "/schedule"), absl::OkStatus());
      train(setup, *setup.scheduler, 2);
      ASSERT_EQ(setup.booster->save_model(at + "/want"), absl::OkStatus());
      ASSERT_EQ(setup.booster->save_optimizer(at + "/want_optimizer"), absl::OkStatus());
    });
    for (const Spread& spread : Spreads()) {
      const std::string got = at + "/got_" + spread.plugin;
      RunRanks(spread.ranks, [&](comm::World& world) {
        Trained setup("gpt2", true, 2, spread, precision, world, /*schedule=*/true);
        ASSERT_TRUE(setup.booster->load_model(at + "/model").ok());
        ASSERT_EQ(setup.booster->load_optimizer(at + "/optimizer"), absl::OkStatus());
        ASSERT_EQ(setup.booster->load_lr_scheduler(at + "/schedule"), absl::OkStatus());
        // Saved again, before a step of other roundings, they are the same bytes.
        ASSERT_EQ(setup.booster->save_optimizer(got + "_optimizer"), absl::OkStatus());
        ASSERT_EQ(setup.booster->save_model(got + "_model"), absl::OkStatus());
        if (spread.ranks > 1) return;
        train(setup, *setup.scheduler, 2);
        ASSERT_EQ(setup.booster->save_model(got), absl::OkStatus());
      });
      EXPECT_EQ(ReadFile(got + "_model/model.safetensors"),
                ReadFile(at + "/model/model.safetensors"));
      if (spread.ranks == 1) {
        EXPECT_EQ(ReadFile(got + "/model.safetensors"), ReadFile(at + "/want/model.safetensors"));
        EXPECT_EQ(ReadFile(got + "_optimizer/rank-00000.safetensors"),
                  ReadFile(at + "/optimizer/rank-00000.safetensors"));
        EXPECT_NE(ReadFile(at + "/want/model.safetensors"),
                  ReadFile(at + "/model/model.safetensors"));
      }
    }
  }
}

// Without its schedule or its loss scale a run goes on otherwise than the saved one.
TEST(ResumeTest, WhatThisRunLacksIsTold) {
  const SharedTempDir folder;
  RunRanks(2, [&](comm::World& world) {
    Trained scheduled("gpt2", true, 1, {"ddp", 2}, Precision::kFp16, world, /*schedule=*/true);
    ASSERT_EQ(scheduled.booster->save_training_state(folder / "run", {.step = 1}),
              absl::OkStatus());
    Trained same("gpt2", true, 1, {"ddp", 2}, Precision::kFp16, world, /*schedule=*/true);
    EXPECT_THAT(ValueOrThrow(same.booster->resume(folder / "run")).notices, ::testing::IsEmpty());
    Trained bare("gpt2", true, 1, {"ddp", 2}, Precision::kFp16, world);
    EXPECT_THAT(ValueOrThrow(bare.booster->resume(folder / "run")).notices,
                ::testing::ElementsAre(HasSubstr("step-00000001: was saved with a learning-rate "
                                                 "schedule, this run has none")));
  });
}

TEST(SaveOptimizerTest, WhatDoesNotFit) {
  const SharedTempDir folder;
  RunRanks(2, [&](comm::World& world) {
    Trained setup("gpt2", true, 1, {"ddp", 2}, Precision::kF32, world);
    ASSERT_EQ(setup.booster->save_optimizer(folder / "adamw"), absl::OkStatus());
    EXPECT_TRUE(absl::IsAlreadyExists(setup.booster->save_optimizer(folder / "adamw")));
    EXPECT_THROW(setup.booster->save_lr_scheduler(folder / "s").IgnoreError(), Error);
    EXPECT_TRUE(absl::IsNotFound(setup.booster->load_optimizer(folder / "none")));

    Trained other("llama", true, 1, {"ddp", 2}, Precision::kF32, world, /*schedule=*/true);
    const absl::Status shapes = other.booster->load_optimizer(folder / "adamw");
    EXPECT_TRUE(absl::IsInvalidArgument(shapes)) << shapes;
    const absl::Status schedule = other.booster->load_lr_scheduler(folder / "adamw");
    EXPECT_TRUE(absl::IsInvalidArgument(schedule)) << schedule;
    EXPECT_THAT(Message(schedule), HasSubstr("was saved without a learning-rate schedule"));
    const absl::Status pickles =
        other.booster->save_model(folder / "bin", {.use_safetensors = false});
    EXPECT_THAT(Message(pickles), HasSubstr("use_safetensors = false would need pickles"));
  });
}

}  // namespace save_model_test
}  // namespace apogee
