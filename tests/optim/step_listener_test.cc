// SPDX-License-Identifier: Apache-2.0

// The events that an optimizer tells its listeners: when, what holds then, and what a listener may
// do. tests/plugins/step_events_test.cc has those of plugins.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <limits>
#include <optional>

#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/core/trace/step_log.h"
#include "apogee/optim/adam/adam.h"
#include "apogee/optim/momentum/lomo.h"
#include "apogee/tests/optim/optim_fixture.h"

namespace apogee::optim {
namespace step_listener_test {

using ::testing::ElementsAre;

// Notes each event, and at each one whether the parameter still has its first value.
struct Watch : StepListener {
  Watch(Optimizer& optimizer, ParameterPtr parameter)
      : optimizer(optimizer),
        parameter(std::move(parameter)),
        first(Values(this->parameter->data())),
        own(optimizer.AddListener(*this)) {}
  void BeforeStep() override {
    Note("before step");
    if (refuses) Throw("refused");
  }
  void Decided() override {
    Note("decided");
    skipped = optimizer.last_step().skip;
    num_updated = optimizer.last_step().num_updated;
    num_skipped_steps = optimizer.num_skipped_steps();
  }
  void AfterStep() override { Note("after step"); }
  void Loaded() override { Note("loaded"); }
  void Note(const std::string& event) {
    events.push_back(event + (Values(parameter->data()) == first ? "" : ", changed"));
  }

  Optimizer& optimizer;
  ParameterPtr parameter;
  std::vector<double> first;
  std::vector<std::string> events;
  bool refuses = false, skipped = false;
  int64_t num_updated = -1, num_skipped_steps = -1;
  Subscription own;
};

class StepListenerTest : public ::testing::Test {
 protected:
  void SetGrad(double value) { a_->set_grad(Tensor::Full({3, 5}, DType::kF64, value, context_)); }

  ContextPtr context_ = TestContext();
  ParameterPtr a_ = RandomParam("a", {3, 5}, DType::kF64, context_, 1);
};

TEST_F(StepListenerTest, DecidedIsTheLastEventBeforeTheUpdate) {
  AdamW optimizer({a_}, {.lr = 0.1});
  Watch watch(optimizer, a_);
  SetGrad(1);
  optimizer.step();
  EXPECT_THAT(watch.events, ElementsAre("before step", "decided", "after step, changed"));
  EXPECT_FALSE(watch.skipped);
  EXPECT_EQ(watch.num_updated, 1);
}

TEST_F(StepListenerTest, ASkippedStepTellsAll) {
  AdamW optimizer({a_}, {.lr = 0.1});
  Watch watch(optimizer, a_);
  SetGrad(std::numeric_limits<double>::infinity());
  optimizer.step();
  EXPECT_THAT(watch.events, ElementsAre("before step", "decided", "after step"));
  EXPECT_TRUE(watch.skipped);
  EXPECT_EQ(watch.num_updated, 0);
  EXPECT_EQ(watch.num_skipped_steps, 1);

  StepOptions options = optimizer.step_options();
  options.nonfinite = NonFinitePolicy::kThrow;
  optimizer.set_step_options(options);
  watch.events.clear();
  EXPECT_THROW(optimizer.step(), Error);
  EXPECT_THAT(watch.events, ElementsAre("before step", "decided", "after step"));
  EXPECT_EQ(watch.num_skipped_steps, 2);
}

TEST_F(StepListenerTest, AListenerThatThrowsBeforeTheStepStopsIt) {
  AdamW optimizer({a_}, {.lr = 0.1});
  Watch watch(optimizer, a_);
  Watch later(optimizer, a_);
  SetGrad(1);
  watch.refuses = true;
  EXPECT_THROW(optimizer.step(), Error);
  EXPECT_THAT(watch.events, ElementsAre("before step"));
  EXPECT_THAT(later.events, ElementsAre());
  EXPECT_EQ(optimizer.views()[0].step(), 0);
  watch.refuses = false;
  optimizer.step();
  EXPECT_THAT(later.events, ElementsAre("before step", "decided", "after step, changed"));
}

TEST_F(StepListenerTest, LoadingTells) {
  AdamW optimizer({a_}, {.lr = 0.1});
  std::optional<Watch> watch(std::in_place, optimizer, a_);
  SetGrad(1);
  optimizer.step();
  watch->events.clear();
  OkOrThrow(optimizer.load_state_dict(optimizer.state_dict()));
  EXPECT_THAT(watch->events, ElementsAre("loaded, changed"));
  StateDict other = optimizer.state_dict();
  other.params.clear();
  EXPECT_FALSE(optimizer.load_state_dict(other).ok());
  EXPECT_THAT(watch->events, ElementsAre("loaded, changed")) << "nothing was loaded";
  watch.reset();
  optimizer.step();  // nobody listens any more
}

TEST_F(StepListenerTest, AFusedBackwardHasUpdatedBefore) {
  Lomo optimizer({a_}, {.lr = 0.1});
  Watch watch(optimizer, a_);
  optimizer.fused_backward(autograd::Sum(a_->value()));
  EXPECT_THAT(watch.events, ElementsAre());
  optimizer.step();
  EXPECT_THAT(watch.events,
              ElementsAre("before step, changed", "decided, changed", "after step, changed"));
}

TEST_F(StepListenerTest, TheLogCountsSteps) {
  AdamW optimizer({a_}, {.lr = 0.1});
  Trace trace;
  std::vector<std::string> lines;
  StepLog log(nullptr, [&](const std::string& line) { lines.push_back(line); });
  StepLog unprinted(trace.Lane(0, "step events"), nullptr);
  const Subscription own = optimizer.AddListener(log), other = optimizer.AddListener(unprinted);
  StepListeners& listeners = *optimizer.listeners();
  for (int step = 0; step < 2; ++step) {
    listeners.Tell(&StepListener::BeforeBackward);
    listeners.Tell(&StepListener::GradientReady, a_->name());
    listeners.Tell(&StepListener::GradientsReduced, size_t{3});
    SetGrad(1);
    optimizer.step();
    listeners.Tell(&StepListener::ValuesGathered, size_t{0});
  }
  EXPECT_THAT(lines, ElementsAre("step 1: before backward", "step 1: gradient ready: a",
                                 "step 1: gradients reduced: chunk 3", "step 1: before step",
                                 "step 1: decided", "step 1: after step",
                                 "step 1: values gathered: chunk 0", "step 2: before backward",
                                 "step 2: gradient ready: a", "step 2: gradients reduced: chunk 3",
                                 "step 2: before step", "step 2: decided", "step 2: after step",
                                 "step 2: values gathered: chunk 0"));
}

}  // namespace step_listener_test
}  // namespace apogee::optim
