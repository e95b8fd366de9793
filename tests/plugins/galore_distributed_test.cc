// SPDX-License-Identifier: Apache-2.0

// GaLore over ranks computes what one rank computes, keeps moments once, and sends what galore.h
// says.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "apogee/optim/core/owners.h"
#include "apogee/optim/grad_clip.h"
#include "apogee/tests/plugins/galore_run.h"

namespace apogee {
namespace galore_distributed_test {

class GaLoreOverRanks : public ::testing::TestWithParam<std::string> {};

TEST_P(GaLoreOverRanks, EqualsOneRank) {
  const char* refreshes[] = {"keep", "reset", "rotate"};
  int variant = GetParam() == "galore_adamw" ? 0 : 1;
  for (const char* type : {"std", "reverse_std", "left", "right", "full"}) {
    for (int repeat = 0; repeat < 2; ++repeat) {
      const std::string on_refresh = refreshes[variant++ % 3];
      RunSetup setup{.optimizer = GetParam(),
                     .options = {{"proj_type", type}, {"on_refresh", on_refresh}}};
      // With two bases R is diagonal at a refresh: the rest is rounding, of which neither a
      // division by its own size nor the sign of its code may be asked for.
      if (setup.optimizer == "galore_adamw8bit") setup.options["eps"] = "1e-4";
      const bool codes = repeat == 1 && std::string(type) != "full";
      if (setup.optimizer == "galore_adamw8bit" && codes) setup.options["min_8bit_size"] = "0";
      if (setup.optimizer == "galore_adafactor" && repeat == 1) setup.options["beta1"] = "0.9";
      if (repeat == 1) setup.max_norm = 0.2;
      ExpectParity(setup, std::string(type) + ", " + on_refresh);
    }
  }
}

// Large enough for the randomized basis to iterate.
TEST_P(GaLoreOverRanks, EqualsOneRankWithEitherBasis) {
  for (const char* svd : {"randomized", "exact"}) {
    ExpectParity({.optimizer = GetParam(),
                  .options = {{"svd", svd}},
                  .params = {{{150, 140}}, {{140, 150}, Presence::kOneSample}}},
                 svd);
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizers, GaLoreOverRanks,
                         ::testing::Values("galore_adamw", "galore_adamw8bit", "galore_adafactor"),
                         [](const auto& info) { return info.param; });

TEST(OwnersTest, LargestFirstToTheLeastLoaded) {
  EXPECT_EQ(optim::BalancedOwners(std::vector<int64_t>{5, 9, 0, 5, 4, 0}, 2),
            (std::vector<int>{1, 0, 1, 1, 0, 1}));
  EXPECT_EQ(optim::BalancedOwners(std::vector<int64_t>{1, 1}, 3), (std::vector<int>{0, 1}));
  EXPECT_TRUE(optim::BalancedOwners({}, 3).empty());
}

int64_t StateBytes(const optim::ParamView& view) {
  int64_t bytes = 0;
  for (const optim::NamedState& state : view.states()) bytes += state.value.bytes();
  return bytes;
}

// The basis on every rank, the moments on one.
TEST(GaLoreMemoryTest, MomentsLiveWithTheirOwner) {
  const std::vector<FedParam> params = {{{33, 17}}, {{17, 33}}, {{29, 12}}, {{40, 20}}, {{8, 50}}};
  const auto low = [&](size_t p) { return 3 * std::max(params[p].shape[0], params[p].shape[1]); };
  // Of elements of 8 bytes: f64.
  const std::map<std::string, std::function<int64_t(size_t)>> moments = {
      {"galore_adamw", [&](size_t p) { return 8 * 2 * low(p); }},
      {"galore_adamw8bit", [&](size_t p) { return 2 * low(p) + 8 * 2 * ((low(p) + 63) / 64); }},
      {"galore_adafactor", [&](size_t p) { return 8 * (low(p) / 3 + 3); }}};
  for (const auto& [name, moment_bytes] : moments) {
    RunSetup setup{.optimizer = name, .params = params, .plugin = "zero2", .num_ranks = 3};
    if (name == "galore_adamw8bit") setup.options["min_8bit_size"] = "0";
    std::vector<int> owners(params.size(), 0);
    std::vector<int64_t> owned(3, 0);
    std::mutex mutex;
    RunRanks(3, [&](comm::World& world) {
      RankRun run(setup, world);
      for (int64_t step = 0; step < 2; ++step) run.Step(step);
      const std::lock_guard lock(mutex);
      for (size_t p = 0; p < params.size(); ++p) {
        const optim::ParamView& view = run.optimizer().views()[p];
        const int64_t basis = 8 * 3 * std::min(params[p].shape[0], params[p].shape[1]);
        EXPECT_EQ(StateBytes(view), basis + (view.owned() ? moment_bytes(p) : 0)) << name;
        owners[p] += view.owned() ? 1 : 0;
        owned[static_cast<size_t>(world.rank())] += view.owned() ? low(p) : 0;
      }
    });
    EXPECT_THAT(owners, ::testing::Each(1)) << name;
    // 150, then 120, 99 and 99, 87.
    EXPECT_THAT(owned, ::testing::UnorderedElementsAre(150, 207, 198)) << name;
  }
}

using comm::CollectiveKind;
using comm::Traffic;

// What each of the first four steps of `num_matrices` matrices [20, 30] and a vector [5] sends; the
// basis is refreshed in the first and the last.
std::vector<Traffic> StepTraffic(RunSetup setup, size_t num_matrices) {
  setup.params.assign(num_matrices, {{20, 30}});
  setup.params.push_back({{5}});
  setup.bucket_bytes = 1 << 20;
  std::vector<Traffic> steps;
  RunRanks(setup.num_ranks, [&](comm::World& world) {
    RankRun run(setup, world);
    for (int64_t step = 0; step < 4; ++step) {
      const Traffic before = world.group()->traffic();
      run.Step(step);
      if (world.rank() == 0) steps.push_back(world.group()->traffic() - before);
    }
  });
  return steps;
}

// What digests of the options add, to presence bits under ddp and to phase 0.
constexpr int64_t kPresenceDigest = 16, kPhaseZeroDigest = 40;

// In numbers of 8 bytes: f64. R has 3 * 30 elements, the basis 3 * 20.
TEST(GaLoreTrafficTest, ShardsSumTheProjectionAndTheDirection) {
  for (const std::string optimizer : {"galore_adamw", "galore_adamw8bit", "galore_adafactor"}) {
    const RunSetup setup{.optimizer = optimizer, .plugin = "zero2", .num_ranks = 3};
    const int64_t extra = optimizer == "galore_adafactor" ? 1 : 0;  // per parameter, of a size
    for (const size_t matrices : {2u, 24u}) {
      const auto n = static_cast<int64_t>(matrices);
      const std::vector<Traffic> steps = StepTraffic(setup, matrices);
      for (const size_t step : {1u, 2u}) {
        // Presence, phase 0, R, direction.
        EXPECT_EQ(steps[step].calls(CollectiveKind::kAllReduce), 1 + 3) << optimizer;
        EXPECT_EQ(
            steps[step].bytes(CollectiveKind::kAllReduce),
            4 * (n + 1) + kPhaseZeroDigest + 8 * (2 * (n + 1) + n * (90 + 90 + extra) + 2 * extra))
            << optimizer;
        EXPECT_EQ(steps[step].total_calls(),
                  4 + 2 + 1);  // gradients, parameters, of what the loss is
      }
      EXPECT_EQ(steps[3].total_calls() - steps[2].total_calls(), 2);  // gradient, basis
      EXPECT_EQ(steps[3].total_bytes() - steps[2].total_bytes(), 8 * n * (600 + 60 + 1));
    }
  }
}

// Between refreshes r n instead of m n.
TEST(GaLoreTrafficTest, DdpSumsTheProjectionOnly) {
  for (const std::string optimizer : {"galore_adamw", "galore_adamw8bit", "galore_adafactor"}) {
    for (const int64_t accumulate : {1, 3}) {
      const RunSetup setup{.optimizer = optimizer, .num_ranks = 3, .accumulate = accumulate};
      const int64_t extra = optimizer == "galore_adafactor" ? 1 : 0;  // per matrix, of its size
      for (const size_t matrices : {2u, 24u}) {
        const auto n = static_cast<int64_t>(matrices);
        const std::vector<Traffic> steps = StepTraffic(setup, matrices);
        for (const size_t step : {1u, 2u}) {
          // The vector's gradient and its presence, phase 0, R; what the loss was made of.
          EXPECT_EQ(steps[step].total_calls(), 2 + 2 + 1) << optimizer;
          EXPECT_EQ(steps[step].bytes(CollectiveKind::kAllReduce),
                    8 * 5 + 4 + kPresenceDigest + kPhaseZeroDigest + 8 * (2 * n + n * (90 + extra)))
              << optimizer;
        }
        EXPECT_EQ(steps[3].total_calls() - steps[2].total_calls(), 2);  // gradient, basis
        EXPECT_EQ(steps[3].total_bytes() - steps[2].total_bytes(), 8 * n * (600 + 60 + 1));
      }
    }
  }
  // With clipping, whole gradients. (Five numbers of each rank say what the loss was made of.)
  const RunSetup clipped{.num_ranks = 3, .max_norm = 1};
  EXPECT_EQ(StepTraffic(clipped, 2)[1].total_bytes(),
            8 * (2 * 600 + 5) + 4 * 3 + kPresenceDigest + 3 * 5 * 8);
}

// In f32 the last bits of R may decide between two 8-bit codes: then the mean itself is projected.
TEST(GaLoreTrafficTest, DdpSumsWholeGradientsForCodesInF32) {
  for (const std::string min_8bit_size : {"0", "4096"}) {
    for (const DType dtype : {DType::kF32, DType::kF64}) {
      RunSetup setup{.optimizer = "galore_adamw8bit", .dtype = dtype};
      setup.options["min_8bit_size"] = min_8bit_size;
      const bool whole = dtype == DType::kF32 && min_8bit_size == "0";
      const int64_t bytes = StepTraffic(setup, 2)[1].total_bytes();
      EXPECT_EQ(bytes >= DTypeSize(dtype) * 2 * 600, whole) << min_8bit_size << ": " << bytes;
    }
  }
}

// A gradient that is not finite on one rank stops the step on all.
TEST(GaLoreDdpTest, RanksAgreeToSkip) {
  const RunSetup setup;
  RunRanks(2, [&](comm::World& world) {
    RankRun run(setup, world);
    run.Step(0);
    const Weights start = WeightsOf(run.model());
    run.Backward(1);
    if (world.rank() == 1) run.model().FindParameter("p1")->grad().Fill(INFINITY);
    run.optimizer().step();
    EXPECT_TRUE(run.optimizer().last_step().skip);
    EXPECT_EQ(WeightsOf(run.model()), start);
    run.optimizer().zero_grad();
    run.Step(2);
    EXPECT_FALSE(run.optimizer().last_step().skip);
    EXPECT_TRUE(std::isnan(run.optimizer().last_step().grad_norm));  // no rank knows it
  });
}

// What would need whole gradients after boost has agreed that there are none.
TEST(GaLoreDdpTest, RefusesWhatNeedsWholeGradients) {
  using ::testing::HasSubstr;
  using ::testing::Property;
  using ::testing::Throws;
  const RunSetup setup;
  RunRanks(2, [&](comm::World& world) {
    RankRun run(setup, world);
    run.Backward(0);
    EXPECT_THAT(
        [&] { optim::ClipGradNorm({run.optimizer().views()[0].parameter()}, {.max_norm = 1}); },
        Throws<Error>(Property(&Error::what, HasSubstr("this rank's part of a mean"))));
    run.optimizer().set_step_options({.max_norm = 1});
    EXPECT_THAT([&] { run.optimizer().step(); },
                Throws<Error>(
                    Property(&Error::what, HasSubstr("max_norm clips a norm that no rank knows"))));
    run.optimizer().set_step_options({});
    optim::StateDict dict = run.optimizer().state_dict();
    dict.groups[0]["project"] = "false";
    ASSERT_TRUE(run.optimizer().load_state_dict(dict).ok());
    EXPECT_THAT([&] { run.optimizer().step(); },
                Throws<Error>(Property(&Error::what, HasSubstr("set options before boost"))));
  });
}

// The moments stay on every rank: only shards have one keeper.
TEST(GaLoreDdpTest, StatesAreReplicated) {
  const RunSetup setup{.num_ranks = 3};
  RunRanks(3, [&](comm::World& world) {
    RankRun run(setup, world);
    run.Step(0);
    for (const optim::ParamView& view : run.optimizer().views()) {
      if (view.step() == 0) continue;
      EXPECT_EQ(view.states().size(), view.layout().logical_shape().rank() == 2 ? 3u : 2u);
      for (const optim::NamedState& state : view.states()) {
        const Tensor first = state.value.Clone();
        world.group()->Broadcast(first, 0);
        EXPECT_EQ(state.value.ToVector<double>(), first.ToVector<double>());
      }
    }
  });
}

}  // namespace galore_distributed_test
}  // namespace apogee
