// SPDX-License-Identifier: Apache-2.0

// Checkpoints of models with experts: each layout of ranks reads what every other one wrote, with
// the same bits of every expert, and goes on as that one does.
#include <gtest/gtest.h>

#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/booster/booster.h"
#include "apogee/nn/losses.h"
#include "apogee/nn/models/decoder.h"
#include "apogee/optim/adam/adam.h"
#include "apogee/plugins/hybrid_parallel.h"
#include "apogee/tests/support/files/shared_temp_dir.h"
#include "apogee/tests/support/run_ranks.h"

namespace apogee {
namespace experts_resume_test {

using apogee::testing::RunRanks;
using apogee::testing::SharedTempDir;

struct Layout {
  int ep, tp, stage;
  int ranks() const { return std::max(4, ep * tp); }
  std::string name() const {
    return "ep" + std::to_string(ep) + "tp" + std::to_string(tp) + "zero" + std::to_string(stage);
  }
};

std::vector<Layout> Layouts() {
  std::vector<Layout> layouts;
  for (const int ep : {1, 2, 4}) {
    for (const int tp : {1, 2}) {
      for (const int stage : {0, 1, 2, 3}) {
        layouts.push_back({ep, tp, stage});
      }
    }
  }
  return layouts;
}

nn::DecoderConfig Config() {
  nn::DecoderConfig config{.vocab_size = 19, .num_layers = 1, .max_tokens = 8};
  config.block.hidden_size = 16;
  config.block.intermediate_size = 24;
  config.block.num_heads = 4;
  config.block.num_kv_heads = 2;
  config.block.head_dim = 4;
  config.block.norm_eps = 0.01;
  config.block.init = nn::Init::Normal(0, 0.3);
  // With 16 experts and one choice some are absent in a step.
  config.block.moe = {.num_experts = 16, .top_k = 1, .intermediate_size = 6};
  return config;
}

struct Trained {
  Trained(const Layout& layout, uint64_t seed, const comm::World& world)
      : world(world),
        model(Config()),
        plugin(world, {.precision = Precision::kF64},
               {.tp_size = layout.tp, .ep_size = layout.ep, .stage = layout.stage}),
        booster(plugin) {
    model.Initialize(world.context(), {.seed = seed, .dtype = DType::kF64});
    optimizer.emplace(model.Parameters(), optim::AdamWOptions{.lr = 0.01, .weight_decay = 0.1});
    boosted.emplace(booster.boost(model, *optimizer, {.criterion = nn::CrossEntropyLoss()}));
  }
  // The same 8 samples for every layout, spread over its data-parallel ranks.
  void Step(int64_t step) {
    const int64_t count = 8 / plugin.data_size();
    std::vector<int64_t> ids;
    for (int64_t i = 0; i < count * 8; ++i) {
      const int64_t place = plugin.data_rank() * count * 8 + i;
      ids.push_back((place * place * 5 + 3 * place + 11 * step) % 19);
    }
    const Tensor tokens = Tensor::FromVector(ids, {count, 8}, world.context());
    booster.backward(boosted->criterion(boosted->model(tokens), tokens), boosted->optimizer);
    boosted->optimizer.step();
    boosted->optimizer.zero_grad();
  }
  std::map<std::string, std::vector<double>> Values() {
    std::map<std::string, std::vector<double>> values;
    for (const auto& parameter : model.Parameters()) {
      values[parameter->name()] = plugin.WholeValue(*parameter).ToVector<double>();
    }
    return values;
  }

  const comm::World& world;
  nn::Decoder model;
  std::optional<optim::AdamW> optimizer;
  HybridParallelPlugin plugin;
  Booster booster;
  std::optional<Boosted> boosted;
};

TEST(ExpertsResumeTest, EveryLayoutReadsEveryOther) {
  const SharedTempDir folder;
  const std::vector<Layout> layouts = Layouts();
  for (const Layout& saved : layouts) {
    std::map<std::string, std::vector<double>> want, next;
    RunRanks(saved.ranks(), [&](comm::World& world) {
      Trained run(saved, 1, world);
      run.Step(0);
      run.Step(1);
      ASSERT_EQ(run.booster.save_training_state(folder / saved.name(), {.step = 2}),
                absl::OkStatus());
      auto values = run.Values();
      run.Step(2);
      auto later = run.Values();
      if (world.rank() == 0) want = std::move(values), next = std::move(later);
    });
    for (const Layout& loaded : layouts) {
      SCOPED_TRACE(saved.name() + " to " + loaded.name());
      RunRanks(loaded.ranks(), [&](comm::World& world) {
        Trained run(loaded, 2, world);
        const auto resumed = run.booster.resume(folder / saved.name());
        ASSERT_TRUE(resumed.ok()) << resumed.status();
        EXPECT_EQ(run.Values(), want);
        run.Step(2);
        for (const auto& [name, values] : run.Values()) {
          const std::vector<double>& later = next.at(name);
          for (size_t i = 0; i < values.size(); ++i) {
            if (loaded.name() == saved.name()) ASSERT_EQ(values[i], later[i]) << name;
            ASSERT_NEAR(values[i], later[i], 1e-9) << name;
          }
        }
      });
    }
  }
}

}  // namespace experts_resume_test
}  // namespace apogee
