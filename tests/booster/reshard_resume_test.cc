// SPDX-License-Identifier: Apache-2.0

// A run goes on from a checkpoint that was cut anew with the bits with which it goes on from the
// one that was saved, under every plugin; its weights alone are what save_model writes.
#include <gtest/gtest.h>

#include "apogee/booster/booster.h"
#include "apogee/checkpoint/reshard.h"
#include "apogee/nn/losses.h"
#include "apogee/nn/models/gpt2.h"
#include "apogee/optim/adam/adam.h"
#include "apogee/plugins/ddp.h"
#include "apogee/plugins/gemini.h"
#include "apogee/plugins/hybrid_parallel.h"
#include "apogee/plugins/low_level_zero.h"
#include "apogee/plugins/single_rank.h"
#include "apogee/tests/support/files/shared_temp_dir.h"
#include "apogee/tests/support/run_ranks.h"

namespace apogee {
namespace reshard_resume_test {

using apogee::testing::ReadFile;
using apogee::testing::RunRanks;
using apogee::testing::SharedTempDir;
using checkpoint::RealFileSystem;

struct Spread {
  const char* plugin;
  int ranks;
};

const std::vector<Spread>& Spreads() {
  static const auto& spreads =
      *new std::vector<Spread>{{"single", 1}, {"ddp", 2},      {"zero", 3},       {"hybrid", 4},
                               {"gemini", 3}, {"pipeline", 4}, {"pipeline_tp", 4}};
  return spreads;
}

std::unique_ptr<Plugin> Make(const Spread& spread, const comm::World& world) {
  const std::string name = spread.plugin;
  if (name == "single") {
    return std::make_unique<SingleRankPlugin>(TrainingOptions{.precision = Precision::kBf16});
  }
  if (name == "ddp") {
    return std::make_unique<DdpPlugin>(world.group(),
                                       TrainingOptions{.precision = Precision::kBf16});
  }
  if (name == "zero") {
    return std::make_unique<LowLevelZeroPlugin>(world.group(),
                                                TrainingOptions{.precision = Precision::kBf16},
                                                LowLevelZeroOptions{.stage = 2});
  }
  if (name == "gemini") {
    return std::make_unique<GeminiPlugin>(
        world.group(), TrainingOptions{.precision = Precision::kBf16, .bucket_bytes = 700});
  }
  if (name == "pipeline") {
    return std::make_unique<HybridParallelPlugin>(
        world, TrainingOptions{.precision = Precision::kBf16},
        HybridParallelOptions{.pp_size = 2,
                              .stage = 1,
                              .schedule = pipeline::ScheduleKind::kZbv,
                              .num_microbatches = 2});
  }
  if (name == "pipeline_tp") {
    return std::make_unique<HybridParallelPlugin>(
        world, TrainingOptions{.precision = Precision::kBf16},
        HybridParallelOptions{.tp_size = 2, .pp_size = 2, .num_microbatches = 2});
  }
  return std::make_unique<HybridParallelPlugin>(world,
                                                TrainingOptions{.precision = Precision::kBf16},
                                                HybridParallelOptions{.tp_size = 2, .stage = 1});
}

// One rank's run of a model whose vocabulary two ranks must pad.
struct GptRun {
  GptRun(const Spread& spread, uint64_t seed, const comm::World& world)
      : model({.vocab_size = 19, .n_positions = 8, .n_embd = 16, .n_layer = 2, .n_head = 4}) {
    model.Initialize(world.context(), {.seed = seed});
    optimizer.emplace(model.Parameters(), optim::AdamWOptions{.lr = 0.1});
    plugin = Make(spread, world);
    booster.emplace(*plugin);
    boosted.emplace(booster->boost(model, *optimizer, {.criterion = nn::CrossEntropyLoss()}));
  }
  void Step() {
    const Tensor tokens =
        Tensor::Zeros({2, 8}, DType::kI64, model.Parameters()[0]->data().context());
    booster->execute_pipeline({tokens, tokens}, model, boosted->criterion, &boosted->optimizer);
    boosted->optimizer.step();
    boosted->optimizer.zero_grad();
  }

  nn::Gpt2 model;
  std::optional<optim::AdamW> optimizer;
  std::unique_ptr<Plugin> plugin;
  std::optional<Booster> booster;
  std::optional<Boosted> boosted;
};

TEST(ReshardResumeTest, GoesOnWithTheSameBitsUnderEveryPlugin) {
  for (const Spread& saved :
       {Spreads()[2], Spreads()[3], Spreads()[4], Spreads()[5], Spreads()[6]}) {
    const SharedTempDir folder;
    RunRanks(saved.ranks, [&](comm::World& world) {
      GptRun run(saved, 1, world);
      run.Step();
      run.Step();
      ASSERT_EQ(run.booster->save_training_state(folder / "saved", {.step = 2}), absl::OkStatus());
      ASSERT_EQ(run.booster->save_model(folder / "weights"), absl::OkStatus());
    });
    RunRanks(1, [&](comm::World&) {
      const std::string from = folder / "saved/step-00000002";
      ASSERT_EQ(RealFileSystem()->MakeDir(folder / "cut"), absl::OkStatus());
      ASSERT_EQ(checkpoint::ReshardCheckpoint(RealFileSystem(), from, folder / "cut/step-00000002",
                                              {.num_files = 5}),
                absl::OkStatus());
      ASSERT_EQ(checkpoint::ExportModelWeights(RealFileSystem(), from, folder / "exported", {}),
                absl::OkStatus());
    });
    EXPECT_EQ(ReadFile(folder / "exported/model.safetensors"),
              ReadFile(folder / "weights/model.safetensors"));

    for (const Spread& spread : Spreads()) {
      std::string want;
      for (const std::string source : {"saved", "cut"}) {
        // With the step behind, states count as well as weights.
        const std::string next = folder / (source + spread.plugin);
        RunRanks(spread.ranks, [&](comm::World& world) {
          GptRun run(spread, 2, world);
          const auto resumed = run.booster->resume(folder / source);
          ASSERT_TRUE(resumed.ok()) << resumed.status();
          ASSERT_EQ(resumed->position.step, 2);
          run.Step();
          ASSERT_EQ(run.booster->save_training_state(next, {.step = 3}), absl::OkStatus());
        });
        // As one file, for every layout that wrote it.
        RunRanks(1, [&](comm::World&) {
          ASSERT_EQ(checkpoint::ReshardCheckpoint(RealFileSystem(), next + "/step-00000003",
                                                  next + "/one", {}),
                    absl::OkStatus());
        });
        const std::string got =
            ReadFile(next + "/one/rank-00000.safetensors") + ReadFile(next + "/one/manifest.json");
        if (want.empty()) want = got;
        EXPECT_EQ(got, want) << spread.plugin;
      }
    }
  }
}

}  // namespace reshard_resume_test
}  // namespace apogee
