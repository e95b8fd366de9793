// SPDX-License-Identifier: Apache-2.0

// What a pipeline refuses: every problem in one message, with the numbers, and nothing changed.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "apogee/booster/booster.h"
#include "apogee/nn/losses.h"
#include "apogee/optim/adam/adam.h"
#include "apogee/plugins/hybrid_parallel.h"
#include "apogee/tests/plugins/hybrid/hybrid_refusals.h"
#include "apogee/tests/support/run_ranks.h"
#include "apogee/tests/support/says.h"

namespace apogee {
namespace pipeline_errors_test {

using pipeline::ScheduleKind;
using ::testing::AllOf;
using testing::ExpectBoostRefused;
using testing::ExpectOptionsRefused;
using ::testing::HasSubstr;
using testing::RunRanks;
using testing::Says;

constexpr int64_t kDim = 4;

HybridParallelOptions TwoStages() { return {.pp_size = 2, .num_microbatches = 2}; }

TEST(PipelineErrorsTest, FewerMicroBatchesThanStages) {
  ExpectOptionsRefused({.pp_size = 4, .num_microbatches = 3},
                       HasSubstr("num_microbatches 3 is less than pp_size 4"));
}

TEST(PipelineErrorsTest, ChunksThatDoNotFitTheSchedule) {
  const auto refused = [](ScheduleKind schedule, int chunks) {
    ExpectOptionsRefused(
        {.pp_size = 2, .schedule = schedule, .num_model_chunks = chunks, .num_microbatches = 2},
        HasSubstr("num_model_chunks must be 1 for schedule 1f1b, 2 or more for interleaved and 2 "
                  "for zbv, got " +
                  std::to_string(chunks) + " for " + Name(schedule)));
  };
  refused(ScheduleKind::k1F1B, 2);
  refused(ScheduleKind::k1F1B, -1);
  refused(ScheduleKind::kInterleaved, 1);
  refused(ScheduleKind::kZbv, 1);
  refused(ScheduleKind::kZbv, 3);
}

TEST(PipelineErrorsTest, AnUnknownScheduleHasASuggestion) {
  EXPECT_THAT(Message(pipeline::ParsePipelineSchedule("interleafed").status()),
              HasSubstr("unknown schedule \"interleafed\" (did you mean \"interleaved\"?)"));
  for (const ScheduleKind each :
       {ScheduleKind::k1F1B, ScheduleKind::kInterleaved, ScheduleKind::kZbv}) {
    EXPECT_EQ(*pipeline::ParsePipelineSchedule(Name(each)), each);
  }
}

TEST(PipelineErrorsTest, OneOfTheTwoWaysToCutABatch) {
  const auto refused = [](int micros, int64_t size) {
    ExpectOptionsRefused({.pp_size = 2, .num_microbatches = micros, .microbatch_size = size},
                         HasSubstr("pp_size 2 needs one of num_microbatches and microbatch_size, "
                                   "positive, got " +
                                   std::to_string(micros) + " and " + std::to_string(size)));
  };
  refused(0, 0);
  refused(4, 4);
  refused(-4, 0);
  refused(0, -4);
  refused(4, -4);
}

TEST(PipelineErrorsTest, ParametersThatEachMicroBatchWouldGather) {
  ExpectOptionsRefused({.pp_size = 2, .stage = 3, .num_microbatches = 2},
                       HasSubstr("stage 3 would gather every parameter anew for each micro-batch; "
                                 "with pp_size 2 it must be 0 to 2"));
}

TEST(PipelineErrorsTest, OptionsOfAPipelineWithoutOne) {
  const std::vector<HybridParallelOptions> all = {
      {.schedule = ScheduleKind::kZbv}, {.num_model_chunks = 2}, {.num_microbatches = 4},
      {.microbatch_size = 4},           {.piece_costs = {1, 2}}, {.pieces_per_part = {1}}};
  for (const HybridParallelOptions& options : all) {
    ExpectOptionsRefused(options, HasSubstr("pieces_per_part need pp_size > 1, got 1"));
  }
}

TEST(PipelineErrorsTest, BadOptionsAreListedTogether) {
  ExpectOptionsRefused(
      {.tp_size = 0, .pp_size = 4, .stage = 3, .num_model_chunks = 2, .num_microbatches = 2},
      AllOf(HasSubstr("tp_size must be at least 1, got 0"), HasSubstr("stage 3"),
            HasSubstr("num_model_chunks must be 1 for schedule 1f1b"),
            HasSubstr("num_microbatches 2 is less than pp_size 4")));
  ExpectOptionsRefused({.pp_size = -1}, HasSubstr("pp_size must be at least 1, got -1"));
}

std::unique_ptr<nn::Mlp> MakeMlp(size_t layers = 2) {
  return std::make_unique<nn::Mlp>(nn::MlpConfig{.sizes = std::vector<int64_t>(layers + 1, kDim)});
}

TEST(PipelineErrorsTest, AWorldAndACutThatDoNotFitAreListedTogether) {
  HybridParallelOptions options = TwoStages();
  options.tp_size = 2;
  options.piece_costs = {1, 2, 3};
  options.pieces_per_part = {2, 1};
  ExpectBoostRefused(
      6, options, [] { return MakeMlp(2); },
      AllOf(HasSubstr("pp_size 2 x tp_size 2 = 4 does not divide the world of 6 ranks"),
            HasSubstr("piece_costs has 3 numbers, but the model has 2 pieces"),
            HasSubstr("pieces_per_part has 2 numbers with the sum 3")));
  options = TwoStages();
  options.schedule = ScheduleKind::kZbv;
  ExpectBoostRefused(
      2, options, [] { return MakeMlp(3); },
      HasSubstr("the model has 3 pieces, which cannot be cut into 4 parts (pp_size 2 x "
                "num_model_chunks 2)"));
}

TEST(PipelineErrorsTest, AModelThatIsNoChain) {
  ExpectBoostRefused(
      2, TwoStages(), [] { return std::make_unique<nn::Linear>(kDim, kDim); },
      AllOf(HasSubstr("the model is not an nn::Chain"), HasSubstr("nn/chain.h")));
}

data::Batch BatchOf(int64_t inputs, int64_t targets, const ContextPtr& context, double x = 0.5) {
  return {Tensor::Full({inputs, kDim}, DType::kF32, x, context),
          Tensor::Full({targets}, DType::kI64, 1, context)};
}

// A boosted model of four layers and the update that one good batch makes.
struct Rig {
  Rig(comm::World& in, const HybridParallelOptions& options)
      : world(in),
        model(MakeMlp(4)),
        optimizer((model->Initialize(in.context(), {.seed = 1}), model->Parameters()), {}),
        plugin(in, {}, options),
        booster(plugin),
        boosted(booster.boost(*model, optimizer, {.criterion = nn::CrossEntropyLoss()})) {}
  Tensor Run(const data::Batch& batch) {
    return booster.execute_pipeline(batch, *model, boosted.criterion, &boosted.optimizer).loss;
  }
  // `act` throws what `matcher` describes; neither values nor gradients have changed, and the next
  // batch trains.
  template <typename Act, typename Matcher>
  void ExpectThrows(const Act& act, const Matcher& matcher) {
    const auto values = [&] {
      std::map<std::string, std::vector<double>> all;
      for (const auto& p : model->Parameters()) all[p->name()] = p->data().ToVector<double>();
      return all;
    };
    const auto before = values();
    EXPECT_THAT(act, Says(matcher));
    EXPECT_EQ(values(), before);
    for (const auto& p : model->Parameters()) EXPECT_FALSE(p->has_grad()) << p->name();
    EXPECT_NO_THROW(Run(BatchOf(4, 4, world.context())));
    EXPECT_NO_THROW(boosted.optimizer.step());
    EXPECT_NE(values(), before);
    boosted.optimizer.zero_grad();
  }

  comm::World& world;
  std::unique_ptr<nn::Mlp> model;
  optim::AdamW optimizer;
  HybridParallelPlugin plugin;
  Booster booster;
  Boosted boosted;
};

TEST(PipelineErrorsTest, WhatAnOrdinaryLoopWouldCall) {
  RunRanks(2, [](comm::World& world) {
    Rig rig(world, TwoStages());
    const data::Batch batch = BatchOf(4, 4, world.context());
    rig.ExpectThrows(
        [&] {
          rig.booster.backward(Tensor::Full({}, DType::kF32, 1, world.context()),
                               rig.boosted.optimizer);
        },
        AllOf(HasSubstr("with pp_size 2"), HasSubstr("booster.execute_pipeline")));
    const int other = 1 - world.rank();
    rig.ExpectThrows([&] { rig.boosted.model(batch.inputs); },
                     AllOf(HasSubstr("it lies on pipeline stage " + std::to_string(other) +
                                     ", this is stage " + std::to_string(world.rank())),
                           HasSubstr("booster.execute_pipeline")));
  });
}

TEST(PipelineErrorsTest, BatchesThatCannotBeRun) {
  RunRanks(2, [](comm::World& world) {
    Rig rig(world, TwoStages());
    const ContextPtr& context = world.context();
    rig.ExpectThrows([&] { rig.Run(BatchOf(0, 0, context)); },
                     HasSubstr("execute_pipeline: the batch has no samples"));
    rig.ExpectThrows([&] { rig.Run({}); }, HasSubstr("the batch has no samples"));
    rig.ExpectThrows([&] { rig.Run(BatchOf(4, 3, context)); },
                     HasSubstr("inputs have 4 samples, targets [3]"));
    rig.ExpectThrows(
        [&] {
          rig.Run({BatchOf(4, 4, context).inputs, Tensor()});
        },
        HasSubstr("inputs have 4 samples, targets are undefined"));
    rig.ExpectThrows(
        [&] {
          rig.booster.execute_pipeline(BatchOf(4, 4, context), *rig.model, nullptr,
                                       &rig.boosted.optimizer);
        },
        HasSubstr("training needs a criterion"));
  });
}

// Of the first batch one may expect that it is as large as most.
TEST(PipelineErrorsTest, AFirstBatchTooShortForTheStagesButNotALaterOne) {
  RunRanks(3, [](comm::World& world) {
    Rig rig(world, {.pp_size = 3, .microbatch_size = 2});
    const data::Batch two = BatchOf(3, 3, world.context());
    // Evaluation has no such rule.
    EXPECT_NO_THROW(rig.booster.execute_pipeline(two, *rig.model, rig.boosted.criterion, nullptr));
    EXPECT_THAT([&] { rig.Run(two); },
                Says(HasSubstr("3 samples make 2 micro-batches, fewer than the 3 stages; use "
                               "larger batches or smaller micro-batches")));
    const double loss = rig.Run(BatchOf(6, 6, world.context())).Item();
    EXPECT_NEAR(rig.Run(two).Item(), loss, 1e-6) << "all samples are the same";
    EXPECT_NEAR(rig.Run(BatchOf(1, 1, world.context())).Item(), loss, 1e-6);
  });
}

TEST(PipelineErrorsTest, RanksOfOnePipelineWithDifferentBatches) {
  const auto different =
      Says(AllOf(HasSubstr("gave it different inputs"), HasSubstr("data_rank() and data_size()")));
  RunRanks(2, [&](comm::World& world) {
    Rig rig(world, TwoStages());
    EXPECT_THAT([&] { rig.Run(BatchOf(4, 4, world.context(), world.rank())); }, different);
  });
  // Of other sizes: nothing has been sent yet.
  RunRanks(2, [&](comm::World& world) {
    Rig rig(world, TwoStages());
    const int64_t samples = 4 + 2 * world.rank();
    EXPECT_THAT([&] { rig.Run(BatchOf(samples, samples, world.context())); }, different);
  });
  // Copies may, and should, differ.
  RunRanks(4, [](comm::World& world) {
    Rig rig(world, TwoStages());
    rig.Run(BatchOf(4, 4, world.context(), rig.plugin.data_rank()));
    EXPECT_NO_THROW(rig.boosted.optimizer.step());
  });
}

// The second piece reads the first one's weight and does not say so.
class Sly : public nn::Chain {
 public:
  Sly()
      : first_(Register("first", std::make_shared<nn::Linear>(kDim, kDim))),
        second_(Register("second", std::make_shared<nn::Linear>(kDim, kDim))) {}

 protected:
  std::vector<nn::Piece> MakePieces() override {
    return {{.name = "a", .modules = {first_.get()}, .forward = std::ref(*first_)},
            {.name = "b", .modules = {second_.get()}, .forward = [this](const Tensor& x) {
               return (*first_)((*second_)(x));
             }}};
  }

 private:
  std::shared_ptr<nn::Linear> first_, second_;
};

TEST(PipelineErrorsTest, APieceThatDoesNotListAParameter) {
  const absl::Status status =
      testing::LaunchRanks({.num_ranks = 2, .threads_per_rank = 1}, [](comm::World& world) {
        Sly model;
        model.Initialize(world.context(), {.seed = 1});
        optim::AdamW optimizer(model.Parameters(), {});
        HybridParallelPlugin plugin(world, {}, TwoStages());
        Booster booster(plugin);
        Boosted boosted = booster.boost(model, optimizer, {.criterion = nn::CrossEntropyLoss()});
        booster.execute_pipeline(BatchOf(4, 4, world.context()), model, boosted.criterion,
                                 &boosted.optimizer);
      });
  EXPECT_THAT(Message(status), AllOf(HasSubstr("rank 1"), HasSubstr("parameter \"first."),
                                     HasSubstr("it lies on pipeline stage 0, this is stage 1"),
                                     HasSubstr("nn::Piece::tied")));
}

}  // namespace pipeline_errors_test
}  // namespace apogee
