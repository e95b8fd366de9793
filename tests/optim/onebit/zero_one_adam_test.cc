// SPDX-License-Identifier: Apache-2.0

// 0/1 Adam on several ranks against the equations in double, and what holds between syncs.
#include "apogee/optim/onebit/zero_one_adam.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "apogee/tests/support/runs/onebit_run.h"
#include "apogee/tests/support/set_element.h"
#include "apogee/tests/support/test_context.h"

namespace apogee::optim {
namespace zero_one_adam_test {

using ::apogee::testing::Values;
using testing::FeedOneBit;
using ::testing::HasSubstr;
using testing::LocalGrad;
using testing::OneBitShapes;
using testing::RunRanks;
using testing::ScalarCompression;
using testing::StartOf;

// Intervals of the second moment 1, 1, 2, 2, 4, ...; of local steps 1, 1, 1, 2, 2, 2, 4, ...
constexpr ZeroOneAdamOptions kOptions = {.lr = 0.01,
                                         .betas = {0.9, 0.95},
                                         .weight_decay = 0.05,
                                         .freeze_step = 11,
                                         .var_update_scaler = 2,
                                         .local_step_scaler = 3,
                                         .local_step_clipper = 4};

// One parameter on all ranks.
class ScalarZeroOneAdam {
 public:
  ScalarZeroOneAdam(int ranks, size_t index, const ZeroOneAdamOptions& options)
      : ranks_(static_cast<size_t>(ranks)), index_(index), o_(options), anchor_(StartOf(index)) {
    v_.assign(anchor_.size(), 0);
    w_.assign(ranks_, anchor_);
    m_.assign(ranks_, v_);
    drift_.assign(ranks_, v_);
  }

  void Step(int t) { t <= o_.freeze_step ? First(t) : Alone(t); }
  const Values& weights(size_t rank) const { return w_[rank]; }

 private:
  std::vector<Values> Local(int t) const {
    std::vector<Values> grads;
    for (size_t r = 0; r < ranks_; ++r) {
      grads.push_back(LocalGrad(static_cast<int>(r), t, index_));
    }
    return grads;
  }
  double Root(size_t i) const { return std::sqrt(v_[i]) + o_.eps; }
  // Gradients and sums of momenta have errors of their own.
  Values Agree(const std::vector<Values>& inputs) {
    if (ranks_ == 1) return inputs[0];
    if (!compression_) {
      std::vector<bool> live;
      for (const double v : v_) live.push_back(v != 0);
      compression_.emplace(ranks_, v_.size(), std::move(live));
    }
    return compression_->Run(inputs);
  }

  void First(int t) {
    const bool renews = t % var_interval_ == 0;
    Values g(v_.size(), 0);
    if (renews) {
      for (const Values& own : Local(t)) {
        for (size_t i = 0; i < g.size(); ++i) g[i] += own[i] / static_cast<double>(ranks_);
      }
    } else {
      g = Agree(Local(t));
    }
    Values& m = m_[0];
    for (size_t i = 0; i < g.size(); ++i) {
      m[i] = o_.betas[0] * m[i] + (1 - o_.betas[0]) * g[i];
      if (renews) v_[i] = o_.betas[1] * v_[i] + (1 - o_.betas[1]) * g[i] * g[i];
      anchor_[i] -= o_.lr * (m[i] / Root(i) + o_.weight_decay * anchor_[i]);
    }
    m_.assign(ranks_, Values(m));
    w_.assign(ranks_, anchor_);
    if (renews && ++var_counter_ == o_.var_update_scaler) {
      var_counter_ = 0;
      var_interval_ *= 2;
    }
    if (t == o_.freeze_step) compression_.reset();
  }

  void Alone(int t) {
    const std::vector<Values> grads = Local(t);
    const double keep = 1 - o_.lr * o_.weight_decay;
    weight_ = keep * weight_ + o_.lr;
    for (double& a : anchor_) a *= keep;
    for (size_t r = 0; r < ranks_; ++r) {
      for (size_t i = 0; i < v_.size(); ++i) {
        m_[r][i] = o_.betas[0] * m_[r][i] + (1 - o_.betas[0]) * grads[r][i];
        drift_[r][i] = keep * drift_[r][i] + o_.lr * m_[r][i];
        w_[r][i] = anchor_[i] - drift_[r][i] / Root(i);
      }
    }
    if (t % local_interval_ == 0) {
      const Values agreed = Agree(drift_);
      for (size_t i = 0; i < v_.size(); ++i) anchor_[i] -= agreed[i] / Root(i);
      for (size_t r = 0; r < ranks_; ++r) {
        for (size_t i = 0; i < v_.size(); ++i) m_[r][i] = agreed[i] / weight_;
      }
      w_.assign(ranks_, anchor_);
      drift_.assign(ranks_, Values(v_.size(), 0));
      weight_ = 0;
    }
    if (++local_counter_ == o_.local_step_scaler) {
      local_counter_ = 0;
      local_interval_ = std::min(o_.local_step_clipper, 2 * local_interval_);
    }
  }

  size_t ranks_, index_;
  ZeroOneAdamOptions o_;
  Values anchor_, v_;
  std::vector<Values> w_, m_, drift_;
  double weight_ = 0;
  int64_t var_interval_ = 1, var_counter_ = 0, local_interval_ = 1, local_counter_ = 0;
  std::optional<ScalarCompression> compression_;
};

double UpdateError(const Values& start, const Values& want, const Values& got) {
  double error = 0, update = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += (got[i] - want[i]) * (got[i] - want[i]);
    update += (want[i] - start[i]) * (want[i] - start[i]);
  }
  return std::sqrt(error / update);
}

TEST(ZeroOneAdamTest, IsTheScalarOneOnEveryNumberOfRanks) {
  for (const int ranks : {1, 2, 3, 4}) {
    RunRanks(ranks, [&](comm::World& world) {
      const auto params = testing::MakeOneBitParams(world.context());
      ZeroOneAdam optimizer(params, kOptions);
      optimizer.SetRanks({.group = world.group(), .rank = world.rank(), .num_ranks = world.size()});
      std::vector<ScalarZeroOneAdam> oracles;
      for (size_t k = 0; k < params.size(); ++k) oracles.emplace_back(ranks, k, kOptions);
      for (int t = 1; t <= 30; ++t) {
        FeedOneBit(optimizer, world, t);
        optimizer.step();
        for (size_t k = 0; k < params.size(); ++k) {
          oracles[k].Step(t);
          ASSERT_LE(UpdateError(StartOf(k), oracles[k].weights(static_cast<size_t>(world.rank())),
                                params[k]->data().ToVector<double>()),
                    1e-9)
              << params[k]->name() << ", step " << t << " on " << ranks << " ranks";
        }
      }
      EXPECT_EQ(optimizer.variance_interval(), 4);  // renewed at 1, 2, 4, 6 and 8
      EXPECT_EQ(optimizer.local_interval(), 4);
    });
  }
}

// Weights of ranks differ between averaging steps and have the same bits after SyncReplicas.
TEST(ZeroOneAdamTest, SyncReplicasMakesThemTheSame) {
  ZeroOneAdamOptions options = kOptions;
  options.freeze_step = 2;
  RunRanks(3, [&](comm::World& world) {
    const auto params = testing::MakeOneBitParams(world.context());
    ZeroOneAdam optimizer(params, options);
    optimizer.SetRanks({.group = world.group(), .rank = world.rank(), .num_ranks = world.size()});
    const auto differ = [&](const Tensor& mine) {
      const Tensor first = mine.Clone();
      world.group()->Broadcast(first, 0);
      const Tensor differs = Tensor::Full(
          {1}, DType::kF32, first.ToVector<double>() != mine.ToVector<double>(), world.context());
      world.group()->AllReduce(differs, comm::ReduceOp::kMax);
      return differs.Item() != 0;
    };
    int apart = 0;
    for (int t = 1; t <= 23; ++t) {
      FeedOneBit(optimizer, world, t);
      optimizer.step();
      apart += differ(params[2]->data()) ? 1 : 0;
    }
    EXPECT_GT(apart, 5);
    ASSERT_TRUE(differ(params[2]->data())) << "the test must stop between two averaging steps";
    optimizer.SyncReplicas();
    for (ParamView& view : optimizer.views()) {
      EXPECT_FALSE(differ(view.value())) << view.name();
      EXPECT_FALSE(differ(view.state("exp_avg"))) << view.name();
    }
  });
}

// Elements without a second moment stay where they are also while ranks step alone.
TEST(ZeroOneAdamTest, FirstGradientsAfterTheFreezeMoveNothing) {
  for (const int ranks : {1, 2}) {
    RunRanks(ranks, [&](comm::World& world) {
      const auto params = testing::MakeOneBitParams(world.context());
      ZeroOneAdamOptions options = kOptions;
      options.weight_decay = 0;
      options.freeze_step = 3;
      ZeroOneAdam optimizer(params, options);
      optimizer.SetRanks({.group = world.group(), .rank = world.rank(), .num_ranks = ranks});
      for (int t = 1; t <= 24; ++t) {
        FeedOneBit(optimizer, world, t);
        // The second moment is renewed in steps 1 and 2.
        if (t > 2) SetElement(params[0]->grad(), 1, 0.3);
        optimizer.step();
        ASSERT_EQ(params[0]->data().ToVector<double>()[1], StartOf(0)[1])
            << "step " << t << " of " << ranks << " ranks";
      }
    });
  }
}

// A parameter whose first gradient comes in a step that sends nothing in 1-bit messages has the
// states that a checkpoint of that moment is asked for.
TEST(ZeroOneAdamTest, AParameterThatJoinsLateCanBeSaved) {
  for (const int joins : {3, 4, 5, 12, 17}) {  // 1-bit, renewed, 1-bit, alone
    RunRanks(2, [&](comm::World& world) {
      const auto params = testing::MakeOneBitParams(world.context());
      ZeroOneAdam optimizer(params, kOptions);
      optimizer.SetRanks({.group = world.group(), .rank = world.rank(), .num_ranks = 2});
      for (int t = 1; t <= joins; ++t) {
        FeedOneBit(optimizer, world, t);
        if (t < joins) params[2]->set_grad(Tensor());
        optimizer.step();
      }
      EXPECT_EQ(optimizer.views()[2].step(), 1);
      EXPECT_EQ(optimizer.CheckStateDict(optimizer.state_dict()), absl::OkStatus()) << joins;
    });
  }
}

TEST(ZeroOneAdamTest, ClippingIsRefused) {
  const auto params = testing::MakeOneBitParams(TestContext());
  ZeroOneAdam optimizer(params, kOptions);
  EXPECT_THAT(optimizer.rule().ProblemOverRanks(1), HasSubstr("max_norm is 1, must be 0"));
  EXPECT_EQ(optimizer.rule().ProblemOverRanks(0), "");
  // Where the norm is set after boost, the step says so.
  const absl::Status status = comm::launch({.num_ranks = 2}, [](comm::World& world) {
    ZeroOneAdamOptions options = kOptions;
    options.freeze_step = 1;
    ZeroOneAdam late(testing::MakeOneBitParams(world.context()), options);
    late.SetRanks({.group = world.group(), .rank = world.rank(), .num_ranks = 2});
    late.set_step_options({.max_norm = 1});
    for (int t = 1; t <= 2; ++t) {
      FeedOneBit(late, world, t);
      late.step();
    }
  });
  EXPECT_THAT(Message(status), HasSubstr("max_norm clips a norm that no rank knows"));
}

TEST(ZeroOneAdamTest, BadOptionsAreExplained) {
  const auto params = testing::MakeOneBitParams(TestContext());
  const auto message = [&](const ZeroOneAdamOptions& options) -> std::string {
    try {
      ZeroOneAdam(params, options);
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_THAT(message({.freeze_step = 0}), HasSubstr("freeze_step is 0, must be at least 1"));
  EXPECT_THAT(message({.amsgrad = true}), HasSubstr("amsgrad is true, must be false"));
  EXPECT_THAT(message({.local_step_clipper = 0}), HasSubstr("local_step_clipper is 0"));
  // What only one group's value decides.
  for (auto option :
       {&ZeroOneAdamOptions::var_update_scaler, &ZeroOneAdamOptions::local_step_scaler,
        &ZeroOneAdamOptions::local_step_clipper}) {
    ZeroOneAdamOptions other = kOptions;
    other.*option += 1;
    try {
      ZeroOneAdam({{{params[0]}, kOptions}, {{params[1]}, other}});
      ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("must be those of group 0"));
    }
  }
}

}  // namespace zero_one_adam_test
}  // namespace apogee::optim
