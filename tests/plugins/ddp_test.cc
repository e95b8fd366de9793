// SPDX-License-Identifier: Apache-2.0

// Data parallelism computes what one rank computes.
#include "apogee/plugins/ddp.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "apogee/booster/booster.h"
#include "apogee/nn/models/mlp.h"
#include "apogee/optim/factored/adalomo.h"
#include "apogee/optim/momentum/lomo.h"
#include "apogee/optim/momentum/sgd.h"
#include "apogee/tests/plugins/ddp_run.h"
#include "apogee/tests/support/run_ranks.h"
#include "apogee/tests/support/runs/tiny_run.h"

namespace apogee {
namespace ddp_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::PlainRun;
using ::testing::Property;
using ::testing::Throws;
using testing::TinyKind;
using testing::WorstUpdateError;

TEST(DdpTest, EqualsOneRankInF64) {
  for (TinyKind kind : {TinyKind::kGpt2, TinyKind::kLlama}) {
    for (double max_norm : {0.0, 0.3}) {
      const TinyRunOptions options{.kind = kind, .max_norm = max_norm};
      Weights start;
      const Weights want = PlainRun(options, &start);
      for (int num_ranks : {1, 2, 3, 4}) {
        for (int64_t accumulate : {1, 3}) {
          for (bool no_sync : {true, false}) {
            if (accumulate == 1 && !no_sync) continue;
            const Weights got = DdpRun(
                options, {.num_ranks = num_ranks, .accumulate = accumulate, .no_sync = no_sync});
            const auto worst = WorstUpdateError(start, want, got);
            EXPECT_LE(worst.error, 1e-9)
                << worst.name << ", " << num_ranks << " ranks, accumulate " << accumulate
                << ", no_sync " << no_sync << ", max_norm " << max_norm;
            EXPECT_EQ(got.at("unused"), start.at("unused"));
            EXPECT_EQ(got.at("frozen"), start.at("frozen"));
          }
        }
      }
    }
  }
}

// f32: within ten times what reordering the samples of the one-rank batch does.
TEST(DdpTest, EqualsOneRankInF32WithinItsNoise) {
  for (TinyKind kind : {TinyKind::kGpt2, TinyKind::kLlama}) {
    const TinyRunOptions options{.kind = kind, .dtype = DType::kF32};
    Weights start;
    const Weights want = PlainRun(options, &start);
    std::map<std::string, double> noise;
    for (int permutation = 1; permutation <= 4; ++permutation) {
      TinyRunOptions permuted = options;
      permuted.permutation = permutation;
      for (const auto& [name, error] : testing::UpdateErrors(start, want, PlainRun(permuted))) {
        noise[name] = std::max(noise[name], error);
      }
    }
    for (int num_ranks : {2, 3, 4}) {
      const Weights got = DdpRun(options, {.num_ranks = num_ranks, .accumulate = 3});
      for (const auto& [name, error] : testing::UpdateErrors(start, want, got)) {
        EXPECT_LE(error, 10 * noise[name])
            << name << ", " << num_ranks << " ranks, noise " << noise[name];
      }
    }
  }
}

TEST(DdpTest, BucketsAndOverlapChangeNoBit) {
  const TinyRunOptions options{.dtype = DType::kF32, .steps = 5};
  const Weights want = DdpRun(options, {.num_ranks = 3, .bucket_bytes = 1});
  EXPECT_EQ(DdpRun(options, {.num_ranks = 3, .bucket_bytes = 1 << 20}), want);
  EXPECT_EQ(DdpRun(options, {.num_ranks = 3, .bucket_bytes = 700, .overlap = false}), want);
}

TEST(DdpTest, DropoutMasksAsOneRankDoes) {
  TinyRunOptions options{.steps = 6, .dropout = 0.25};
  Weights start;
  const Weights want = PlainRun(options, &start);
  EXPECT_LE(WorstUpdateError(start, want, DdpRun(options, {.num_ranks = 4})).error, 1e-9);
  options.dropout = 0;
  EXPECT_GT(WorstUpdateError(start, want, PlainRun(options)).error, 1e-3) << "dropout did nothing";
}

// One all-reduce per bucket and one for presence, regardless of the number of micro-batches.
TEST(DdpTest, TrafficIsWhatTheBucketsSay) {
  RunRanks(2, [](comm::World& world) {
    nn::Mlp model({.sizes = {10, 20, 5}});
    model.Initialize(world.context(), {.seed = 1});
    optim::Sgd optimizer(model.Parameters(), {.lr = 0.1});
    DdpPlugin plugin(world.group(), {.bucket_bytes = 500});
    Booster booster(plugin);
    std::ignore = booster.boost(model, optimizer);
    const comm::Traffic before = world.group()->traffic();
    const Tensor x = Tensor::Full({3, 10}, DType::kF32, 0.5, world.context());
    for (int micro = 0; micro < 4; ++micro) {
      std::shared_ptr<void> hold;
      if (micro < 3) hold = booster.no_sync();
      booster.backward(autograd::Sum(model(x)), optimizer);
    }
    const comm::Traffic traffic = world.group()->traffic() - before;
    // ceil(1300 / 500) buckets: [5 + 100], [20] and [200] numbers. With the presence bits goes a
    // digest of the options, 16 bytes.
    EXPECT_EQ(traffic.calls(comm::CollectiveKind::kAllReduce), 3 + 1);
    EXPECT_EQ(traffic.bytes(comm::CollectiveKind::kAllReduce),
              (5 + 100 + 20 + 200) * 4 + 4 * 4 + 16);
    EXPECT_EQ(traffic.total_calls(), 4);
  });
}

// 2^k micro-batches of equal size: the same bits on 1, 2 and 4 ranks.
TEST(DdpTest, ReproducibleModeDoesNotDependOnTheWorld) {
  const auto one = ReproducibleRun(1);
  EXPECT_EQ(ReproducibleRun(2), one);
  EXPECT_EQ(ReproducibleRun(4), one);
}

TEST(DdpTest, ReproducibleModeStillComputesTheSameUpdate) {
  const TinyRunOptions options{.steps = 6};
  Weights start;
  const Weights want = PlainRun(options, &start);
  RunRanks(2, [&](comm::World& world) {
    TinyModel model(options);
    model.Initialize(world.context(), {.seed = 11, .dtype = DType::kF64});
    optim::AdamW optimizer(model.Parameters(), testing::TinyAdamW());
    DdpPlugin plugin(world.group(), {.precision = Precision::kF64}, {.reproducible = true});
    Booster booster(plugin);
    std::ignore = booster.boost(model, optimizer);
    for (int64_t step = 0; step < options.steps; ++step) {
      // A partial window that zero_grad discards.
      {
        const auto hold = booster.no_sync();
        for (int k = 0; k < 3; ++k)
          booster.backward(TinyLoss(model, world.context(), options, 50, 0, 2), optimizer);
        optimizer.zero_grad();
      }
      for (int64_t micro = 0; micro < 3; ++micro) {  // 3: the tree has an open branch
        std::shared_ptr<void> hold;
        if (micro < 2) hold = booster.no_sync();
        booster.backward(autograd::Scale(TinyLoss(model, world.context(), options, step,
                                                  world.rank() * 18 + micro * 6, 6),
                                         1.0 / 3),
                         optimizer);
      }
      optimizer.step();
      optimizer.zero_grad();
    }
    EXPECT_LE(WorstUpdateError(start, want, WeightsOf(model)).error, 1e-9);
  });
}

// bf16: every rank updates the same masters and the error stays at bf16's noise.
TEST(DdpTest, Bf16KeepsRanksTogether) {
  RunRanks(4, [](comm::World& world) {
    const TinyRunOptions options;
    TinyModel model(options);
    model.Initialize(world.context(), {.seed = 11});
    optim::AdamW optimizer(model.Parameters(), testing::TinyAdamW());
    DdpPlugin plugin(world.group(), {.precision = Precision::kBf16});
    Booster booster(plugin);
    std::ignore = booster.boost(model, optimizer);
    for (int64_t step = 0; step < 5; ++step) {
      booster.backward(TinyLoss(model, world.context(), options, step, world.rank() * 9, 9),
                       optimizer);
      for (const auto& p : model.Parameters()) {
        if (p->has_grad()) {
          EXPECT_EQ(p->grad().dtype(), DType::kF32);
        }
      }
      optimizer.step();
      optimizer.zero_grad();
    }
    for (optim::ParamView& view : optimizer.views()) {
      if (!view.trainable()) continue;
      const Tensor mine = view.master().Clone(), theirs = view.master().Clone();
      world.group()->Broadcast(theirs, 0);
      EXPECT_EQ(mine.ToVector<double>(), theirs.ToVector<double>()) << view.name();
    }
  });
}

// fp16: an overflow on one rank skips the step on all, halves the scale, and moves nothing.
TEST(DdpTest, Fp16ScalesAndSkips) {
  RunRanks(2, [](comm::World& world) {
    nn::Mlp model({.sizes = {4, 3}});
    model.Initialize(world.context(), {.seed = 1});
    optim::Sgd optimizer(model.Parameters(), {.lr = 0.5});
    DdpPlugin plugin(world.group(),
                     {.precision = Precision::kFp16,
                      .loss_scaler = {.initial_scale = 32768, .growth_interval = 2}});
    Booster booster(plugin);
    std::ignore = booster.boost(model, optimizer);
    const Weights start = WeightsOf(model);
    // 4 · 32768 is beyond fp16.
    const Tensor loss = autograd::Sum(model(Tensor::Full({2, 4}, DType::kF16, 1, world.context())));
    booster.backward(autograd::Scale(loss, world.rank() == 1 ? 4 : 1), optimizer);
    optimizer.step();
    optimizer.zero_grad();
    EXPECT_TRUE(optimizer.last_step().skip);
    EXPECT_EQ(plugin.loss_scale(), 16384);
    EXPECT_EQ(WeightsOf(model), start);
    for (int k = 0; k < 2; ++k) {
      booster.backward(
          autograd::Sum(model(Tensor::Full({2, 4}, DType::kF16, 0.5, world.context()))), optimizer);
      optimizer.step();
      optimizer.zero_grad();
      EXPECT_FALSE(optimizer.last_step().skip);
    }
    EXPECT_EQ(plugin.loss_scale(), 32768);
    // Twice -lr · d sum / d bias = -0.5 · 2, for every scale.
    const auto masters = optimizer.views()[1].master().ToVector<double>();
    for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(masters[i] - start.at("layers.0.bias")[i], -2, 2e-3);
  });
}

// Each step sets the next one's scale, so only the first shows whether boost told the optimizer.
TEST(DdpTest, Fp16TakesTheInitialScaleOffTheFirstStep) {
  const ContextPtr context = CpuContext();
  nn::Mlp model({.sizes = {4, 3}});
  model.Initialize(context, {.seed = 1});
  optim::Sgd optimizer(model.Parameters(), {.lr = 0.5});
  DdpPlugin plugin(nullptr,
                   {.precision = Precision::kFp16, .loss_scaler = {.initial_scale = 1024}});
  Booster booster(plugin);
  std::ignore = booster.boost(model, optimizer);
  const Weights start = WeightsOf(model);
  booster.backward(autograd::Sum(model(Tensor::Full({2, 4}, DType::kF16, 0.5, context))),
                   optimizer);
  optimizer.step();
  const auto masters = optimizer.views()[1].master().ToVector<double>();
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(masters[i] - start.at("layers.0.bias")[i], -0.5 * 2, 1e-3);
  }
}

TEST(DdpTest, ModelsThatDifferAreRefusedOnEveryRank) {
  std::vector<std::string> messages(3);
  const absl::Status status =
      testing::LaunchRanks({.num_ranks = 3, .threads_per_rank = 1}, [&](comm::World& world) {
        nn::Mlp model({.sizes = {4, world.rank() == 2 ? 6 : 5, 3}});
        model.Initialize(world.context(), {.seed = 1});
        optim::Sgd optimizer(model.Parameters(), {.lr = 0.1});
        DdpPlugin plugin(world.group());
        Booster booster(plugin);
        try {
          std::ignore = booster.boost(model, optimizer);
        } catch (const Error& error) {
          messages[static_cast<size_t>(world.rank())] = error.what();
          throw;
        }
      });
  testing::ShareByRank(messages);
  for (const std::string& message : messages) {
    EXPECT_THAT(message, AllOf(HasSubstr("\"layers.0.weight\" [5, 4] f32 on rank 0"),
                               HasSubstr("[6, 4] f32 on rank 2")));
  }
  EXPECT_EQ(Message(status), messages[0]) << "told once";
}

TEST(DdpTest, GradientsMadeOutsideOfTheBoosterAreRefused) {
  RunRanks(2, [](comm::World& world) {
    nn::Mlp model({.sizes = {4, 3}});
    model.Initialize(world.context(), {.seed = 1});
    optim::Sgd optimizer(model.Parameters(), {.lr = 0.1});
    DdpPlugin plugin(world.group());
    Booster booster(plugin);
    std::ignore = booster.boost(model, optimizer);
    const Tensor loss = autograd::Sum(model(Tensor::Full({2, 4}, DType::kF32, 1, world.context())));
    EXPECT_THROW(autograd::Backward(loss), Error);
  });
  EXPECT_THROW(DdpPlugin(nullptr, {.max_norm = -1, .bucket_bytes = 0}), Error);
}

// LOMO updates inside backward on one rank; on two, in step, on the averaged gradients: the same.
TEST(DdpTest, FusedOptimizersComputeTheSameOnSeveralRanks) {
  // No key biases: their true gradient is zero, and AdaLomo normalises what rounding leaves.
  const TinyRunOptions options{.kind = TinyKind::kLlama, .steps = 6};
  Weights start, want;
  for (int num_ranks : {1, 2, 3}) {
    RunRanks(num_ranks, [&](comm::World& world) {
      TinyModel model(options);
      model.Initialize(world.context(), {.seed = 11, .dtype = DType::kF64});
      if (num_ranks == 1) start = WeightsOf(model);
      optim::AdaLomo optimizer(model.Parameters(), {.lr = 1e-2, .weight_decay = 0.1});
      DdpPlugin plugin(world.group(), {.precision = Precision::kF64, .max_norm = 0.3});
      Booster booster(plugin);
      std::ignore = booster.boost(model, optimizer);
      const int64_t rows = kTinyBatch / num_ranks;
      const auto loss = [&](int64_t step) {
        return TinyLoss(model, world.context(), options, step, world.rank() * rows, rows);
      };
      for (int64_t step = 0; step < options.steps; ++step) {
        booster.backward(loss(step), optimizer);
        optimizer.step();
        optimizer.zero_grad();
      }
      if (num_ranks == 1) {
        want = WeightsOf(model);
      } else {
        EXPECT_LE(WorstUpdateError(start, want, WeightsOf(model)).error, 1e-9) << num_ranks;
      }
      booster.backward(loss(7), optimizer);
      EXPECT_THAT([&] { booster.backward(loss(8), optimizer); },
                  Throws<Error>(Property(&Error::what, HasSubstr("cannot be accumulated"))));
    });
    testing::ShareFromFirst(start);
    testing::ShareFromFirst(want);
  }
}

TEST(DdpTest, StepsThatMakeNoSenseAreRefused) {
  RunRanks(2, [](comm::World& world) {
    nn::Mlp model({.sizes = {4, 3}});
    model.Initialize(world.context(), {.seed = 1});
    optim::Sgd optimizer(model.Parameters(), {.lr = 0.1});
    DdpPlugin plugin(world.group());
    Booster booster(plugin);
    std::ignore = booster.boost(model, optimizer);
    const Weights start = WeightsOf(model);
    EXPECT_THAT([&] { optimizer.step(); },
                Throws<Error>(Property(&Error::what, HasSubstr("step() without a backward"))));
    {
      const auto hold = booster.no_sync();
      booster.backward(autograd::Sum(model(Tensor::Full({2, 4}, DType::kF32, 1, world.context()))),
                       optimizer);
    }
    EXPECT_THAT([&] { optimizer.step(); },
                Throws<Error>(Property(&Error::what, HasSubstr("under no_sync"))));
    EXPECT_EQ(WeightsOf(model), start);
  });
}

// fp16 with its loss scale on one rank.
TEST(DdpTest, FusedBackwardWithLossScale) {
  const ContextPtr context = CpuContext();
  TinyModel model(TinyRunOptions{});
  model.Initialize(context, {.seed = 1});
  optim::Lomo optimizer(model.Parameters(), {.lr = 0.01});
  DdpPlugin plugin(nullptr,
                   {.precision = Precision::kFp16, .loss_scaler = {.initial_scale = 4294967296.0}});
  Booster booster(plugin);
  std::ignore = booster.boost(model, optimizer);
  int64_t updates = 0;
  for (int64_t step = 0; step < 30; ++step) {
    booster.backward(TinyLoss(model, context, TinyRunOptions{}, step, 0, kTinyBatch), optimizer);
    optimizer.step();
    optimizer.zero_grad();
    updates += !optimizer.last_step().skip;
  }
  EXPECT_GT(optimizer.num_skipped_steps(), 0);
  EXPECT_GT(updates, 0);
  EXPECT_LT(plugin.loss_scale(), 4294967296.0);
}

}  // namespace ddp_test
}  // namespace apogee
