// SPDX-License-Identifier: Apache-2.0

// GraphedMicroStep::Step: steps that are launched as a graph have the bits of eager ones, with
// everything that changes from step to step; what a graph cannot do is refused before it.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apogee/booster/graphed_step.h"
#include "apogee/optim/registry.h"
#include "apogee/optim/schedule/lr_schedule.h"
#include "apogee/optim/schedule/lr_scheduler.h"
#include "apogee/tensor/cuda/cuda_graph.h"
#include "apogee/tests/booster/graphed_run.h"
#include "apogee/tests/support/message_of.h"

namespace apogee {
namespace graphed_optimizer_test {

using ::apogee::testing::MessageOf;
using graphed_step_test::ClassBatch;
using graphed_step_test::MakeMlp;
using ::testing::AllOf;
using ::testing::HasSubstr;

class GraphedOptimizerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (NumCudaDevices() == 0) GTEST_SKIP() << "no GPU: " << CudaContext().status();
    gpu_ = ValueOrThrow(CudaContext());
  }
  ContextPtr gpu_;
};

// A training with an optimizer by name, whose steps are eager or graphs.
struct Trainer {
  Trainer(const ContextPtr& context, const char* name, const optim::OptionMap& options,
          bool graphed, Precision precision = Precision::kF32)
      : graphs(graphed),
        model(MakeMlp()),
        plugin({.precision = precision, .max_norm = 0.05}),
        booster(plugin) {
    model->Initialize(context, {.seed = 4});
    optimizer = ValueOrThrow(optim::MakeOptimizer(name, model->Parameters(), options));
    boosted.emplace(booster.boost(*model, *optimizer, {.criterion = nn::CrossEntropyLoss()}));
    micro_step = std::make_unique<GraphedMicroStep>(booster, boosted->model, boosted->criterion,
                                                    boosted->optimizer);
  }
  // One window of two micro-batches. With `infinite`, one of them overflows.
  void Window(int64_t step, bool infinite = false) {
    const Accumulation window = booster.accumulate(2);
    for (int64_t micro = 0; micro < 2; ++micro) {
      const data::Batch batch = ClassBatch(10 * step + micro, 2);
      if (infinite && micro == 1) {
        batch.inputs.Slice(0, 0, 1).Fill(std::numeric_limits<double>::infinity());
      }
      micro_step->Run({batch.inputs.To(model->Parameters()[0]->dtype()), batch.targets});
    }
    graphs ? micro_step->Step() : static_cast<void>(boosted->optimizer.step());
    boosted->optimizer.zero_grad();
  }
  // Weights, states, step counts and the report.
  std::vector<std::vector<double>> Notes() const {
    const optim::StepReport& report = optimizer->last_step();
    std::vector<std::vector<double>> notes = {
        {static_cast<double>(report.skip), static_cast<double>(report.num_updated),
         report.skip ? 0 : report.grad_norm, report.clip_factor,
         static_cast<double>(optimizer->num_skipped_steps())}};
    for (const optim::ParamView& view : optimizer->views()) {
      notes.push_back({static_cast<double>(view.step())});
      notes.push_back(view.parameter()->data().ToVector<double>());
      for (const optim::NamedState& state : view.states()) {
        notes.push_back(state.value.ToVector<double>());
      }
    }
    return notes;
  }

  bool graphs;
  std::unique_ptr<nn::Module> model;
  std::unique_ptr<optim::Optimizer> optimizer;
  SingleRankPlugin plugin;
  Booster booster;
  std::optional<Boosted> boosted;
  std::unique_ptr<GraphedMicroStep> micro_step;
};

struct Case {
  const char* name;
  optim::OptionMap options;
};
std::vector<Case> Cases() {
  return {
      {"sgd", {{"momentum", "0.9"}}},
      {"adamw", {{"weight_decay", "0.1"}}},
      {"adam", {{"amsgrad", "true"}}},
      {"lion", {}},
      {"lamb", {{"pre_clip_norm", "0.02"}}},
      {"lars", {{"momentum", "0.9"}}},
      {"adafactor", {{"lr", "0.05"}, {"relative_step", "false"}, {"beta1", "0.9"}}},
      {"came", {}},
      {"adamw8bit", {{"min_8bit_size", "0"}, {"percentile_clipping", "30"}}},
      {"scaled_adam",
       {{"clipping_scale", "0.5"}, {"clipping_update_period", "4"}, {"size_update_period", "2"}}}};
}

// A schedule, clipping, accumulation, a skipped step, a rate set by hand, a changed max_norm.
void Train(Trainer& run, std::vector<std::vector<std::vector<double>>>& notes) {
  optim::LrScheduler scheduler(*run.optimizer, optim::CosineSchedule({.total_steps = 12}));
  for (int64_t step = 0; step < 10; ++step) {
    if (step == 6) run.optimizer->set_lr(0, 0.07);
    if (step == 7) run.optimizer->set_step_options({.max_norm = 0.3, .loss_scale = 2});
    run.Window(step, /*infinite=*/step == 4);
    if (step != 5) scheduler.step();
    notes.push_back(run.Notes());
  }
}

TEST_F(GraphedOptimizerTest, StepsHaveTheBitsOfEagerOnes) {
  for (const Case& c : Cases()) {
    for (const Precision precision : {Precision::kF32, Precision::kBf16}) {
      SCOPED_TRACE(c.name);
      Trainer eager(gpu_, c.name, c.options, /*graphed=*/false, precision),
          graphed(gpu_, c.name, c.options, /*graphed=*/true, precision);
      std::vector<std::vector<std::vector<double>>> expected, got;
      Train(eager, expected);
      Train(graphed, got);
      ASSERT_EQ(expected.size(), got.size());
      for (size_t step = 0; step < got.size(); ++step) {
        ASSERT_EQ(expected[step], got[step]) << "step " << step;
      }
      EXPECT_EQ(got[4][0][0], 1) << "skipped";
      EXPECT_LT(got[3][0][3], 1) << "clipped";
      EXPECT_EQ(graphed.micro_step->num_step_graphs_made(), 1);
      EXPECT_EQ(graphed.micro_step->num_step_graphs_reused(), 8);
    }
  }
}

// The step of a CudaGraph of one's own would be replayed with the numbers of the capture.
TEST_F(GraphedOptimizerTest, IsNoPartOfAGraphThatIsReplayed) {
  Trainer run(gpu_, "adamw", {}, /*graphed=*/false);
  run.Window(0);
  run.micro_step->Run(ClassBatch(7, 2));
  const std::vector<double> weight = run.Notes()[2];
  EXPECT_THAT(
      MessageOf([&] { CudaGraph::Capture(gpu_, {}, [&](const auto&) { run.optimizer->step(); }); }),
      HasSubstr("adamw: step() within the capture of a CudaGraph, whose replays would use "
                "this step's learning rate"));
  EXPECT_EQ(run.Notes()[2], weight);
  EXPECT_EQ(run.Notes()[1][0], 1) << "step count";
}

// Nothing has changed then, and the eager step works.
TEST_F(GraphedOptimizerTest, RefusesWhatTheHostReads) {
  const std::pair<Case, const char*> cases[] = {
      {{"muon", {}}, "because the host reads numbers within it that the GPU computes"},
      {{"galore_adamw", {{"rank", "2"}}}, "in some steps the host computes new bases"},
      {{"adamw", {}}, "under NonFinitePolicy::kThrow the host must know the decision"}};
  for (const auto& [c, why] : cases) {
    SCOPED_TRACE(c.name);
    Trainer run(gpu_, c.name, c.options, /*graphed=*/false);
    if (std::string(c.name) == "adamw") {
      run.optimizer->set_step_options({.nonfinite = optim::NonFinitePolicy::kThrow});
    }
    run.Window(0);
    run.micro_step->Run(ClassBatch(7, 2));
    const auto before = run.Notes();
    EXPECT_THAT(MessageOf([&] { run.micro_step->Step(); }),
                AllOf(HasSubstr("its step cannot be a CUDA graph"), HasSubstr(why),
                      HasSubstr("; call optimizer.step() instead")));
    EXPECT_EQ(run.Notes(), before);
    run.boosted->optimizer.step();
    EXPECT_NE(run.Notes(), before);
  }
}

// A listener that reads on the host within the step gets the Error; the step has been made.
struct Reader : StepListener {
  Reader(optim::Optimizer& from, Tensor of) : what(std::move(of)), own(from.AddListener(*this)) {}
  void AfterStep() override {
    if (reads) what.ToVector<float>();
  }
  Tensor what;
  bool reads = false;
  Subscription own;
};

TEST_F(GraphedOptimizerTest, AnErrorWithinTheStepLosesNoWork) {
  Trainer eager(gpu_, "adamw", {}, /*graphed=*/false), graphed(gpu_, "adamw", {}, /*graphed=*/true);
  Reader reader(*graphed.optimizer, graphed.model->Parameters()[0]->data());
  for (int64_t step = 0; step < 5; ++step) {
    eager.Window(step);
    reader.reads = step == 2;
    if (step != 2) {
      graphed.Window(step);
    } else {
      EXPECT_THAT(MessageOf([&] { graphed.Window(step); }),
                  HasSubstr("ToVector: reads values on the host while a CUDA graph is captured"));
      graphed.boosted->optimizer.zero_grad();
    }
    EXPECT_EQ(eager.Notes(), graphed.Notes()) << "step " << step;
  }
}

// The graph is another one where the work is another.
TEST_F(GraphedOptimizerTest, AnotherKindOfStepMakesAnotherGraph) {
  Trainer eager(gpu_, "lamb", {}, /*graphed=*/false), graphed(gpu_, "lamb", {}, /*graphed=*/true);
  for (int64_t step = 0; step < 6; ++step) {
    for (Trainer* run : {&eager, &graphed}) {
      const double max_norm = step < 3 ? 0.05 : 0;
      run->optimizer->set_step_options({.max_norm = max_norm,
                                        .nonfinite = step < 3 ? optim::NonFinitePolicy::kSkip
                                                              : optim::NonFinitePolicy::kProceed});
      run->Window(step);
    }
    EXPECT_EQ(eager.Notes()[2], graphed.Notes()[2]) << "step " << step;
  }
  EXPECT_EQ(graphed.micro_step->num_step_graphs_made(), 2);
  EXPECT_EQ(graphed.micro_step->num_step_graphs_reused(), 3);
}

}  // namespace graphed_optimizer_test
}  // namespace apogee
