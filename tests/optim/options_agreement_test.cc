// SPDX-License-Identifier: Apache-2.0

// Options: what is refused when it is set, and what ranks say when theirs differ.
#include "apogee/optim/core/options_agreement.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <limits>

#include "apogee/comm/some_ranks.h"
#include "apogee/optim/adam/adam.h"
#include "apogee/optim/core/group_stat_reducer.h"
#include "apogee/optim/factored/adafactor.h"
#include "apogee/optim/momentum/sgd.h"
#include "apogee/optim/schedule/lr_scheduler.h"
#include "apogee/tests/optim/optim_fixture.h"
#include "apogee/tests/support/message_of.h"
#include "apogee/tests/support/run_ranks.h"

namespace apogee::optim {
namespace options_agreement_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::MessageOf;
using testing::RunRanks;

TEST(OptionsAgreementTest, DigestsThatDifferAreTold) {
  for (const bool maxima : {false, true}) {
    for (const int num_ranks : {1, 2, 7, 8192}) {
      for (const bool differ : {false, true}) {
        double all[kNumDigestSlots] = {};
        for (int rank = 0; rank < num_ranks; ++rank) {
          double mine[kNumDigestSlots];
          const bool other = differ && rank == num_ranks - 1;
          PutDigest(other ? 0xffffffffff : 0xfffff00000, maxima, mine);
          for (int i = 0; i < kNumDigestSlots; ++i) {
            all[i] = maxima ? std::max(all[i], mine[i]) : all[i] + mine[i];
          }
        }
        EXPECT_EQ(DigestsAgree(maxima, all), !differ || num_ranks == 1)
            << num_ranks << (maxima ? " maxima" : " sums");
      }
    }
  }
}

TEST(OptionsAgreementTest, TheDigestFollowsEveryOption) {
  const ContextPtr context = CpuContext();
  const ParameterPtr param = RandomParam("w", {3}, DType::kF32, context, 1);
  AdamW optimizer({param}, {.lr = 1e-3});
  const uint64_t before = optimizer.OptionsDigest();
  optimizer.set_lr(0, 2e-3);
  EXPECT_NE(optimizer.OptionsDigest(), before);
  optimizer.set_lr(0, 1e-3);
  EXPECT_EQ(optimizer.OptionsDigest(), before);
  optimizer.set_momentum(0, 0.5);
  EXPECT_NE(optimizer.OptionsDigest(), before);
  optimizer.set_momentum(0, AdamWOptions{}.betas[0]);
  optimizer.set_step_options({.max_norm = 1});
  EXPECT_NE(optimizer.OptionsDigest(), before);
}

TEST(OptionsAgreementTest, WhatTheConstructorRefusesIsRefusedLaterToo) {
  const ContextPtr context = CpuContext();
  const ParameterPtr param = RandomParam("w", {3, 4}, DType::kF32, context, 1);
  AdamW adam({param}, {.lr = 1e-3});
  Sgd sgd({param}, {.lr = 1e-3, .momentum = 0.9});
  Adafactor adafactor({param}, {.lr = 1e-3, .scale_parameter = false, .relative_step = false});
  for (Optimizer* optimizer : {static_cast<Optimizer*>(&adam), static_cast<Optimizer*>(&sgd),
                               static_cast<Optimizer*>(&adafactor)}) {
    const double infinity = std::numeric_limits<double>::infinity();
    EXPECT_THAT(MessageOf([&] { optimizer->set_lr(0, -1); }),
                AllOf(HasSubstr("optimizer " + optimizer->name()),
                      HasSubstr("lr is -1, must be at least 0 and finite")));
    EXPECT_THAT(MessageOf([&] { optimizer->set_lr(0, infinity); }), HasSubstr("must be finite"));
    EXPECT_THAT(MessageOf([&] { optimizer->set_lr(0, std::nan("")); }),
                HasSubstr("must be finite"));
    EXPECT_EQ(optimizer->lr(0), 1e-3);
  }
  EXPECT_THAT(MessageOf([&] { adam.set_momentum(0, 1.5); }), HasSubstr("must be in [0, 1)"));
  EXPECT_EQ(adam.momentum(0), 0.9);
  EXPECT_THAT(MessageOf([&] {
                adam.set_step_options({.loss_scale = std::numeric_limits<double>::infinity()});
              }),
              HasSubstr("loss_scale is inf, must be above 0 and finite"));
}

TEST(OptionsAgreementTest, AScheduleOutlivesNoOptimizer) {
  const ContextPtr context = CpuContext();
  auto optimizer = std::make_unique<Sgd>(
      std::vector<ParameterPtr>{RandomParam("w", {3}, DType::kF32, context, 1)},
      SgdOptions{.lr = 1e-3});
  LrScheduler scheduler(*optimizer, LinearSchedule({.total_steps = 10}));
  optimizer.reset();
  EXPECT_THAT(MessageOf([&] { scheduler.step(); }),
              HasSubstr("the optimizer whose rates it sets has been destroyed"));
}

// Every rank hears the same, before anything has moved.
TEST(OptionsAgreementTest, PhaseZeroFindsARankWhoseOptionsDiffer) {
  for (const NormKind kind : {NormKind::kL2, NormKind::kMax}) {
    for (const bool norms : {false, true}) {
      RunRanks(3, [&](comm::World& world) {
        const ParameterPtr param = RandomParam("w", {6}, DType::kF32, world.context(), 1);
        AdamW optimizer({param}, {.lr = 1e-3});
        optimizer.views()[0].BindShard(param->data().Slice(0, 2 * world.rank(), 2).Clone(),
                                       Layout({6}, {.segments = {{2 * world.rank(), 2}}}));
        optimizer.set_stat_reducer(std::make_unique<GroupStatReducer>(world.group()));
        optimizer.set_step_options(
            {.norm_kind = kind,
             .nonfinite = norms ? NonFinitePolicy::kSkip : NonFinitePolicy::kProceed});
        const auto step = [&] {
          optimizer.views()[0].set_grad(
              Tensor::Full({2}, DType::kF32, world.rank() + 1, world.context()));
          optimizer.step();
        };
        step();
        const std::vector<double> before = Values(optimizer.views()[0].value());
        if (world.rank() == 1) optimizer.set_lr(0, 0.5);
        EXPECT_THAT(MessageOf(step),
                    HasSubstr("step: ranks disagree on the options of group 0 of optimizer adamw: "
                              "lr is 0.001 on ranks [0 2], 0.5 on rank 1; set"));
        EXPECT_EQ(Values(optimizer.views()[0].value()), before);
        optimizer.set_lr(0, 0.5);
        step();
        EXPECT_NE(Values(optimizer.views()[0].value()), before);
      });
    }
  }
}

}  // namespace options_agreement_test
}  // namespace apogee::optim
