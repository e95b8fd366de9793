// SPDX-License-Identifier: Apache-2.0

// Runs of LOMO and AdaLomo, which update inside backward, for tests: plain on one rank, and with
// GeminiPlugin.
//
//   Weights start, want = PlainFused<optim::Lomo>(setup, &start);
#ifndef APOGEE_TESTS_SUPPORT_RUNS_FUSED_RUN_H_
#define APOGEE_TESTS_SUPPORT_RUNS_FUSED_RUN_H_

#include <functional>
#include <memory>
#include <tuple>

#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/booster/booster.h"
#include "apogee/optim/factored/adalomo.h"
#include "apogee/optim/momentum/lomo.h"
#include "apogee/tests/support/run_ranks.h"
#include "apogee/tests/support/runs/gemini_run.h"
#include "apogee/tests/support/test_context.h"

namespace apogee::testing {

struct FusedSetup {
  std::function<std::shared_ptr<nn::Module>()> make;
  // The mean loss of the part of the step's batch that belongs to `rank` of `num_ranks`.
  std::function<Tensor(nn::Module&, const ContextPtr&, int64_t step, int rank, int num_ranks)> loss;
  int64_t steps = 5;
  double max_norm = 0;
  bool two_walks = false;  // run backward twice, even without max_norm
  DType dtype = DType::kF64;
  int64_t chunk_bytes = 1000;
  Precision precision = Precision::kF64;

  optim::StepOptions step_options() const {
    return {
        .max_norm = max_norm,
        .nonfinite = two_walks ? optim::NonFinitePolicy::kSkip : optim::NonFinitePolicy::kProceed};
  }
};

// One rank with the whole batch. Calls `loss` for each of `parts` ranks and trains on the mean.
template <typename Optimizer>
Weights PlainFused(const FusedSetup& setup, Weights* start, int parts = 1) {
  const ContextPtr context = TestContext();
  const auto model = setup.make();
  model->Initialize(context, {.seed = 11, .dtype = setup.dtype});
  *start = WeightsOf(*model);
  Optimizer optimizer(model->Parameters(), {.lr = 0.02, .weight_decay = 0.1});
  optimizer.set_step_options(setup.step_options());
  for (int64_t step = 0; step < setup.steps; ++step) {
    Tensor loss = setup.loss(*model, context, step, 0, parts);
    for (int part = 1; part < parts; ++part) {
      loss = autograd::Add(loss, setup.loss(*model, context, step, part, parts));
    }
    optimizer.fused_backward(autograd::Scale(loss, 1.0 / parts));
    optimizer.step();
  }
  return WeightsOf(*model);
}

// The final weights, which must be the same on every rank.
template <typename Optimizer>
Weights GeminiFused(const FusedSetup& setup, int num_ranks, double timeout_seconds = 60) {
  std::vector<Weights> results(static_cast<size_t>(num_ranks));
  RunRanks(
      num_ranks,
      [&](comm::World& world) {
        const auto model = setup.make();
        model->Initialize(world.context(),
                          {.seed = world.rank() == 0 ? 11u : 99u, .dtype = setup.dtype});
        Optimizer optimizer(model->Parameters(), {.lr = 0.02, .weight_decay = 0.1});
        optimizer.set_step_options(setup.step_options());
        GeminiPlugin plugin(world.group(), {.precision = setup.precision,
                                            .max_norm = setup.max_norm,
                                            .bucket_bytes = setup.chunk_bytes});
        Booster booster(plugin);
        std::ignore = booster.boost(*model, optimizer);
        const MemoryLedger& ledger = world.context()->ledger();
        for (int64_t step = 0; step < setup.steps; ++step) {
          booster.backward(setup.loss(*model, world.context(), step, world.rank(), num_ranks),
                           optimizer);
          EXPECT_EQ(ledger.live_bytes(MemoryCategory::kGradient), 0) << "gradients are left";
          optimizer.step();
          optimizer.zero_grad();
        }
        results[static_cast<size_t>(world.rank())] = WholeWeightsOf(*model, plugin);
      },
      timeout_seconds);
  ShareByRank(results);
  for (const Weights& other : results) EXPECT_EQ(other, results[0]) << "ranks differ";
  return results[0];
}

}  // namespace apogee::testing

#endif  // APOGEE_TESTS_SUPPORT_RUNS_FUSED_RUN_H_
