// SPDX-License-Identifier: Apache-2.0

// 1-bit optimizers under DdpPlugin and HybridParallelPlugin: which gradients they get, that ranks
// stay the same, what is sent, and what is refused.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <limits>
#include <tuple>

#include "apogee/booster/booster.h"
#include "apogee/nn/losses.h"
#include "apogee/nn/models/gpt2.h"
#include "apogee/optim/grad_clip.h"
#include "apogee/optim/onebit/onebit_adam.h"
#include "apogee/optim/onebit/zero_one_adam.h"
#include "apogee/plugins/ddp.h"
#include "apogee/plugins/hybrid_parallel.h"
#include "apogee/plugins/low_level_zero.h"
#include "apogee/tests/plugins/onebit_ddp_run.h"
#include "apogee/tests/support/run_ranks.h"
#include "apogee/tests/support/runs/tiny_run.h"

namespace apogee {
namespace onebit_ddp_test {

using comm::CollectiveKind;
using ::testing::HasSubstr;
using testing::kTinyBatch;
using testing::RunRanks;
using testing::TinyLoss;
using testing::TinyModel;
using testing::Weights;
using testing::WeightsOf;
using testing::WorstUpdateError;

// The caller divides once, before and after the switch; a gradient that is summed instead of
// averaged there would be three times too large.
TEST(OneBitDdpTest, AccumulationAcrossTheSwitch) {
  Weights start;
  const Weights want = OneBitRun({.ranks = 2}, &start);
  for (const bool no_sync : {false, true}) {
    const Weights got = OneBitRun({.ranks = 2, .accumulate = 3, .no_sync = no_sync});
    EXPECT_LE(WorstUpdateError(start, want, got).error, 1e-7) << no_sync;
  }
}

// One rank compresses nothing: Adam with a second moment that stops at freeze_step. Several ranks
// must not be that.
TEST(OneBitDdpTest, SeveralRanksCompress) {
  Weights start;
  const Weights one = OneBitRun({.ranks = 1}, &start);
  const double error = WorstUpdateError(start, one, OneBitRun({.ranks = 3})).error;
  EXPECT_GT(error, 1e-3);
  const Weights warm = OneBitRun({.ranks = 1, .steps = kFreezeStep});
  const Weights same = OneBitRun({.ranks = 3, .steps = kFreezeStep});
  EXPECT_LE(WorstUpdateError(start, warm, same).error, 1e-8);
}

// A group that does not freeze is that of Adam on the whole batch, all the way.
TEST(OneBitDdpTest, NonFreezeIsAdam) {
  Weights start;
  const optim::OptionMap options = {{"non_freeze", "true"}};
  const Weights want = OneBitRun({.ranks = 1, .options = {{"freeze_step", "1000"}}}, &start);
  const Weights got = OneBitRun({.ranks = 3, .options = options});
  EXPECT_LE(WorstUpdateError(start, want, got).error, 1e-8);
}

// After the freeze gradients are not sent: one all_to_all and one all_gather of signs, and what the
// ranks agree on: a mark and a norm per parameter.
TEST(OneBitDdpTest, SendsSignsInsteadOfGradients) {
  for (const bool shared : {false, true}) {
    for (const int ranks : {2, 4}) {
      RunRanks(ranks, [&](comm::World& world) {
        nn::Gpt2 model(
            {.vocab_size = 64, .n_positions = 8, .n_embd = 64, .n_layer = 2, .n_head = 2});
        model.Initialize(world.context(), {.seed = 1});
        optim::OneBitAdam optimizer(model.Parameters(), {.freeze_step = 2, .shared_scale = shared});
        DdpPlugin plugin(world.group());
        Booster booster(plugin);
        std::ignore = booster.boost(model, optimizer);
        comm::Traffic moved;
        for (int step = 0; step < 4; ++step) {
          const comm::Traffic before = world.group()->traffic();
          const Tensor ids = Tensor::Full({1, 8}, DType::kI64, step, world.context());
          booster.backward(autograd::Mean(model(ids)), optimizer);
          optimizer.step();
          optimizer.zero_grad();
          moved = world.group()->traffic() - before;
        }
        EXPECT_EQ(moved.calls(CollectiveKind::kAllToAll), 1);
        // Signs, and what the loss was made of.
        EXPECT_EQ(moved.calls(CollectiveKind::kAllGather), 1 + 1);
        const auto num_params = static_cast<double>(model.Parameters().size());
        // Numbers of each parameter, and the digest of the options.
        EXPECT_LE(moved.bytes(CollectiveKind::kAllReduce), 16 * num_params + 40);
        const double n = static_cast<double>(model.num_parameters());
        const double share = (ranks - 1.0) / ranks;
        const double sent = share * static_cast<double>(moved.bytes(CollectiveKind::kAllToAll) +
                                                        moved.bytes(CollectiveKind::kAllGather));
        const double scales = 8 * (ranks - 1) * (shared ? 1 : num_params);
        EXPECT_GE(sent, share * n / 4 + scales);
        EXPECT_LE(sent, share * n / 4 + scales + 2 * ranks * (ranks - 1) * num_params);
      });
    }
  }
}

class OneBitTpTest : public ::testing::TestWithParam<bool> {};

TEST_P(OneBitTpTest, CopiesStayTheSame) {
  RunRanks(4, [&](comm::World& world) {
    nn::Gpt2 model({.vocab_size = 20, .n_positions = 8, .n_embd = 16, .n_layer = 2, .n_head = 2});
    model.Initialize(world.context(), {.seed = 1});
    optim::OneBitAdam optimizer(model.Parameters(),
                                {.lr = 0.003, .freeze_step = 30, .shared_scale = GetParam()});
    HybridParallelPlugin plugin(world, {.max_norm = 1}, {.tp_size = 2});
    Booster booster(plugin);
    Boosted boosted = booster.boost(model, optimizer, {.criterion = nn::CrossEntropyLoss()});
    double first = 0, last = 0;
    for (int64_t step = 0; step < 60; ++step) {
      std::vector<int64_t> ids;
      for (int64_t i = 0; i < 8; ++i) ids.push_back((plugin.data_rank() * 3 + i * 7) % 20);
      const Tensor input = Tensor::FromVector<int64_t>(ids, {1, 8}, world.context());
      const Tensor loss = boosted.criterion(boosted.model(input), input);
      (step == 0 ? first : last) = loss.Item();
      booster.backward(loss, optimizer);
      optimizer.step();
      optimizer.zero_grad();
    }
    EXPECT_LT(last, 0.5 * first);
    // Copies of a part have the same bits, and so have all copies of what is not cut.
    for (const autograd::ParameterPtr& parameter : model.Parameters()) {
      const Tensor whole = plugin.WholeValue(*parameter);
      const Tensor other = whole.Clone();
      world.group()->Broadcast(other, 0);
      EXPECT_EQ(whole.ToVector<float>(), other.ToVector<float>()) << parameter->name();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(SharedScale, OneBitTpTest, ::testing::Bool());

// Ranks of 0/1 Adam differ between averages; a forward in evaluation mode makes them the same.
TEST(OneBitDdpTest, EvaluationSeesOneModel) {
  RunRanks(3, [&](comm::World& world) {
    TinyModel model({});
    model.Initialize(world.context(), {.seed = 11});
    optim::ZeroOneAdam optimizer(
        model.Parameters(), {.freeze_step = 2, .local_step_scaler = 1, .local_step_clipper = 8});
    DdpPlugin plugin(world.group());
    Booster booster(plugin);
    std::ignore = booster.boost(model, optimizer);
    const auto all_same = [&] {
      const Tensor mine = model.Parameters()[0]->data();
      const Tensor first = mine.Clone();
      world.group()->Broadcast(first, 0);
      const Tensor differs = Tensor::Full(
          {1}, DType::kF32, first.ToVector<float>() != mine.ToVector<float>(), world.context());
      world.group()->AllReduce(differs, comm::ReduceOp::kMax);
      return differs.Item() == 0;
    };
    for (int64_t step = 0; step < 12; ++step) {
      const int64_t rows = kTinyBatch / 3;
      booster.backward(TinyLoss(model, world.context(), {}, step, world.rank() * rows, rows),
                       optimizer);
      optimizer.step();
      optimizer.zero_grad();
    }
    ASSERT_FALSE(all_same()) << "the test must stop between two averages";
    model.Train(false);
    TinyLoss(model, world.context(), {}, 0, 0, 1);
    EXPECT_TRUE(all_same());
  });
}

// One momentum of one part overflows on one rank: only ranks of its part hear of it in the
// messages, and all skip.
TEST(OneBitDdpTest, PartsAgreeOnAMomentumThatIsNotFinite) {
  RunRanks(4, [&](comm::World& world) {
    nn::Gpt2 model({.vocab_size = 20, .n_positions = 8, .n_embd = 16, .n_layer = 1, .n_head = 2});
    model.Initialize(world.context(), {.seed = 1});
    optim::OneBitAdam optimizer(model.Parameters(), {.lr = 0.003, .freeze_step = 2});
    HybridParallelPlugin plugin(world, {}, {.tp_size = 2});
    Booster booster(plugin);
    Boosted boosted = booster.boost(model, optimizer, {.criterion = nn::CrossEntropyLoss()});
    const auto ids = [&] {
      return Tensor::FromVector<int64_t>({1, 4, 2, plugin.data_rank(), 7, 3, 1, 5}, {1, 8},
                                         world.context());
    };
    const auto cut = std::ranges::find_if(
        optimizer.views(), [](const optim::ParamView& v) { return !v.layout().is_whole(); });
    ASSERT_NE(cut, optimizer.views().end());
    for (int step = 1; step <= 6; ++step) {
      booster.backward(boosted.criterion(boosted.model(ids()), ids()), optimizer);
      const bool overflows = step == 3 || step == 5;
      const Tensor momentum = cut->state("exp_avg");
      float kept = 0;
      if (overflows) {
        kept = momentum.data<float>()[0];
        if (world.rank() == 1) {
          momentum.data<float>()[0] = std::numeric_limits<float>::infinity();
        }
      }
      const Weights before = WeightsOf(model);
      optimizer.step();
      EXPECT_EQ(optimizer.last_step().skip, overflows) << step;
      if (overflows) {
        EXPECT_EQ(optimizer.last_step().nonfinite_parameter, cut->name());
        EXPECT_EQ(WeightsOf(model), before);
        momentum.data<float>()[0] = kept;
      }
      optimizer.zero_grad();
    }
    EXPECT_EQ(optimizer.global_step(), 4);
    for (const autograd::ParameterPtr& parameter : model.Parameters()) {
      const Tensor whole = plugin.WholeValue(*parameter);
      const Tensor other = whole.Clone();
      world.group()->Broadcast(other, 0);
      EXPECT_EQ(whole.ToVector<float>(), other.ToVector<float>()) << parameter->name();
    }
  });
}

// The same where ranks have stepped alone: too late for a skip, but every rank says so.
TEST(OneBitDdpTest, PartsAgreeOnADriftThatIsNotFinite) {
  std::vector<int> thrown(4);
  testing::LaunchRanks({.num_ranks = 4, .threads_per_rank = 1}, [&](comm::World& world) {
    nn::Gpt2 model({.vocab_size = 20, .n_positions = 8, .n_embd = 16, .n_layer = 1, .n_head = 2});
    model.Initialize(world.context(), {.seed = 1});
    optim::ZeroOneAdam optimizer(model.Parameters(), {.lr = 0.003, .freeze_step = 2});
    HybridParallelPlugin plugin(world, {}, {.tp_size = 2});
    Booster booster(plugin);
    Boosted boosted = booster.boost(model, optimizer, {.criterion = nn::CrossEntropyLoss()});
    const auto cut = std::ranges::find_if(
        optimizer.views(), [](const optim::ParamView& v) { return !v.layout().is_whole(); });
    for (int step = 1; step <= 3; ++step) {
      const Tensor ids =
          Tensor::FromVector<int64_t>({1, 4, 2, plugin.data_rank()}, {1, 4}, world.context());
      booster.backward(boosted.criterion(boosted.model(ids), ids), optimizer);
      if (step == 3 && world.rank() == 1) {
        cut->state("exp_avg").data<float>()[0] = std::numeric_limits<float>::infinity();
      }
      try {
        optimizer.step();
      } catch (const Error& error) {
        EXPECT_EQ(step, 3);
        EXPECT_THAT(error.what(), HasSubstr(cut->name()));
        ++thrown[static_cast<size_t>(world.rank())];
      }
      optimizer.zero_grad();
    }
  }).IgnoreError();
  testing::ShareByRank(thrown);
  EXPECT_EQ(thrown, std::vector<int>(4, 1));
}

// Gradients are local or means as the optimizer asked at backward; a state of another phase that is
// loaded after that would take one for the other.
TEST(OneBitDdpTest, ALoadBetweenBackwardAndStepIsRefused) {
  RunRanks(2, [&](comm::World& world) {
    TinyModel model({});
    model.Initialize(world.context(), {.seed = 11});
    optim::OneBitAdam optimizer(model.Parameters(), {.freeze_step = 2});
    DdpPlugin plugin(world.group());
    Booster booster(plugin);
    std::ignore = booster.boost(model, optimizer);
    const auto backward = [&](int64_t step) {
      const int64_t rows = kTinyBatch / 2;
      booster.backward(TinyLoss(model, world.context(), {}, step, world.rank() * rows, rows),
                       optimizer);
    };
    const auto message = [](const std::function<void()>& fn) -> std::string {
      try {
        fn();
      } catch (const Error& error) {
        return error.what();
      }
      return "accepted";
    };
    const optim::StateDict fresh = optimizer.state_dict();
    for (int64_t step = 0; step < 3; ++step) {
      backward(step);
      optimizer.step();
      optimizer.zero_grad();
    }
    backward(3);
    ASSERT_EQ(optimizer.load_state_dict(fresh), absl::OkStatus());
    const Weights before = WeightsOf(model);
    // Gradients of two kinds do not add up either.
    EXPECT_THAT(message([&] { backward(4); }), HasSubstr("loaded since"));
    for (int again = 0; again < 2; ++again) {
      EXPECT_THAT(message([&] { optimizer.step(); }), HasSubstr("loaded since"));
    }
    EXPECT_EQ(WeightsOf(model), before);
    optimizer.zero_grad();
    backward(4);
    optimizer.step();
    EXPECT_EQ(optimizer.global_step(), 1);
    optimizer.zero_grad();
    // Gradients that were given up are no obstacle.
    for (int64_t step = 1; step < 4; ++step) {
      backward(step);
      if (step == 3) break;
      optimizer.step();
      optimizer.zero_grad();
    }
    optimizer.zero_grad();
    ASSERT_EQ(optimizer.load_state_dict(fresh), absl::OkStatus());
    backward(4);
    optimizer.step();
    EXPECT_EQ(optimizer.global_step(), 1);
  });
}

std::string RefusalOf(const std::function<void(comm::World&)>& boost) {
  return Message(testing::LaunchRanks({.num_ranks = 2, .threads_per_rank = 1}, boost));
}

// Clipping by hand would clip by another norm on every rank.
TEST(OneBitDdpTest, ClippingLocalGradientsByHandIsRefused) {
  RunRanks(2, [&](comm::World& world) {
    TinyModel model({});
    model.Initialize(world.context(), {.seed = 11});
    optim::OneBitAdam optimizer(model.Parameters(), {.freeze_step = 2});
    DdpPlugin plugin(world.group());
    Booster booster(plugin);
    std::ignore = booster.boost(model, optimizer);
    for (int64_t step = 0; step < 4; ++step) {
      const int64_t rows = kTinyBatch / 2;
      booster.backward(TinyLoss(model, world.context(), {}, step, world.rank() * rows, rows),
                       optimizer);
      std::string refused;
      try {
        optim::ClipGradNorm(model.Parameters(), {.max_norm = 1});
      } catch (const Error& error) {
        refused = error.what();
      }
      EXPECT_EQ(refused.empty(), step < 2) << refused;
      optimizer.step();
      optimizer.zero_grad();
    }
  });
}

TEST(OneBitDdpTest, PluginsThatCannotAreRefused) {
  const auto boost = [](Plugin& plugin, comm::World& world) {
    TinyModel model({});
    model.Initialize(world.context(), {.seed = 11});
    optim::OneBitAdam optimizer(model.Parameters(), {.freeze_step = 5});
    std::ignore = Booster(plugin).boost(model, optimizer);
  };
  for (const int stage : {1, 2}) {
    EXPECT_THAT(RefusalOf([&](comm::World& world) {
                  LowLevelZeroPlugin plugin(world.group(), {}, {.stage = stage});
                  boost(plugin, world);
                }),
                HasSubstr("low_level_zero: optimizer onebit_adam averages momenta of whole "
                          "parameters in 1-bit messages"));
    EXPECT_THAT(RefusalOf([&](comm::World& world) {
                  HybridParallelPlugin plugin(world, {}, {.stage = stage});
                  boost(plugin, world);
                }),
                HasSubstr("averages momenta of whole parameters"));
  }
  EXPECT_THAT(RefusalOf([&](comm::World& world) {
                DdpPlugin plugin(world.group(), {}, {.reproducible = true});
                boost(plugin, world);
              }),
              HasSubstr("which reproducible mode rules out"));
  EXPECT_THAT(RefusalOf([](comm::World& world) {
                DdpPlugin plugin(world.group(), {.max_norm = 1});
                TinyModel model({});
                model.Initialize(world.context(), {.seed = 11});
                optim::ZeroOneAdam optimizer(model.Parameters(), {.freeze_step = 5});
                std::ignore = Booster(plugin).boost(model, optimizer);
              }),
              HasSubstr("ddp: optimizer zero_one_adam: max_norm is 1, must be 0"));
}

}  // namespace onebit_ddp_test
}  // namespace apogee
