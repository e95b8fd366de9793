// SPDX-License-Identifier: Apache-2.0

// Runs with 1-bit messages that are saved and resumed, in every phase and at its boundaries, and on
// another number of ranks.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "apogee/booster/booster.h"
#include "apogee/core/rng.h"
#include "apogee/nn/losses.h"
#include "apogee/nn/models/mlp.h"
#include "apogee/optim/onebit/onebit_adam.h"
#include "apogee/optim/registry.h"
#include "apogee/plugins/ddp.h"
#include "apogee/plugins/hybrid_parallel.h"
#include "apogee/plugins/single_rank.h"
#include "apogee/tests/support/exactness.h"
#include "apogee/tests/support/files/temp_dir.h"
#include "apogee/tests/support/run_ranks.h"

namespace apogee {
namespace onebit_resume_test {

using ::apogee::testing::TempDir;
using ::testing::HasSubstr;
using testing::RunRanks;
using testing::Weights;
using testing::WeightsOf;

constexpr int64_t kFreezeStep = 4;

struct RunSetup {
  std::string optimizer = "onebit_adam";
  int tp = 1;
  Precision precision = Precision::kF32;
  bool reset_errors = false;
};

optim::OptionMap OptionsOf(const RunSetup& setup) {
  optim::OptionMap options = {{"lr", "0.01"}, {"freeze_step", std::to_string(kFreezeStep)}};
  if (setup.reset_errors) options["reset_errors"] = "true";
  if (setup.optimizer == "zero_one_adam") {
    options["var_update_scaler"] = "1";  // 1-bit gradients from the second step on
    options["local_step_scaler"] = "1";
  }
  return options;
}

class OneBitRun {
 public:
  OneBitRun(const RunSetup& setup, const comm::World& world)
      : world_(world), model_({.sizes = {6, 16, 8}}) {
    model_.Initialize(world.context(), {.seed = 3});
    optimizer_ =
        ValueOrThrow(optim::MakeOptimizer(setup.optimizer, model_.Parameters(), OptionsOf(setup)));
    if (setup.tp > 1) {
      auto plugin = std::make_unique<HybridParallelPlugin>(
          world, TrainingOptions{.precision = setup.precision},
          HybridParallelOptions{.tp_size = setup.tp});
      data_rank_ = plugin->data_rank();
      plugin_ = std::move(plugin);
    } else {
      plugin_ =
          std::make_unique<DdpPlugin>(world.group(), TrainingOptions{.precision = setup.precision});
      data_rank_ = world.rank();
    }
    booster_ = std::make_unique<Booster>(*plugin_);
    criterion_ =
        booster_->boost(model_, *optimizer_, {.criterion = nn::CrossEntropyLoss()}).criterion;
  }

  void Train(int64_t from, int64_t to) {
    for (int64_t step = from; step < to; ++step) {
      std::vector<double> x;
      for (uint64_t i = 0; i < 12; ++i) x.push_back(Random("x", step, i));
      const Tensor target =
          Tensor::FromVector<int64_t>({(step + data_rank_) % 8, 3}, {2}, world_.context());
      const DType dtype = model_.Parameters()[0]->data().dtype();
      const Tensor out = model_(Tensor::FromVector<double>(x, {2, 6}, world_.context(), dtype));
      booster_->backward(criterion_(out, target), *optimizer_);
      optimizer_->step();
      optimizer_->zero_grad();
    }
  }
  absl::Status Save(const std::string& folder, int64_t step) {
    return booster_->save_training_state(folder, {.step = step, .extra = {}});
  }
  absl::StatusOr<Resumed> Resume(const std::string& folder) { return booster_->resume(folder); }
  Booster& booster() { return *booster_; }
  void set_lr(double lr) { optimizer_->set_lr(0, lr); }
  Weights weights() { return WeightsOf(model_); }
  optim::Optimizer& optimizer() { return *optimizer_; }

 private:
  double Random(const std::string& what, int64_t step, uint64_t i) const {
    const auto place = static_cast<uint64_t>(step * 100 + data_rank_ * 20) + i;
    return static_cast<double>(Philox(MakeKey(9, what), place)[0]) / 4294967296.0 - 0.5;
  }

  const comm::World& world_;
  int data_rank_ = 0;
  nn::Mlp model_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::unique_ptr<Plugin> plugin_;
  std::unique_ptr<Booster> booster_;
  Criterion criterion_;
};

// The weights, parts of them under tensor parallelism, of every rank.
std::vector<Weights> OnRanks(int ranks, const std::function<Weights(comm::World&)>& fn) {
  std::vector<Weights> all(static_cast<size_t>(ranks));
  RunRanks(ranks, [&](comm::World& world) { all[static_cast<size_t>(world.rank())] = fn(world); });
  return all;
}

TEST(OneBitResumeTest, ResumesBitForBitInEveryPhase) {
  for (const char* optimizer : {"onebit_adam", "onebit_lamb", "zero_one_adam"}) {
    for (const RunSetup& setup :
         {RunSetup{optimizer}, RunSetup{optimizer, 1, Precision::kBf16}, RunSetup{optimizer, 2}}) {
      for (const int64_t at : {kFreezeStep - 1, kFreezeStep, kFreezeStep + 1, kFreezeStep + 3}) {
        const int ranks = setup.tp == 1 ? 3 : 4;
        const TempDir dir;
        const auto want = OnRanks(ranks, [&](comm::World& world) {
          OneBitRun run(setup, world);
          run.Train(0, at);
          EXPECT_EQ(run.Save(dir / "run", at), absl::OkStatus());
          run.Train(at, 12);
          return run.weights();
        });
        const auto got = OnRanks(ranks, [&](comm::World& world) {
          OneBitRun run(setup, world);
          run.Train(0, 2);  // states that must go
          const auto resumed = run.Resume(dir / "run");
          EXPECT_TRUE(resumed.ok()) << resumed.status();
          run.Train(at, 12);
          return run.weights();
        });
        EXPECT_EQ(got, want) << optimizer << " in " << Name(setup.precision) << ", tp " << setup.tp
                             << ", saved after " << at;
      }
    }
  }
}

// What a save in the compressed phase must not lose: without the errors the run goes on
// differently.
TEST(OneBitResumeTest, OtherRanksNeedPermissionToDropTheErrors) {
  for (const char* optimizer : {"onebit_adam", "onebit_lamb", "zero_one_adam"}) {
    const TempDir dir;
    const int64_t at = kFreezeStep + 2;
    RunRanks(3, [&](comm::World& world) {
      OneBitRun run({optimizer}, world);
      run.Train(0, at);
      ASSERT_EQ(run.Save(dir / "run", at), absl::OkStatus());
    });
    for (const int ranks : {1, 2}) {
      RunRanks(ranks, [&](comm::World& world) {
        OneBitRun refused({optimizer}, world);
        const auto status = refused.Resume(dir / "run").status();
        EXPECT_THAT(Message(status),
                    HasSubstr("1-bit messages were saved by 3 ranks, of which 3 average; this run "
                              "has " +
                              std::to_string(ranks)));
        EXPECT_THAT(Message(status), HasSubstr("reset_errors"));
        OneBitRun allowed({.optimizer = optimizer, .reset_errors = true}, world);
        const auto resumed = allowed.Resume(dir / "run");
        ASSERT_TRUE(resumed.ok()) << resumed.status();
        for (const optim::ParamView& view : allowed.optimizer().views()) {
          EXPECT_EQ(view.step(), at);
          EXPECT_FALSE(view.state("worker_error").defined());
        }
        allowed.Train(at, at + 3);
        EXPECT_EQ(allowed.optimizer().num_skipped_steps(), 0);
        // With errors of its own ranks it saves and resumes again.
        ASSERT_EQ(allowed.Save(dir / ("again" + std::to_string(ranks)), at + 3), absl::OkStatus());
        OneBitRun again({optimizer}, world);
        EXPECT_TRUE(again.Resume(dir / ("again" + std::to_string(ranks))).ok());
      });
    }
  }
}

// Loading only weights, or only states, between two averages: what ranks did alone until then is
// averaged first, or weights that were loaded would be replaced at the next step, and ranks that
// load no weights would keep different ones for good.
TEST(OneBitResumeTest, PartsLoadedBetweenAverages) {
  for (const bool weights : {true, false}) {
    const TempDir dir;
    std::vector<Weights> loaded(3);
    RunRanks(3, [&](comm::World& world) {
      const auto rank = static_cast<size_t>(world.rank());
      OneBitRun run({"zero_one_adam"}, world);
      run.Train(0, 2);
      ASSERT_EQ(run.booster().save_model(dir / "weights"), absl::OkStatus());
      ASSERT_EQ(run.booster().save_optimizer(dir / "states"), absl::OkStatus());
      const Weights saved = run.weights();
      run.Train(2, 11);
      if (weights) {
        const auto report = run.booster().load_model(dir / "weights");
        ASSERT_TRUE(report.ok()) << report.status();
        EXPECT_EQ(run.weights(), saved);
        run.set_lr(0);
        run.Train(11, 12);
        EXPECT_EQ(run.weights(), saved) << "the step forgot what was loaded";
      } else {
        ASSERT_EQ(run.booster().load_optimizer(dir / "states"), absl::OkStatus());
      }
      loaded[rank] = run.weights();
    });
    EXPECT_EQ(loaded[1], loaded[0]) << weights;
    EXPECT_EQ(loaded[2], loaded[0]) << weights;
  }
}

// Before the freeze there are no errors, and any number of ranks goes on.
TEST(OneBitResumeTest, AWarmUpGoesOnAnywhere) {
  const TempDir dir;
  RunRanks(3, [&](comm::World& world) {
    OneBitRun run({}, world);
    run.Train(0, kFreezeStep);
    ASSERT_EQ(run.Save(dir / "run", kFreezeStep), absl::OkStatus());
  });
  RunRanks(2, [&](comm::World& world) {
    OneBitRun run({}, world);
    const auto resumed = run.Resume(dir / "run");
    ASSERT_TRUE(resumed.ok()) << resumed.status();
    run.Train(kFreezeStep, kFreezeStep + 2);
  });
}

}  // namespace onebit_resume_test
}  // namespace apogee
