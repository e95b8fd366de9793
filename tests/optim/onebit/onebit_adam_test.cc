// SPDX-License-Identifier: Apache-2.0

// 1-bit Adam on several ranks against scalar references in double: the warm-up, the switch, the
// compressed phase, masks, groups that stay, steps that all ranks skip.
#include "apogee/optim/onebit/onebit_adam.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "apogee/optim/adam/adam.h"
#include "apogee/tests/optim/onebit/scalar_onebit_adam.h"
#include "apogee/tests/support/runs/onebit_run.h"
#include "apogee/tests/support/set_element.h"
#include "apogee/tests/support/test_context.h"

namespace apogee::optim {
namespace onebit_adam_test {

using ::apogee::testing::Values;
using testing::FeedOneBit;
using ::testing::HasSubstr;
using testing::LocalGrad;
using ::testing::Property;
using testing::RunRanks;
using testing::StartOf;
using ::testing::Throws;

constexpr OneBitAdamOptions kOptions = {
    .lr = 0.01, .betas = {0.9, 0.95}, .weight_decay = 0.05, .freeze_step = 4};

double UpdateError(const Values& start, const Values& want, const Values& got) {
  double error = 0, update = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += (got[i] - want[i]) * (got[i] - want[i]);
    update += (want[i] - start[i]) * (want[i] - start[i]);
  }
  return std::sqrt(error / update);
}

TEST(OneBitAdamTest, IsTheScalarOneOnEveryNumberOfRanks) {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const bool non_freeze : {false, true}) {
      OneBitAdamOptions stays = kOptions;
      stays.non_freeze = non_freeze;
      RunRanks(ranks, [&](comm::World& world) {
        const auto params = testing::MakeOneBitParams(world.context());
        OneBitAdam optimizer({{{params[0], params[1]}, kOptions}, {{params[2], params[3]}, stays}});
        optimizer.SetRanks(
            {.group = world.group(), .rank = world.rank(), .num_ranks = world.size()});
        std::vector<ScalarOneBitAdam> oracles;
        for (size_t k = 0; k < params.size(); ++k) {
          oracles.emplace_back(ranks, k, k < 2 ? kOptions : stays);
        }
        for (int t = 1; t <= 12; ++t) {
          FeedOneBit(optimizer, world, t);
          optimizer.step();
          for (size_t k = 0; k < params.size(); ++k) {
            oracles[k].Step(t);
            ASSERT_LE(
                UpdateError(StartOf(k), oracles[k].weights(), params[k]->data().ToVector<double>()),
                1e-10)
                << params[k]->name() << ", step " << t << " on " << ranks << " ranks";
          }
        }
      });
    }
  }
}

TEST(OneBitAdamTest, WarmUpIsAdamWithoutBiasCorrectionBitForBit) {
  const ContextPtr context = TestContext();
  const auto ours = testing::MakeOneBitParams(context, DType::kF32);
  const auto theirs = testing::MakeOneBitParams(context, DType::kF32);
  OneBitAdamOptions options = kOptions;
  options.freeze_step = 100;
  OneBitAdam onebit(ours, options);
  AdamW adam(theirs, {.lr = options.lr,
                      .betas = options.betas,
                      .eps = options.eps,
                      .weight_decay = options.weight_decay,
                      .correct_bias = false});
  for (int t = 1; t <= 10; ++t) {
    for (size_t k = 0; k < ours.size(); ++k) {
      for (const auto& list : {ours, theirs}) {
        list[k]->set_grad(
            Tensor::FromVector<double>(LocalGrad(0, t, k), list[k]->shape(), context, DType::kF32));
      }
    }
    onebit.step();
    adam.step();
  }
  for (size_t k = 0; k < ours.size(); ++k) {
    EXPECT_EQ(ours[k]->data().ToVector<float>(), theirs[k]->data().ToVector<float>());
  }
}

// Elements without a gradient in the warm-up, and those of the user's mask, keep a momentum of 0.
TEST(OneBitAdamTest, MaskedElementsDoNotMove) {
  RunRanks(3, [&](comm::World& world) {
    const auto params = testing::MakeOneBitParams(world.context());
    OneBitAdamOptions options = kOptions;
    options.weight_decay = 0;
    OneBitAdam optimizer(params, options);
    optimizer.SetRanks({.group = world.group(), .rank = world.rank(), .num_ranks = world.size()});
    Tensor mask = Tensor::Full(params[2]->shape(), DType::kF32, 1, world.context());
    SetElement(mask, 4, 0);
    optimizer.SetMomentumMask(params[2]->name(), mask);
    Values before;
    for (int t = 1; t <= 9; ++t) {
      FeedOneBit(optimizer, world, t);
      optimizer.step();
      if (t == 4) before = params[2]->data().ToVector<double>();
    }
    const Values after = params[2]->data().ToVector<double>();
    for (size_t i = 0; i < after.size(); ++i) EXPECT_EQ(after[i] == before[i], i == 4) << i;
    // LocalGrad gives element 1 of parameter 0 no gradient, ever.
    EXPECT_EQ(params[0]->data().ToVector<double>()[1], StartOf(0)[1]);
  });
}

// An element whose first gradient comes after the freeze has no second moment to divide by: it
// stays where it is, on one rank too, which sends nothing.
TEST(OneBitAdamTest, FirstGradientsAfterTheFreezeMoveNothing) {
  for (const int ranks : {1, 2}) {
    RunRanks(ranks, [&](comm::World& world) {
      const auto params = testing::MakeOneBitParams(world.context());
      OneBitAdamOptions options = kOptions;
      options.weight_decay = 0;
      OneBitAdam optimizer(params, options);
      optimizer.SetRanks({.group = world.group(), .rank = world.rank(), .num_ranks = ranks});
      Tensor mask = Tensor::Full(params[2]->shape(), DType::kF32, 1, world.context());
      SetElement(mask, 4, 0);
      optimizer.SetMomentumMask(params[2]->name(), mask);
      Values before;
      for (int t = 1; t <= 9; ++t) {
        FeedOneBit(optimizer, world, t);
        if (t > 4) SetElement(params[0]->grad(), 1, 0.3);
        optimizer.step();
        if (t == 4) before = params[2]->data().ToVector<double>();
      }
      EXPECT_EQ(params[0]->data().ToVector<double>()[1], StartOf(0)[1]) << ranks;
      EXPECT_EQ(params[2]->data().ToVector<double>()[4], before[4]) << ranks;
      EXPECT_NE(params[2]->data().ToVector<double>()[5], before[5]) << ranks;
    });
  }
}

// A gradient whose square overflows stops its element, as in Adam, and no other of its tensor.
TEST(OneBitAdamTest, ASecondMomentThatOverflowsStopsItsElementOnly) {
  for (const int ranks : {1, 2}) {
    RunRanks(ranks, [&](comm::World& world) {
      const auto params = testing::MakeOneBitParams(world.context(), DType::kF32);
      OneBitAdamOptions options = kOptions;
      options.weight_decay = 0;
      OneBitAdam optimizer(params, options);
      optimizer.SetRanks({.group = world.group(), .rank = world.rank(), .num_ranks = ranks});
      std::vector<float> before;
      for (int t = 1; t <= 9; ++t) {
        FeedOneBit(optimizer, world, t);
        if (t == 2) SetElement(params[2]->grad(), 4, 1e25f);
        if (t == 5) before = params[2]->data().ToVector<float>();
        optimizer.step();
        EXPECT_FALSE(optimizer.last_step().skip) << t;
      }
      const std::vector<float> after = params[2]->data().ToVector<float>();
      for (size_t i = 0; i < after.size(); ++i) {
        EXPECT_EQ(after[i] == before[i], i == 4) << i << " of " << ranks;
      }
    });
  }
}

// Parameters without elements, and of one, send what they have.
TEST(OneBitAdamTest, EmptyParametersGoAlong) {
  for (const bool shared : {false, true}) {
    RunRanks(3, [&](comm::World& world) {
      OneBitAdamOptions options = kOptions;
      options.shared_scale = shared;
      std::vector<autograd::ParameterPtr> params;
      for (const int64_t n : {0, 1, 0}) {
        params.push_back(std::make_shared<autograd::Parameter>(
            internal::Concat("p", params.size()),
            Tensor::Full({n}, DType::kF32, 1, world.context())));
      }
      OneBitAdam optimizer(params, options);
      optimizer.SetRanks({.group = world.group(), .rank = world.rank(), .num_ranks = 3});
      for (int t = 1; t <= 8; ++t) {
        for (const auto& p : params) {
          p->set_grad(Tensor::Full(p->shape(), DType::kF32, 1, world.context()));
        }
        optimizer.step();
      }
      EXPECT_EQ(optimizer.global_step(), 8);
      EXPECT_LT(params[1]->data().Item(), 1);
    });
  }
}

// A single rank's masks are not those of the ranks that it joins.
TEST(OneBitAdamTest, GoesOnFromOneRankToSeveral) {
  RunRanks(3, [&](comm::World& world) {
    const auto params = testing::MakeOneBitParams(world.context());
    OneBitAdam optimizer(params, kOptions);
    for (int t = 1; t <= 8; ++t) {
      if (t == 7) {
        optimizer.SetRanks({.group = world.group(), .rank = world.rank(), .num_ranks = 3});
      }
      for (size_t k = 0; k < params.size(); ++k) {
        params[k]->set_grad(
            Tensor::FromVector<double>(LocalGrad(0, t, k), params[k]->shape(), world.context()));
      }
      optimizer.step();
    }
    EXPECT_EQ(optimizer.global_step(), 8);
  });
}

// The messages of f32 and f64 parameters are two: neither may change errors when the other has a
// momentum that is not finite.
TEST(OneBitAdamTest, ASkippedStepChangesNoErrorsOfOtherTypes) {
  RunRanks(2, [&](comm::World& world) {
    auto params = testing::MakeOneBitParams(world.context());
    const auto narrow = testing::MakeOneBitParams(world.context(), DType::kF32);
    params[0] = narrow[0];
    OneBitAdam optimizer(params, kOptions);
    optimizer.SetRanks({.group = world.group(), .rank = world.rank(), .num_ranks = 2});
    for (int t = 1; t <= 7; ++t) {
      FeedOneBit(optimizer, world, t);
      if (t == 7 && world.rank() == 1) {
        SetElement(optimizer.views()[1].state("exp_avg"), 0,
                   std::numeric_limits<double>::infinity());
      }
      const Tensor error = optimizer.views()[0].state("worker_error");
      const Values before = error.defined() ? error.ToVector<double>() : Values();
      optimizer.step();
      EXPECT_EQ(optimizer.last_step().skip, t == 7);
      if (t == 7) {
        EXPECT_EQ(error.ToVector<double>(), before);
      }
    }
  });
}

TEST(OneBitAdamTest, AStepThatIsNotFiniteOnOneRankIsSkippedByAll) {
  for (const bool compressed : {false, true}) {
    RunRanks(3, [&](comm::World& world) {
      const auto params = testing::MakeOneBitParams(world.context());
      OneBitAdam optimizer(params, kOptions);
      optimizer.SetRanks({.group = world.group(), .rank = world.rank(), .num_ranks = world.size()});
      int t = 1;
      for (; t <= (compressed ? 6 : 2); ++t) {
        FeedOneBit(optimizer, world, t);
        optimizer.step();
      }
      const auto snapshot = [&] {
        std::vector<Values> all;
        for (const ParamView& view : optimizer.views()) {
          all.push_back(view.value().ToVector<double>());
          for (const NamedState& state : view.states()) {
            all.push_back(state.value.ToVector<double>());
          }
        }
        return all;
      };
      const std::vector<Values> before = snapshot();
      FeedOneBit(optimizer, world, t);
      if (world.rank() == 1 || !compressed) {
        SetElement(params[1]->grad(), 0, std::numeric_limits<double>::quiet_NaN());
      }
      optimizer.step();
      EXPECT_TRUE(optimizer.last_step().skip);
      EXPECT_EQ(optimizer.last_step().nonfinite_parameter, params[1]->name());
      EXPECT_EQ(optimizer.global_step(), t - 1);
      EXPECT_EQ(snapshot(), before);
    });
  }
}

// Finite gradients whose momentum is not: found in the messages, before anything has changed.
TEST(OneBitAdamTest, AMomentumThatIsNotFiniteIsSkippedByAll) {
  RunRanks(2, [&](comm::World& world) {
    const auto params = testing::MakeOneBitParams(world.context());
    OneBitAdam optimizer(params, kOptions);
    optimizer.SetRanks({.group = world.group(), .rank = world.rank(), .num_ranks = world.size()});
    for (int t = 1; t <= 6; ++t) {
      FeedOneBit(optimizer, world, t);
      if (t == 6 && world.rank() == 1) {
        SetElement(optimizer.views()[1].state("exp_avg"), 0,
                   std::numeric_limits<double>::infinity());
      }
      const Values weights = params[0]->data().ToVector<double>();
      const Tensor error = optimizer.views()[0].state("worker_error");
      const Values kept = error.defined() ? error.ToVector<double>() : Values();
      optimizer.step();
      EXPECT_EQ(optimizer.last_step().skip, t == 6);
      if (t < 6) continue;
      EXPECT_EQ(optimizer.last_step().nonfinite_parameter, params[1]->name());
      EXPECT_EQ(params[0]->data().ToVector<double>(), weights);
      EXPECT_EQ(error.ToVector<double>(), kept);
      EXPECT_EQ(optimizer.views()[0].step(), 5);
    }
  });
}

TEST(OneBitAdamTest, ClipsByOneNormOnAllRanks) {
  RunRanks(2, [&](comm::World& world) {
    const auto params = testing::MakeOneBitParams(world.context());
    OneBitAdam optimizer(params, kOptions);
    optimizer.SetRanks({.group = world.group(), .rank = world.rank(), .num_ranks = world.size()});
    optimizer.set_step_options({.max_norm = 0.1});
    for (int t = 1; t <= 5; ++t) {
      FeedOneBit(optimizer, world, t);
      optimizer.step();
    }
    double squares = 0;
    for (int r = 0; r < 2; ++r) {
      for (size_t k = 0; k < params.size(); ++k) {
        for (const double g : LocalGrad(r, 5, k)) squares += g * g / 2;
      }
    }
    EXPECT_NEAR(optimizer.last_step().grad_norm, std::sqrt(squares), 1e-9);
    EXPECT_NEAR(optimizer.last_step().clip_factor, 0.1 / (std::sqrt(squares) + 1e-6), 1e-9);
  });
}

TEST(OneBitAdamTest, BadOptionsAreExplained) {
  const auto params = testing::MakeOneBitParams(TestContext());
  const auto make = [&](const OneBitAdamOptions& options) {
    return [&params, options] { OneBitAdam(params, options); };
  };
  EXPECT_THAT(make({.freeze_step = 0}),
              Throws<Error>(Property(&Error::what, HasSubstr("freeze_step is 0, must be at "
                                                             "least 1"))));
  EXPECT_THAT(make({.amsgrad = true}),
              Throws<Error>(Property(&Error::what, HasSubstr("amsgrad is true, must be false"))));
  OneBitAdamOptions other = kOptions;
  other.freeze_step = 9;
  EXPECT_THAT(([&] {
                OneBitAdam({{{params[0]}, kOptions}, {{params[1]}, other}});
              }),
              Throws<Error>(Property(&Error::what, HasSubstr("must be those of group 0"))));
  OneBitAdam optimizer(params, kOptions);
  EXPECT_THAT([&] { optimizer.SetMomentumMask("nobody", Tensor()); },
              Throws<Error>(Property(&Error::what, HasSubstr("not one of its parameters"))));
}

}  // namespace onebit_adam_test
}  // namespace apogee::optim
