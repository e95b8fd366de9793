// SPDX-License-Identifier: Apache-2.0

// The loss, and so the update, is that of one rank with the whole batch, however unevenly samples
// and targets that count are spread over ranks, micro-batches and pipeline stages.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/functions/loss.h"
#include "apogee/booster/booster.h"
#include "apogee/nn/losses.h"
#include "apogee/plugins/ddp.h"
#include "apogee/tests/plugins/uneven_targets_run.h"

namespace apogee {
namespace uneven_targets_test {

using ::testing::HasSubstr;

TEST(UnevenTargetsTest, RanksWithDifferentNumbersOfTargets) { ExpectExact({{{2, 4}}, {{2, 1}}}); }

TEST(UnevenTargetsTest, ARankWithoutTargets) { ExpectExact({{{2, 3}}, {{2, 0}}}); }

TEST(UnevenTargetsTest, RanksWithDifferentNumbersOfSamples) { ExpectExact({{{3, 4}}, {{2, 4}}}); }

TEST(UnevenTargetsTest, MicroBatchesCountAlikeHoweverManyTargetsTheyHave) {
  ExpectExact({{{2, 4}, {2, 1}}, {{2, 2}, {2, 3}}});
}

TEST(UnevenTargetsTest, AWindowIsTheMeanOverAllItsTargets) {
  ExpectExact({{{2, 4}, {2, 1}}, {{2, 2}, {2, 0}}}, Loop::kWindow);
}

TEST(UnevenTargetsTest, AMicroBatchOfAWindowWithoutTargets) {
  ExpectExact({{{2, 4}, {2, 0}}, {{2, 1}, {2, 0}}}, Loop::kWindow);
}

TEST(UnevenTargetsTest, AWindowOnOneRank) {
  const Spread spread = {{{2, 4}, {2, 1}, {2, 0}}};
  const Criterion criterion = nn::CrossEntropyLoss();
  ExpectSame(PlainRun(spread, true, criterion),
             BoostedRun({"single", 1}, spread, Loop::kWindow, criterion), "single");
}

// The loss is NaN, as on one rank, and the gradient zero.
TEST(UnevenTargetsTest, NoTargetsAnywhere) { ExpectExact({{{2, 0}}, {{2, 0}}}); }

Tensor OwnLoss(const Tensor& output, const Tensor& targets) {
  return autograd::CrossEntropy(output, targets);
}

TEST(UnevenTargetsTest, ALossOfOnesOwnSaysHowManyTargetsCount) {
  ExpectExact(
      {{{2, 4}}, {{2, 1}}}, Loop::kMeanOfMicros,
      nn::MeanLoss{.mean = OwnLoss, .count = [](const Tensor& t) { return nn::CountTargets(t); }});
}

TEST(UnevenTargetsTest, AFunctionWeighsByItsTargets) {
  ExpectExact({{{3, 4}}, {{2, 4}}}, Loop::kMeanOfMicros, OwnLoss);
}

TEST(UnevenTargetsTest, EqualSharesKeepTheirBits) {
  const Spread spread = {{{2, 3}}, {{2, 3}}};
  for (const Case& run : Cases(2)) {
    if (run.hybrid) continue;  // cut logits and tokens need boosted.criterion
    SCOPED_TRACE(run.name);
    const Result raw = BoostedRun(run, spread, Loop::kRaw, nn::CrossEntropyLoss());
    const Result got = BoostedRun(run, spread, Loop::kMeanOfMicros, nn::CrossEntropyLoss());
    EXPECT_EQ(got.end, raw.end);
    EXPECT_EQ(got.losses, raw.losses);
  }
}

// The message of the error that every rank throws in `steps`.
std::string ErrorOf(const Case& run, const Spread& spread, Loop loop, const Criterion& criterion) {
  std::vector<std::string> messages(static_cast<size_t>(run.ranks));
  RunRanks(run.ranks, [&](comm::World& world) {
    const auto model = Model(world.context());
    const auto optimizer = AdamW(*model);
    const auto plugin = MakePlugin(run, world);
    Booster booster(*plugin);
    Boosted boosted = booster.boost(*model, *optimizer, {.criterion = criterion});
    const std::vector<data::Batch> batches = BatchesOf(0, spread, *plugin, world);
    const Weights before = WeightsOf(*model);
    try {
      RunStep(booster, boosted, loop == Loop::kRaw ? criterion : boosted.criterion, run, batches,
              loop);
    } catch (const Error& error) {
      messages[static_cast<size_t>(world.rank())] = error.what();
      EXPECT_EQ(WeightsOf(*model), before);
    }
  });
  for (const std::string& message : messages) EXPECT_EQ(message, messages[0]);
  return messages[0];
}

TEST(UnevenTargetsTest, ALossThatIsNotTheBoostedOneIsRefusedWhereRanksDiffer) {
  for (const std::string name : {"ddp", "zero1", "zero2"}) {
    SCOPED_TRACE(name);
    const Criterion criterion = nn::CrossEntropyLoss();
    EXPECT_THAT(ErrorOf({name, 2}, {{{3, 4}}, {{2, 4}}}, Loop::kRaw, criterion),
                HasSubstr("rank 0: 3 samples, 12 targets, rank 1: 2 samples, 8 targets"));
    EXPECT_THAT(ErrorOf({name, 2}, {{{2, 4}}, {{2, 1}}}, Loop::kRaw, criterion),
                HasSubstr("call the criterion that boost returned"));
    EXPECT_EQ(ErrorOf({name, 2}, {{{2, 4}}, {{2, 4}}}, Loop::kRaw, criterion), "");
  }
}

// Losses belong to their backward, in every order in which a loop makes them.
TEST(UnevenTargetsTest, SeveralLossesOfAStep) {
  RunRanks(2, [](comm::World& world) {
    const auto model = Model(world.context());
    const auto optimizer = AdamW(*model);
    DdpPlugin plugin(world.group(), {.precision = Precision::kF64});
    Booster booster(plugin);
    const nn::CrossEntropyLoss criterion;
    Boosted boosted = booster.boost(*model, *optimizer, {.criterion = criterion});
    const data::Batch batch = BatchOf(0, 0, 0, {2, world.rank() == 0 ? 4 : 1}, world.context());
    const auto loss = [&](const Criterion& used) {
      return used(boosted.model(batch.inputs), batch.targets);
    };
    const Tensor first = loss(boosted.criterion), second = loss(boosted.criterion);
    booster.backward(first, boosted.optimizer);
    booster.backward(autograd::Scale(second, 0.5), boosted.optimizer);
    boosted.optimizer.step();
    boosted.optimizer.zero_grad();
    // One that is only looked at does not speak for the other.
    loss(boosted.criterion).Item();
    booster.backward(loss(criterion), boosted.optimizer);
    EXPECT_THROW(boosted.optimizer.step(), Error);
  });
}

TEST(UnevenTargetsTest, APipelinesCriterionKeepsItsTargets) {
  const Case pipeline{"pp2", 2, [] { return Cut(1, 2, 0); }, true};
  RunRanks(2, [&](comm::World& world) {
    const auto model = Model(world.context());
    const auto optimizer = AdamW(*model);
    const auto plugin = MakePlugin(pipeline, world);
    Booster booster(*plugin);
    Boosted boosted = booster.boost(*model, *optimizer, {.criterion = nn::CrossEntropyLoss()});
    const data::Batch batch = BatchOf(0, 0, 0, {4, 4}, world.context());
    const Criterion half = [&](const Tensor& output, const Tensor& targets) {
      std::vector<int64_t> less = targets.ToVector<int64_t>();
      for (size_t i = 0; i < less.size(); i += 2) less[i] = kIgnored;
      return boosted.criterion(
          output, Tensor::FromVector<int64_t>(less, targets.shape(), targets.context()));
    };
    try {
      booster.execute_pipeline(batch, boosted.model, half, &boosted.optimizer);
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      // The other stage hears that this one has failed.
      if (world.rank() == 0) return;
      EXPECT_THAT(error.what(), HasSubstr("has 8 targets that count, the criterion gave 4"));
    }
  });
}

TEST(UnevenTargetsTest, AFunctionThatMayIgnoreTargetsIsRefused) {
  EXPECT_THAT(ErrorOf({"ddp", 2}, {{{2, 4}}, {{2, 1}}}, Loop::kMeanOfMicros, OwnLoss),
              HasSubstr("give boost an nn::MeanLoss with a count"));
  // Whichever way it counts.
  EXPECT_EQ(ErrorOf({"ddp", 2}, {{{2, 3}}, {{2, 3}}}, Loop::kMeanOfMicros, OwnLoss), "");
}

TEST(UnevenTargetsTest, AWindowIsToldTheRightNumber) {
  RunRanks(2, [](comm::World& world) {
    const auto model = Model(world.context());
    const auto optimizer = AdamW(*model);
    DdpPlugin plugin(world.group(), {.precision = Precision::kF64});
    Booster booster(plugin);
    Boosted boosted = booster.boost(*model, *optimizer, {.criterion = nn::CrossEntropyLoss()});
    const data::Batch batch = BatchOf(0, 0, 0, {2, 4}, world.context());
    const auto window = booster.accumulation_window(world.rank() == 0 ? 8 : 9);
    booster.backward(boosted.criterion(boosted.model(batch.inputs), batch.targets),
                     boosted.optimizer);
    try {
      boosted.optimizer.step();
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("rank 1: 9 announced, 8 seen"));
    }
    EXPECT_THROW((void)booster.accumulation_window(3), Error);
  });
}

TEST(UnevenTargetsTest, EvaluationOnOneRankAloneIsItsOwnMean) {
  RunRanks(2, [](comm::World& world) {
    const auto model = Model(world.context());
    const auto optimizer = AdamW(*model);
    DdpPlugin plugin(world.group(), {.precision = Precision::kF64});
    Booster booster(plugin);
    Boosted boosted = booster.boost(*model, *optimizer, {.criterion = nn::CrossEntropyLoss()});
    if (world.rank() == 1) return;
    model->Train(false);
    const data::Batch batch = BatchOf(0, 0, 0, {2, 1}, world.context());
    const Tensor output = boosted.model(batch.inputs);
    EXPECT_EQ(boosted.criterion(output, batch.targets).Item(),
              nn::CrossEntropyLoss()(output, batch.targets).Item());
  });
}

}  // namespace uneven_targets_test
}  // namespace apogee
