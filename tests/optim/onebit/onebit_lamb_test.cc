// SPDX-License-Identifier: Apache-2.0

// 1-bit LAMB on several ranks against the equations in double.
#include "apogee/optim/onebit/onebit_lamb.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "apogee/tests/support/runs/onebit_run.h"
#include "apogee/tests/support/set_element.h"
#include "apogee/tests/support/test_context.h"

namespace apogee::optim {
namespace onebit_lamb_test {

using ::apogee::testing::Values;
using testing::FeedOneBit;
using ::testing::HasSubstr;
using testing::LocalGrad;
using testing::OneBitShapes;
using ::testing::Property;
using testing::RunRanks;
using testing::ScalarCompression;
using testing::StartOf;
using ::testing::Throws;

constexpr OneBitLambOptions kOptions = {
    .lr = 0.01, .betas = {0.9, 0.95}, .weight_decay = 0.05, .freeze_step = 4};

double Norm(const Values& x) {
  double sum = 0;
  for (const double value : x) sum += value * value;
  return std::sqrt(sum);
}

// All parameters on all ranks.
class ScalarOneBitLamb {
 public:
  ScalarOneBitLamb(int ranks, const OneBitLambOptions& options) : ranks_(ranks), o_(options) {
    for (size_t k = 0; k < OneBitShapes().size(); ++k) {
      Param& p = params_.emplace_back();
      p.w = StartOf(k);
      p.m.assign(p.w.size(), 0);
      p.v.assign(p.w.size(), 0);
    }
  }

  void Step(int t) { t <= o_.freeze_step ? WarmUp(t) : Compressed(t); }
  const Values& weights(size_t k) const { return params_[k].w; }

 private:
  struct Param {
    Values w, m, v, fresh;
    double coefficient = 0, last = 1, scaling = 1;
  };

  Values Direction(const Param& p) const {
    Values u = p.m;
    for (size_t i = 0; i < u.size(); ++i) u[i] /= std::sqrt(p.v[i]) + o_.eps;
    return u;
  }
  void Move(Param& p, const Values& direction, double size) const {
    for (size_t i = 0; i < p.w.size(); ++i) {
      p.w[i] -= size * (direction[i] + o_.weight_decay * p.w[i]);
    }
  }
  Values Decayed(const Param& p, Values u) const {
    for (size_t i = 0; i < u.size(); ++i) u[i] += o_.weight_decay * p.w[i];
    return u;
  }

  void WarmUp(int t) {
    for (size_t k = 0; k < params_.size(); ++k) {
      Param& p = params_[k];
      for (size_t i = 0; i < p.w.size(); ++i) {
        double g = 0;
        for (int r = 0; r < ranks_; ++r) g += LocalGrad(r, t, k)[i] / ranks_;
        p.m[i] = o_.betas[0] * p.m[i] + (1 - o_.betas[0]) * g;
        p.v[i] = o_.betas[1] * p.v[i] + (1 - o_.betas[1]) * g * g;
      }
      const Values direction = Direction(p);
      const double weight = Norm(p.w), update = Norm(Decayed(p, direction));
      const double c =
          weight == 0 || update == 0 ? 1 : std::clamp(weight / update, o_.min_coeff, o_.max_coeff);
      if (c != 1) p.coefficient = o_.coeff_beta * p.coefficient + (1 - o_.coeff_beta) * c;
      Move(p, direction, o_.lr * c);
    }
  }

  void Switch() {
    Values sizes;
    double mean = 0;
    for (Param& p : params_) {
      sizes.push_back(Norm(p.m) / std::sqrt(static_cast<double>(p.m.size())));
      mean += sizes.back() / static_cast<double>(params_.size());
      p.fresh = p.v;
    }
    std::vector<std::vector<bool>> live;
    for (size_t k = 0; k < params_.size(); ++k) {
      params_[k].scaling = mean / sizes[k];
      std::vector<bool>& own = live.emplace_back();
      for (const double v : params_[k].v) own.push_back(v != 0);
    }
    compression_.emplace(static_cast<size_t>(ranks_), std::move(live), o_.shared_scale);
  }

  void Compressed(int t) {
    if (!compression_) Switch();
    std::vector<std::vector<Values>> messages(params_.size());
    for (size_t k = 0; k < params_.size(); ++k) {
      const Param& p = params_[k];
      for (int r = 0; r < ranks_; ++r) {
        Values& x = messages[k].emplace_back(LocalGrad(r, t, k));
        for (size_t i = 0; i < x.size(); ++i) {
          x[i] = (o_.betas[0] * p.m[i] + (1 - o_.betas[0]) * x[i]) * p.scaling;
        }
      }
    }
    std::vector<Values> agreed;
    if (ranks_ == 1) {
      for (const auto& own : messages) agreed.push_back(own[0]);
    } else {
      agreed = compression_->RunAll(messages);
    }
    for (size_t k = 0; k < params_.size(); ++k) {
      Param& p = params_[k];
      double factor = 0;
      for (size_t i = 0; i < p.w.size(); ++i) {
        const double m = agreed[k][i] / p.scaling;
        const double g = (m - o_.betas[0] * p.m[i]) / (1 - o_.betas[0]);
        p.fresh[i] = o_.betas[1] * p.fresh[i] + (1 - o_.betas[1]) * g * g;
        p.m[i] = m;
        if (p.v[i] == 0) continue;
        factor = std::max(factor, (std::sqrt(p.v[i]) + o_.eps) / (std::sqrt(p.fresh[i]) + o_.eps));
      }
      const Values direction = Direction(p);
      const double part = std::min(1.0, Norm(direction) / Norm(Decayed(p, direction)));
      factor = factor * part + (1 - part);
      factor = std::clamp(factor, o_.factor_min, o_.factor_max);
      p.last = std::clamp(factor, p.last * (1 - o_.factor_threshold),
                          p.last * (1 + o_.factor_threshold));
      Move(p, direction, o_.lr * p.coefficient * p.last);
    }
  }

  int ranks_;
  OneBitLambOptions o_;
  std::vector<Param> params_;
  std::optional<ScalarCompression> compression_;
};

double UpdateError(const Values& start, const Values& want, const Values& got) {
  Values error = got, update = want;
  for (size_t i = 0; i < want.size(); ++i) error[i] -= want[i];
  for (size_t i = 0; i < want.size(); ++i) update[i] -= start[i];
  return Norm(error) / Norm(update);
}

TEST(OneBitLambTest, IsTheScalarOneOnEveryNumberOfRanks) {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const bool shared_scale : {false, true}) {
      OneBitLambOptions options = kOptions;
      options.shared_scale = shared_scale;
      RunRanks(ranks, [&](comm::World& world) {
        const auto params = testing::MakeOneBitParams(world.context());
        OneBitLamb optimizer(params, options);
        optimizer.SetRanks(
            {.group = world.group(), .rank = world.rank(), .num_ranks = world.size()});
        ScalarOneBitLamb oracle(ranks, options);
        for (int t = 1; t <= 12; ++t) {
          FeedOneBit(optimizer, world, t);
          optimizer.step();
          oracle.Step(t);
          for (size_t k = 0; k < params.size(); ++k) {
            ASSERT_LE(
                UpdateError(StartOf(k), oracle.weights(k), params[k]->data().ToVector<double>()),
                1e-9)
                << params[k]->name() << ", step " << t << " on " << ranks << " ranks";
          }
        }
      });
    }
  }
}

TEST(OneBitLambTest, FirstGradientsAfterTheFreezeMoveNothing) {
  for (const int ranks : {1, 2}) {
    RunRanks(ranks, [&](comm::World& world) {
      const auto params = testing::MakeOneBitParams(world.context());
      OneBitLambOptions options = kOptions;
      options.weight_decay = 0;
      OneBitLamb optimizer(params, options);
      optimizer.SetRanks({.group = world.group(), .rank = world.rank(), .num_ranks = ranks});
      for (int t = 1; t <= 9; ++t) {
        FeedOneBit(optimizer, world, t);
        if (t > 4) SetElement(params[0]->grad(), 1, 0.3);
        optimizer.step();
      }
      EXPECT_EQ(params[0]->data().ToVector<double>()[1], StartOf(0)[1]) << ranks;
    });
  }
}

// The step that would have begun the compressed phase is skipped: what is saved then is a warm-up.
TEST(OneBitLambTest, ASkippedSwitchCanBeSaved) {
  RunRanks(2, [&](comm::World& world) {
    const auto params = testing::MakeOneBitParams(world.context());
    OneBitLamb optimizer(params, kOptions);
    optimizer.SetRanks({.group = world.group(), .rank = world.rank(), .num_ranks = 2});
    for (int t = 1; t <= 5; ++t) {
      FeedOneBit(optimizer, world, t);
      if (t == 5 && world.rank() == 1) {
        SetElement(optimizer.views()[1].state("exp_avg"), 0,
                   std::numeric_limits<double>::infinity());
      }
      optimizer.step();
    }
    EXPECT_TRUE(optimizer.last_step().skip);
    EXPECT_EQ(optimizer.CheckStateDict(optimizer.state_dict()), absl::OkStatus());
  });
}

TEST(OneBitLambTest, BadOptionsAreExplained) {
  const auto params = testing::MakeOneBitParams(TestContext());
  const auto message = [&](const OneBitLambOptions& options) -> std::string {
    try {
      OneBitLamb(params, options);
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_THAT(message({.freeze_step = 0}), HasSubstr("freeze_step is 0, must be at least 1"));
  EXPECT_THAT(message({.amsgrad = true}), HasSubstr("amsgrad is true, must be false"));
  EXPECT_THAT(message({.max_coeff = 0.001}), HasSubstr("max_coeff is 0.001, below min_coeff"));
}

}  // namespace onebit_lamb_test
}  // namespace apogee::optim
