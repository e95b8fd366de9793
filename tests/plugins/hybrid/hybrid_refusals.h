// SPDX-License-Identifier: Apache-2.0

// Expects that HybridParallelPlugin refuses a setup and has changed nothing.
//
//   ExpectOptionsRefused({.tp_size = 0}, HasSubstr("tp_size must be at least 1, got 0"));
//   ExpectBoostRefused(4, {.tp_size = 3}, [] { return std::make_unique<nn::Gpt2>(config); },
//                      HasSubstr("tp_size 3 does not divide the world of 4 ranks"));
#ifndef APOGEE_TESTS_PLUGINS_HYBRID_HYBRID_REFUSALS_H_
#define APOGEE_TESTS_PLUGINS_HYBRID_HYBRID_REFUSALS_H_

#include <memory>
#include <tuple>

#include "apogee/booster/booster.h"
#include "apogee/optim/adam/adam.h"
#include "apogee/plugins/hybrid_parallel.h"
#include "apogee/tests/support/exactness.h"
#include "apogee/tests/support/run_ranks.h"
#include "apogee/tests/support/says.h"

namespace apogee::testing {

// By the constructor, in any world.
template <typename Matcher>
void ExpectOptionsRefused(const HybridParallelOptions& options, const Matcher& matcher,
                          const TrainingOptions& training = {}) {
  RunRanks(1, [&](comm::World& world) {
    EXPECT_THAT([&] { HybridParallelPlugin(world, training, options); }, Says(matcher));
  });
}

// By boost, on every rank; afterwards the model and the optimizer are as before, and run alone.
template <typename MakeModel, typename Matcher>
void ExpectBoostRefused(int num_ranks, const HybridParallelOptions& options, const MakeModel& make,
                        const Matcher& matcher) {
  RunRanks(num_ranks, [&](comm::World& world) {
    const std::unique_ptr<nn::Module> model = make();
    model->Initialize(world.context(), {.seed = 1});
    optim::AdamW optimizer(model->Parameters(), {});
    const Weights before = WeightsOf(*model);
    HybridParallelPlugin plugin(world, {}, options);
    Booster booster(plugin);
    EXPECT_THAT([&] { std::ignore = booster.boost(*model, optimizer); }, Says(matcher));
    EXPECT_EQ(WeightsOf(*model), before);
    for (const optim::ParamView& view : optimizer.views()) EXPECT_FALSE(view.sharded());
    for (nn::Module* module : model->Modules()) EXPECT_TRUE(module->sequence_part().is_whole());
    HybridParallelPlugin alone(world);
    Booster second(alone);
    EXPECT_NO_THROW(std::ignore = second.boost(*model, optimizer));
  });
}

}  // namespace apogee::testing

#endif  // APOGEE_TESTS_PLUGINS_HYBRID_HYBRID_REFUSALS_H_
