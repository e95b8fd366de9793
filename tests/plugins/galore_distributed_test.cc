// SPDX-License-Identifier: Apache-2.0

// GaLore over ranks computes what one rank computes, keeps moments once, and sends what galore.h
// says.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <random>
#include <tuple>

#include "apogee/autograd/engine.h"
#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/booster/booster.h"
#include "apogee/optim/core/owners.h"
#include "apogee/optim/grad_clip.h"
#include "apogee/optim/registry.h"
#include "apogee/plugins/ddp.h"
#include "apogee/plugins/low_level_zero.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tests/support/exactness.h"
#include "apogee/tests/support/run_ranks.h"

namespace apogee {
namespace galore_distributed_test {

using testing::RunRanks;
using testing::Weights;
using testing::WeightsOf;
using testing::WorstUpdateError;

constexpr int64_t kSamples = 36;
constexpr int64_t kSteps = 7;

// Which samples give a parameter a gradient.
enum class Presence { kAlways, kOneSample, kFirstSample, kNever };
bool IsPresent(Presence presence, int64_t step, int64_t sample) {
  switch (presence) {
    case Presence::kAlways:
      return true;
    case Presence::kOneSample:  // one rank's, then nobody's, then another rank's
      return (step % 3 == 0 && sample == 0) || (step % 3 == 2 && sample == 25);
    case Presence::kFirstSample:
      return step % 2 == 0 && sample == 0;
    case Presence::kNever:
      return false;
  }
  return false;
}

struct FedParam {
  Shape shape;
  Presence presence = Presence::kAlways;
};

// Parameters p0, p1, ... whose gradients are given.
class FedModel : public nn::Module {
 public:
  explicit FedModel(std::vector<FedParam> params) : params_(std::move(params)) {
    for (size_t p = 0; p < params_.size(); ++p) {
      RegisterParameter(Name(p), params_[p].shape, nn::Init::Normal(0, 0.5));
    }
  }
  Tensor Forward(const Tensor&) override { Throw("the fed model has a loss only"); }

  // The mean over samples [first, first + count).
  Tensor Loss(const ContextPtr& context, int64_t step, int64_t first, int64_t count) {
    Tensor loss = Tensor::Zeros({}, FindParameter("p0")->data().dtype(), context);
    for (size_t p = 0; p < params_.size(); ++p) {
      std::vector<double> mean(static_cast<size_t>(params_[p].shape.numel()), 0);
      bool present = false;
      for (int64_t sample = first; sample < first + count; ++sample) {
        if (!IsPresent(params_[p].presence, step, sample)) continue;
        present = true;
        std::mt19937_64 engine(static_cast<uint64_t>((step * kSamples + sample) * 101) + p);
        std::uniform_real_distribution<double> uniform(-1, 1);
        for (double& x : mean) x += uniform(engine) / static_cast<double>(count);
      }
      if (!present) continue;
      const Tensor weight = FindParameter(Name(p))->value();
      const Tensor grad = Tensor::FromVector(mean, params_[p].shape, context).To(weight.dtype());
      loss = autograd::Add(loss, autograd::Sum(autograd::Mul(weight, grad)));
    }
    return loss;
  }

 private:
  static std::string Name(size_t p) { return "p" + std::to_string(p); }
  std::vector<FedParam> params_;
};

// Wide, tall, odd and thin matrices, cut anywhere, and what is not a matrix.
std::vector<FedParam> AwkwardParams() {
  return {
      {{33, 17}}, {{17, 33}}, {{7}},  {{6, 10}, Presence::kOneSample},  {{1, 9}},
      {{9, 1}},   {{13, 13}}, {{21}}, {{5, 9}, Presence::kFirstSample}, {{4, 4}, Presence::kNever}};
}

struct RunSetup {
  std::string optimizer = "galore_adamw";
  optim::OptionMap options = {};
  std::vector<FedParam> params = AwkwardParams();
  std::string plugin = "ddp";  // zero1, zero2
  int num_ranks = 2;
  int64_t accumulate = 1;
  bool no_sync = true;
  double max_norm = 0;
  int64_t bucket_bytes = 3000;
  DType dtype = DType::kF64;
};

std::unique_ptr<optim::Optimizer> Make(const RunSetup& setup, const nn::Module& model) {
  optim::OptionMap options = {
      {"rank", "3"}, {"clamp_rank", "true"}, {"update_proj_gap", "3"}, {"scale", "0.5"}};
  if (setup.optimizer != "galore_adafactor") options["lr"] = "0.02";
  if (setup.optimizer == "galore_adamw8bit") options["block_size"] = "64";
  options["weight_decay"] = "0.1";
  for (const auto& [key, value] : setup.options) options[key] = value;
  return ValueOrThrow(optim::MakeOptimizer(setup.optimizer, {{model.Parameters(), options}}));
}

Weights PlainRun(const RunSetup& setup, Weights& start) {
  const ContextPtr context = CpuContext();
  FedModel model(setup.params);
  model.Initialize(context, {.seed = 11, .dtype = DType::kF64});
  const auto optimizer = Make(setup, model);
  optimizer->set_step_options({.max_norm = setup.max_norm});
  start = WeightsOf(model);
  for (int64_t step = 0; step < kSteps; ++step) {
    autograd::Backward(model.Loss(context, step, 0, kSamples));
    optimizer->step();
    optimizer->zero_grad();
  }
  return WeightsOf(model);
}

std::unique_ptr<Plugin> MakePlugin(const RunSetup& setup, const comm::GroupPtr& group) {
  if (setup.plugin == "ddp") {
    return std::make_unique<DdpPlugin>(
        group, DdpOptions{.precision = setup.dtype == DType::kF64 ? "f64" : "f32",
                          .max_norm = setup.max_norm,
                          .bucket_bytes = 1 << 20});
  }
  return std::make_unique<LowLevelZeroPlugin>(
      group, LowLevelZeroOptions{.stage = setup.plugin == "zero1" ? 1 : 2,
                                 .precision = "f64",
                                 .max_norm = setup.max_norm,
                                 .bucket_bytes = setup.bucket_bytes});
}

// What one rank of a boosted run does; `after(step)` follows every step.
class RankRun {
 public:
  RankRun(const RunSetup& setup, comm::World& world)
      : setup_(setup), world_(world), model_(setup.params) {
    model_.Initialize(world.context(),
                      {.seed = world.rank() == 0 ? 11u : 99u, .dtype = setup.dtype});
    optimizer_ = Make(setup, model_);
    plugin_ = MakePlugin(setup, world.group());
    booster_ = std::make_unique<Booster>(*plugin_);
    std::ignore = booster_->boost(model_, *optimizer_);
  }
  void Micro(int64_t step, int64_t micro) {
    const int64_t count = kSamples / setup_.num_ranks / setup_.accumulate;
    std::shared_ptr<void> hold;
    if (setup_.no_sync && micro + 1 < setup_.accumulate) hold = booster_->no_sync();
    const int64_t first = (world_.rank() * setup_.accumulate + micro) * count;
    booster_->backward(autograd::Scale(model_.Loss(world_.context(), step, first, count),
                                       1.0 / static_cast<double>(setup_.accumulate)),
                       *optimizer_);
  }
  void Backward(int64_t step) {
    for (int64_t micro = 0; micro < setup_.accumulate; ++micro) Micro(step, micro);
  }
  void Step(int64_t step) {
    Backward(step);
    optimizer_->step();
    optimizer_->zero_grad();
  }
  FedModel& model() { return model_; }
  optim::Optimizer& optimizer() { return *optimizer_; }

 private:
  const RunSetup& setup_;
  comm::World& world_;
  FedModel model_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::unique_ptr<Plugin> plugin_;
  std::unique_ptr<Booster> booster_;
};

Weights BoostedRun(const RunSetup& setup) {
  std::vector<Weights> results(static_cast<size_t>(setup.num_ranks));
  RunRanks(setup.num_ranks, [&](comm::World& world) {
    RankRun run(setup, world);
    for (int64_t step = 0; step < kSteps; ++step) {
      if (step == 4 && setup.accumulate > 1) {  // a partial window that zero_grad discards
        run.Micro(50, 0);
        run.optimizer().zero_grad();
      }
      run.Step(step);
    }
    results[static_cast<size_t>(world.rank())] = WeightsOf(run.model());
  });
  for (const Weights& other : results) EXPECT_EQ(other, results[0]) << "ranks differ";
  return results[0];
}

void ExpectParity(RunSetup setup, const std::string& what) {
  Weights start;
  const Weights want = PlainRun(setup, start);
  int variant = 0;
  for (const char* plugin : {"ddp", "zero1", "zero2"}) {
    for (const int num_ranks : {1, 2, 3, 4}) {
      setup.plugin = plugin;
      setup.num_ranks = num_ranks;
      setup.accumulate = ++variant % 2 == 0 ? 3 : 1;
      setup.no_sync = variant % 3 != 0;
      const auto worst = WorstUpdateError(start, want, BoostedRun(setup));
      EXPECT_LE(worst.error, 1e-9)
          << what << ", " << worst.name << ", " << plugin << ", " << num_ranks
          << " ranks, accumulate " << setup.accumulate << ", no_sync " << setup.no_sync;
    }
  }
}

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
