// SPDX-License-Identifier: Apache-2.0

// A training run of 1-bit Adam with DdpPlugin, in f64, to compare runs of several numbers of ranks.
//
//   Weights start;
//   const Weights got = OneBitRun({.ranks = 3, .accumulate = 2}, &start);
#ifndef APOGEE_TESTS_PLUGINS_ONEBIT_DDP_RUN_H_
#define APOGEE_TESTS_PLUGINS_ONEBIT_DDP_RUN_H_

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/booster/booster.h"
#include "apogee/optim/registry.h"
#include "apogee/plugins/ddp.h"
#include "apogee/tests/support/run_ranks.h"
#include "apogee/tests/support/runs/tiny_run.h"

namespace apogee {
namespace onebit_ddp_test {

inline constexpr int64_t kFreezeStep = 5;

struct RunOptions {
  int ranks = 2;
  int64_t accumulate = 1;
  bool no_sync = true;
  int64_t steps = 12;
  optim::OptionMap options = {};
};

// The boosted loop in f64; checks that all ranks end with the same bits.
inline testing::Weights OneBitRun(const RunOptions& run, testing::Weights* start = nullptr) {
  const testing::TinyRunOptions tiny;
  std::vector<testing::Weights> results(static_cast<size_t>(run.ranks));
  testing::RunRanks(run.ranks, [&](comm::World& world) {
    testing::TinyModel model(tiny);
    model.Initialize(world.context(), {.seed = 11, .dtype = DType::kF64});
    if (start != nullptr && world.rank() == 0) *start = testing::WeightsOf(model);
    optim::OptionMap options = run.options;
    options.try_emplace("freeze_step", std::to_string(kFreezeStep));
    const auto optimizer =
        ValueOrThrow(optim::MakeOptimizer("onebit_adam", model.Parameters(), options));
    DdpPlugin plugin(world.group(), {.precision = Precision::kF64, .bucket_bytes = 1000});
    Booster booster(plugin);
    std::ignore = booster.boost(model, *optimizer);
    const int64_t rows = testing::kTinyBatch / run.ranks / run.accumulate;
    for (int64_t step = 0; step < run.steps; ++step) {
      for (int64_t micro = 0; micro < run.accumulate; ++micro) {
        std::shared_ptr<void> hold;
        if (run.no_sync && micro + 1 < run.accumulate) hold = booster.no_sync();
        const int64_t first = (world.rank() * run.accumulate + micro) * rows;
        booster.backward(
            autograd::Scale(testing::TinyLoss(model, world.context(), tiny, step, first, rows),
                            1.0 / static_cast<double>(run.accumulate)),
            *optimizer);
      }
      EXPECT_FALSE(model.FindParameter("unused")->has_grad());
      optimizer->step();
      optimizer->zero_grad();
    }
    results[static_cast<size_t>(world.rank())] = testing::WeightsOf(model);
  });
  if (start != nullptr) testing::ShareFromFirst(*start);
  testing::ShareByRank(results);
  for (const testing::Weights& other : results) EXPECT_EQ(other, results[0]) << "ranks differ";
  return results[0];
}

}  // namespace onebit_ddp_test
}  // namespace apogee

#endif  // APOGEE_TESTS_PLUGINS_ONEBIT_DDP_RUN_H_
