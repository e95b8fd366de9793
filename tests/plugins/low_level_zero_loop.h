// SPDX-License-Identifier: Apache-2.0

// A loop over a small model that runs the same way plain and boosted, with DDP and both stages of
// ZeRO, and a check that all of them end with the same weights.
//
//   ExpectSame([](Loop& loop) {
//     loop.Backward(loop.Loss(0));
//     loop.optimizer->step();
//   });
#ifndef APOGEE_TESTS_PLUGINS_LOW_LEVEL_ZERO_LOOP_H_
#define APOGEE_TESTS_PLUGINS_LOW_LEVEL_ZERO_LOOP_H_

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "apogee/autograd/engine.h"
#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/booster/booster.h"
#include "apogee/nn/models/mlp.h"
#include "apogee/optim/momentum/sgd.h"
#include "apogee/plugins/ddp.h"
#include "apogee/plugins/low_level_zero.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tests/support/exactness.h"
#include "apogee/tests/support/run_ranks.h"

namespace apogee {
namespace low_level_zero_edge_test {

inline constexpr int kNumMicro = 12;  // of a batch: a rank of n takes 12 / n

// A loop over a small model, which neither knows whether it is boosted nor over how many ranks.
struct Loop {
  explicit Loop(const ContextPtr& context, DType dtype = DType::kF64, unsigned seed = 1)
      : context(context), dtype(dtype) {
    model.Initialize(context, {.seed = seed, .dtype = dtype});
  }

  autograd::ParameterPtr Find(const std::string& name) const { return model.FindParameter(name); }

  // The loss over the part [begin, end) of the whole batch's micro-batches that is this rank's.
  Tensor Loss(int64_t step, int begin = 0, int end = kNumMicro) {
    const int first = begin + (end - begin) * rank / num_ranks;
    const int last = begin + (end - begin) * (rank + 1) / num_ranks;
    Tensor sum;
    for (int micro = first; micro < last; ++micro) {
      const double input = std::sin(static_cast<double>(step * 31 + micro));
      const Tensor y = autograd::Sum(model(Tensor::Full({2, 4}, dtype, input, context)));
      sum = sum.defined() ? autograd::Add(sum, y) : y;
    }
    return autograd::Scale(sum, static_cast<double>(num_ranks) / kNumMicro);
  }
  void Backward(const Tensor& loss) {
    booster != nullptr ? booster->backward(loss, *optimizer) : autograd::Backward(loss);
  }
  void Boost(Plugin& plugin) {
    booster = std::make_unique<Booster>(plugin);
    std::ignore = booster->boost(model, *optimizer);
  }

  ContextPtr context;
  DType dtype;
  nn::Mlp model{{.sizes = {4, 5, 3}}};
  std::unique_ptr<optim::Optimizer> optimizer;
  std::unique_ptr<Booster> booster;
  int rank = 0;
  int num_ranks = 1;
};

inline std::unique_ptr<optim::Optimizer> Momentum(std::vector<autograd::ParameterPtr> parameters) {
  return std::make_unique<optim::Sgd>(
      std::move(parameters), optim::SgdOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01});
}

using Body = std::function<void(Loop&)>;
using Prepare = std::function<void(Loop&)>;

inline void MakeMomentum(Loop& loop) { loop.optimizer = Momentum(loop.model.Parameters()); }

// `prepare` makes the optimizer; `body` is the loop, after boost where there is one.
inline void ExpectSame(const Body& body, const Prepare& prepare = MakeMomentum,
                       double bound = 1e-12) {
  Loop plain(CpuContext());
  prepare(plain);
  const testing::Weights start = testing::WeightsOf(plain.model);
  body(plain);
  const testing::Weights want = testing::WeightsOf(plain.model);
  for (const int num_ranks : {1, 2, 3}) {
    for (const int stage : {0, 1, 2}) {
      testing::RunRanks(num_ranks, [&](comm::World& world) {
        Loop loop(world.context());
        prepare(loop);
        loop.rank = world.rank();
        loop.num_ranks = num_ranks;
        std::unique_ptr<Plugin> plugin;
        if (stage == 0) {
          plugin = std::make_unique<DdpPlugin>(
              world.group(), TrainingOptions{.precision = Precision::kF64, .bucket_bytes = 100});
        } else {
          plugin = std::make_unique<LowLevelZeroPlugin>(
              world.group(), TrainingOptions{.precision = Precision::kF64, .bucket_bytes = 100},
              LowLevelZeroOptions{.stage = stage});
        }
        loop.Boost(*plugin);
        body(loop);
        const auto worst = testing::WorstUpdateError(start, want, testing::WeightsOf(loop.model));
        EXPECT_LE(worst.error, bound)
            << worst.name << ", " << num_ranks << " ranks, stage " << stage;
      });
    }
  }
}

}  // namespace low_level_zero_edge_test
}  // namespace apogee

#endif  // APOGEE_TESTS_PLUGINS_LOW_LEVEL_ZERO_LOOP_H_
