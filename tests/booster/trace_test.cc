// SPDX-License-Identifier: Apache-2.0

// Booster::TraceTo: what a traced run records, and that it computes what it computes untraced.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "apogee/booster/booster.h"
#include "apogee/comm/launch.h"
#include "apogee/nn/losses.h"
#include "apogee/nn/models/mlp.h"
#include "apogee/optim/adam/adam.h"
#include "apogee/plugins/low_level_zero.h"
#include "apogee/tests/support/files/trace_file.h"

namespace apogee {
namespace trace_test {

using ::apogee::testing::TempDir;
using ::apogee::testing::TraceFile;
using ::testing::Contains;
using ::testing::Each;

constexpr int kRanks = 2, kSteps = 3;

// Two saves, one in the background; returns rank 0's parameters at the end.
std::vector<std::vector<float>> Train(Trace* trace, const std::string& folder) {
  std::vector<std::vector<float>> values;
  OkOrThrow(comm::launch(
      {.num_ranks = kRanks, .threads_per_rank = 1, .trace = trace}, [&](comm::World& world) {
        nn::Mlp model({.sizes = {4, 8, 3}});
        model.Initialize(world.context(), {.seed = 3});
        optim::AdamW optimizer(model.Parameters(), {.lr = 1e-2});
        LowLevelZeroPlugin plugin(world.group(), {}, {.stage = 2});
        Booster booster(plugin);
        booster.TraceTo(world.trace(), world.rank());
        std::ignore = booster.boost(model, optimizer);
        EXPECT_THROW(booster.TraceTo(world.trace(), world.rank()), Error) << "too late";
        for (int64_t step = 1; step <= kSteps; ++step) {
          const Tensor output = model(Tensor::Full({2, 4}, DType::kF32, 0.5, world.context()));
          const Tensor target = Tensor::FromVector<int64_t>({1, 2}, {2}, world.context());
          booster.backward(nn::CrossEntropyLoss()(output, target), optimizer);
          optimizer.step();
          optimizer.zero_grad();
        }
        OkOrThrow(booster.save_training_state(folder, {.step = 1}));
        OkOrThrow(booster.save_training_state(folder, {.step = 2}, {.use_async = true}));
        OkOrThrow(booster.wait_for_saves());
        if (world.rank() != 0) return;
        for (const auto& parameter : model.Parameters()) {
          values.push_back(parameter->value().ToVector<float>());
        }
      }));
  return values;
}

TEST(BoosterTraceTest, RecordsTheRunAndChangesNothing) {
  const TempDir dir;
  Trace trace;
  EXPECT_EQ(Train(&trace, dir / "traced"), Train(nullptr, dir / "untraced")) << "the same bits";
  const TraceFile file = TraceFile::Of(trace);
  for (int rank = 0; rank < kRanks; ++rank) {
    std::map<std::pair<std::string, std::string>, int> counts;  // category and name
    for (const auto& span : file.Spans(rank, "compute"))
      ++counts[{span.at("cat"), span.at("name")}];
    EXPECT_EQ((counts[{"backward", "backward"}]), kSteps);
    EXPECT_EQ((counts[{"optimizer", "step"}]), kSteps);
    EXPECT_EQ((counts[{"forward", "whole model"}]), kSteps);
    EXPECT_EQ((counts[{"backward", "whole model"}]), kSteps);
    EXPECT_EQ((counts[{"checkpoint", "save"}]), 1);
    const auto saves = file.Spans(rank, "saver");
    ASSERT_EQ(saves.size(), 1u);
    EXPECT_EQ(saves[0].at("name"), "save");
    EXPECT_THAT(file.Lanes(rank), Contains("communication: [0 1]"));
    std::map<std::string, int> events;
    for (const auto& span : file.Spans(rank, "step events")) ++events[span.at("name")];
    EXPECT_EQ(events["before backward"], kSteps);
    EXPECT_EQ(events["gradient ready"], 4 * kSteps);
    EXPECT_EQ(events["gradients reduced"], kSteps) << "one chunk";
    EXPECT_EQ(events["decided"], kSteps);
    EXPECT_EQ(events["after step"], kSteps);
    EXPECT_EQ(events["values gathered"], kSteps);
  }
}

}  // namespace trace_test
}  // namespace apogee
