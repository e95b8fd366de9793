// SPDX-License-Identifier: Apache-2.0

// Whole training runs of GaLore's optimizers on given gradients, on one rank and over ranks, to
// compare.
//
//   ExpectParity({.optimizer = "galore_adamw", .options = {{"proj_type", "left"}}}, "left");
#ifndef APOGEE_TESTS_PLUGINS_GALORE_RUN_H_
#define APOGEE_TESTS_PLUGINS_GALORE_RUN_H_

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "apogee/autograd/engine.h"
#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/booster/booster.h"
#include "apogee/nn/module.h"
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

inline constexpr int64_t kSamples = 36;
inline constexpr int64_t kSteps = 7;

// Which samples give a parameter a gradient.
enum class Presence { kAlways, kOneSample, kFirstSample, kNever };
inline bool IsPresent(Presence presence, int64_t step, int64_t sample) {
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
inline std::vector<FedParam> AwkwardParams() {
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

inline std::unique_ptr<optim::Optimizer> Make(const RunSetup& setup, const nn::Module& model) {
  optim::OptionMap options = {
      {"rank", "3"}, {"clamp_rank", "true"}, {"update_proj_gap", "3"}, {"scale", "0.5"}};
  if (setup.optimizer != "galore_adafactor") options["lr"] = "0.02";
  if (setup.optimizer == "galore_adamw8bit") options["block_size"] = "64";
  options["weight_decay"] = "0.1";
  for (const auto& [key, value] : setup.options) options[key] = value;
  return ValueOrThrow(optim::MakeOptimizer(setup.optimizer, {{model.Parameters(), options}}));
}

inline Weights PlainRun(const RunSetup& setup, Weights& start) {
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

inline std::unique_ptr<Plugin> MakePlugin(const RunSetup& setup, const comm::GroupPtr& group) {
  if (setup.plugin == "ddp") {
    return std::make_unique<DdpPlugin>(
        group,
        TrainingOptions{.precision = setup.dtype == DType::kF64 ? Precision::kF64 : Precision::kF32,
                        .max_norm = setup.max_norm,
                        .bucket_bytes = 1 << 20});
  }
  return std::make_unique<LowLevelZeroPlugin>(
      group,
      TrainingOptions{.precision = Precision::kF64,
                      .max_norm = setup.max_norm,
                      .bucket_bytes = setup.bucket_bytes},
      LowLevelZeroOptions{.stage = setup.plugin == "zero1" ? 1 : 2});
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

inline Weights BoostedRun(const RunSetup& setup) {
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

inline void ExpectParity(RunSetup setup, const std::string& what) {
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

}  // namespace galore_distributed_test
}  // namespace apogee

#endif  // APOGEE_TESTS_PLUGINS_GALORE_RUN_H_
