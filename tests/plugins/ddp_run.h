// SPDX-License-Identifier: Apache-2.0

// Whole training runs of a tiny model under DdpPlugin.
//
//   const Weights want = PlainRun(options, &start);
//   const Weights got = DdpRun(options, {.num_ranks = 3, .accumulate = 2});
#ifndef APOGEE_TESTS_PLUGINS_DDP_RUN_H_
#define APOGEE_TESTS_PLUGINS_DDP_RUN_H_

#include <gtest/gtest.h>

#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/booster/booster.h"
#include "apogee/optim/adam/adam.h"
#include "apogee/plugins/ddp.h"
#include "apogee/tests/support/exactness.h"
#include "apogee/tests/support/run_ranks.h"
#include "apogee/tests/support/runs/tiny_run.h"

namespace apogee {
namespace ddp_test {

using testing::kTinyBatch;
using testing::RunRanks;
using testing::TinyLoss;
using testing::TinyModel;
using testing::TinyRunOptions;
using testing::Weights;
using testing::WeightsOf;

inline Precision PrecisionOf(DType dtype) {
  return dtype == DType::kF64 ? Precision::kF64 : ValueOrThrow(ParsePrecision(DTypeName(dtype)));
}

struct DdpRunOptions {
  int num_ranks = 1;
  int64_t accumulate = 1;
  bool no_sync = true;  // all but the last micro-batch
  int64_t bucket_bytes = 1000;
  bool overlap = true;
};

// The boosted loop; checks that all ranks end with the same bits and returns them.
inline Weights DdpRun(const TinyRunOptions& options, const DdpRunOptions& ddp) {
  std::vector<Weights> results(static_cast<size_t>(ddp.num_ranks));
  RunRanks(ddp.num_ranks, [&](comm::World& world) {
    TinyModel model(options);
    // Another seed on other ranks: the initial broadcast must make up for it.
    model.Initialize(world.context(),
                     {.seed = world.rank() == 0 ? 11u : 99u, .dtype = options.dtype});
    optim::AdamW optimizer(model.Parameters(), testing::TinyAdamW());
    DdpPlugin plugin(world.group(), {.precision = PrecisionOf(options.dtype),
                                     .max_norm = options.max_norm,
                                     .bucket_bytes = ddp.bucket_bytes,
                                     .overlap = ddp.overlap});
    Booster booster(plugin);
    std::ignore = booster.boost(model, optimizer);
    const int64_t rows = kTinyBatch / ddp.num_ranks / ddp.accumulate;
    for (int64_t step = 0; step < options.steps; ++step) {
      for (int64_t micro = 0; micro < ddp.accumulate; ++micro) {
        std::shared_ptr<void> hold;
        if (ddp.no_sync && micro + 1 < ddp.accumulate) hold = booster.no_sync();
        const int64_t first = (world.rank() * ddp.accumulate + micro) * rows;
        booster.backward(
            autograd::Scale(TinyLoss(model, world.context(), options, step, first, rows),
                            1.0 / static_cast<double>(ddp.accumulate)),
            optimizer);
      }
      EXPECT_FALSE(model.FindParameter("unused")->has_grad());
      optimizer.step();
      optimizer.zero_grad();
    }
    results[static_cast<size_t>(world.rank())] = WeightsOf(model);
  });
  testing::ShareByRank(results);
  for (const Weights& other : results) EXPECT_EQ(other, results[0]) << "ranks differ";
  return results[0];
}

// Twenty steps of four micro-batches in all, in reproducible mode: the losses and the weights.
inline std::pair<std::vector<double>, Weights> ReproducibleRun(int num_ranks) {
  Weights result;
  std::vector<double> losses;
  RunRanks(num_ranks, [&](comm::World& world) {
    const TinyRunOptions options{.dtype = DType::kF32};
    TinyModel model(options);
    model.Initialize(world.context(), {.seed = 11});
    optim::AdamW optimizer(model.Parameters(), testing::TinyAdamW());
    DdpPlugin plugin(world.group(), {.max_norm = 0.3, .bucket_bytes = 2000},
                     {.reproducible = true});
    Booster booster(plugin);
    std::ignore = booster.boost(model, optimizer);
    const int64_t micros = 4 / num_ranks, rows = kTinyBatch / 4;
    for (int64_t step = 0; step < 20; ++step) {
      const Tensor total = Tensor::Zeros({1}, DType::kF64, world.context());
      for (int64_t micro = 0; micro < micros; ++micro) {
        std::shared_ptr<void> hold;
        if (micro + 1 < micros) hold = booster.no_sync();
        const Tensor loss = autograd::Scale(TinyLoss(model, world.context(), options, step,
                                                     (world.rank() * micros + micro) * rows, rows),
                                            1.0 / static_cast<double>(micros));
        total.data<double>()[0] += loss.Item() / num_ranks;
        booster.backward(loss, optimizer);
      }
      if (world.group() != nullptr) world.group()->AllReduce(total);
      if (world.rank() == 0) losses.push_back(total.Item());
      optimizer.step();
      optimizer.zero_grad();
    }
    if (world.rank() == 0) result = WeightsOf(model);
  });
  testing::ShareFromFirst(losses);
  testing::ShareFromFirst(result);
  return std::pair(losses, result);
}

}  // namespace ddp_test
}  // namespace apogee

#endif  // APOGEE_TESTS_PLUGINS_DDP_RUN_H_
