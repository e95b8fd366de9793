// SPDX-License-Identifier: Apache-2.0

// The events of a step, in their order, under each plugin that averages gradients.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "apogee/booster/booster.h"
#include "apogee/core/trace/step_log.h"
#include "apogee/data/loader.h"
#include "apogee/nn/losses.h"
#include "apogee/nn/models/mlp.h"
#include "apogee/optim/adam/adam.h"
#include "apogee/plugins/ddp.h"
#include "apogee/plugins/gemini.h"
#include "apogee/plugins/hybrid_parallel.h"
#include "apogee/plugins/low_level_zero.h"
#include "apogee/plugins/single_rank.h"
#include "apogee/tests/plugins/hybrid/hybrid_short_run.h"
#include "apogee/tests/support/run_ranks.h"

namespace apogee {
namespace step_events_test {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using testing::RunRanks;
using Lines = std::vector<std::string>;

constexpr int kRanks = 2, kSteps = 3;
// A chunk for each parameter of the model below.
constexpr int64_t kBucketBytes = 8;

Lines Without(const Lines& lines, const std::string& word) {
  Lines kept;
  for (const std::string& line : lines) {
    if (line.find(word) == std::string::npos) kept.push_back(line);
  }
  return kept;
}

// Splits "step N: event" lines by steps.
std::vector<Lines> BySteps(const Lines& lines) {
  std::vector<Lines> steps(kSteps);
  for (const std::string& line : lines) {
    const size_t colon = line.find(": ");
    const size_t step = std::stoul(line.substr(5, colon - 5));
    steps.at(step - 1).push_back(line.substr(colon + 2));
  }
  return steps;
}

struct Recorded {
  std::vector<Lines> steps;         // events
  std::vector<Lines> from_hooks;    // "gradient ready" lines, as gradient hooks saw them
  std::vector<std::string> at_end;  // told after the values were read at the end
};

// Trains the model for a few steps.
Recorded Record(const comm::World& world, Plugin& plugin) {
  nn::Mlp model({.sizes = {4, 5, 3}});
  model.Initialize(world.context(), {.seed = 3});
  optim::AdamW optimizer(model.Parameters(), {.lr = 1e-2});
  Booster booster(plugin);
  std::ignore = booster.boost(model, optimizer);
  Recorded recorded;
  Lines lines;
  StepLog log(nullptr, [&](const std::string& line) { lines.push_back(line); });
  const Subscription own = optimizer.AddListener(log);
  recorded.from_hooks.resize(kSteps);
  size_t step = 0;
  std::vector<Subscription> hooks;
  for (const auto& parameter : model.Parameters()) {
    hooks.emplace_back(parameter->AddGradHook([&](autograd::Parameter& from) {
      recorded.from_hooks[step].push_back("gradient ready: " + from.name());
    }));
  }
  for (; step < kSteps; ++step) {
    const Tensor x = Tensor::Full({2, 4}, DType::kF32, 0.5 + world.rank(), world.context());
    const Tensor target = Tensor::FromVector<int64_t>({1, 2}, {2}, world.context());
    booster.backward(nn::CrossEntropyLoss()(model(x), target), optimizer);
    optimizer.step();
    optimizer.zero_grad();
  }
  const size_t before = lines.size();
  for (const auto& parameter : model.Parameters()) plugin.WholeValue(*parameter);
  recorded.at_end.assign(lines.begin() + static_cast<std::ptrdiff_t>(before), lines.end());
  recorded.steps = BySteps(lines);
  return recorded;
}

const Lines kReduced = {"gradients reduced: chunk 0", "gradients reduced: chunk 1",
                        "gradients reduced: chunk 2", "gradients reduced: chunk 3"};
const Lines kGathered = {"values gathered: chunk 0", "values gathered: chunk 1",
                         "values gathered: chunk 2", "values gathered: chunk 3"};

// Everything but gathers: backward with its gradients, then the step. Reductions are told in the
// order of chunks, when they are known to have ended.
void ExpectOrder(const Recorded& recorded) {
  for (size_t step = 0; step < kSteps; ++step) {
    const Lines events = Without(recorded.steps[step], "gathered");
    ASSERT_EQ(recorded.from_hooks[step].size(), 4u);
    Lines expected = {"before backward"};
    expected.insert(expected.end(), recorded.from_hooks[step].begin(),
                    recorded.from_hooks[step].end());
    expected.insert(expected.end(), {"before step", "decided", "after step"});
    EXPECT_THAT(Without(events, "reduced"), ElementsAreArray(expected));
    Lines reduced;
    for (size_t i = 0; i < events.size(); ++i) {
      if (events[i].find("reduced") == std::string::npos) continue;
      reduced.push_back(events[i]);
      EXPECT_GT(i, 1u) << "no chunk is complete before a gradient is";
      EXPECT_LT(i, events.size() - 3) << "before the step";
    }
    EXPECT_THAT(reduced, ElementsAreArray(kReduced));
  }
}

TEST(StepEventsTest, Ddp) {
  RunRanks(kRanks, [](comm::World& world) {
    for (const bool overlap : {true, false}) {
      DdpPlugin plugin(world.group(), {.bucket_bytes = kBucketBytes, .overlap = overlap});
      const Recorded recorded = Record(world, plugin);
      ExpectOrder(recorded);
      for (const Lines& step : recorded.steps) EXPECT_EQ(step, Without(step, "gathered"));
    }
  });
}

TEST(StepEventsTest, LowLevelZeroGathersWhenValuesAreRead) {
  RunRanks(kRanks, [](comm::World& world) {
    for (const int stage : {1, 2}) {
      LowLevelZeroPlugin plugin(world.group(), {.bucket_bytes = kBucketBytes}, {.stage = stage});
      const Recorded recorded = Record(world, plugin);
      ExpectOrder(recorded);
      for (size_t step = 0; step < kSteps; ++step) {
        // The forward of the next step reads the first layer first, which is in the last chunks.
        const Lines& events = recorded.steps[step];
        ASSERT_EQ(events.size(), 1u + 4 + 4 + 3 + 4);
        const Lines gathered(events.end() - 4, events.end());
        EXPECT_THAT(gathered, ::testing::UnorderedElementsAreArray(kGathered)) << step;
      }
      EXPECT_THAT(recorded.at_end.size(), 4u);
    }
  });
}

TEST(StepEventsTest, LowLevelZeroWithoutOverlapGathersInsideTheStep) {
  RunRanks(kRanks, [](comm::World& world) {
    LowLevelZeroPlugin plugin(world.group(), {.bucket_bytes = kBucketBytes, .overlap = false},
                              {.overlap_gather = false});
    const Recorded recorded = Record(world, plugin);
    for (const Lines& step : recorded.steps) {
      // The engine gathers when it hears AfterStep, before this test's listener hears it.
      const Lines last(step.end() - 6, step.end());
      Lines expected = {"decided"};
      expected.insert(expected.end(), kGathered.begin(), kGathered.end());
      expected.push_back("after step");
      EXPECT_THAT(last, ElementsAreArray(expected));
    }
    EXPECT_TRUE(recorded.at_end.empty());
  });
}

TEST(StepEventsTest, GeminiGathersInForwardAndBackward) {
  RunRanks(kRanks, [](comm::World& world) {
    GeminiPlugin plugin(world.group(), {.bucket_bytes = kBucketBytes});
    const Recorded recorded = Record(world, plugin);
    for (size_t step = 0; step < kSteps; ++step) {
      const Lines& events = recorded.steps[step];
      // Gathers of the first forward count to step 1, as no step has ended; those of later forwards
      // count to the step that made the values.
      const auto backward = std::ranges::find(events, "before backward");
      const auto ready = std::ranges::find(events, recorded.from_hooks[step][0]);
      const auto gathers = [](auto begin, auto end) {
        return std::count_if(begin, end, [](const std::string& line) {
          return line.find("values gathered") != std::string::npos;
        });
      };
      if (step == 0) {
        EXPECT_EQ(gathers(events.begin(), backward), 4) << "forward, each chunk once";
      }
      EXPECT_GE(gathers(backward, ready), 1) << "before the first gradient";
      EXPECT_EQ(gathers(backward, std::ranges::find(events, "before step")), 4);
      Lines others = Without(Without(events, "gathered"), "reduced");
      Lines expected = {"before backward"};
      expected.insert(expected.end(), recorded.from_hooks[step].begin(),
                      recorded.from_hooks[step].end());
      expected.insert(expected.end(), {"before step", "decided", "after step"});
      EXPECT_THAT(others, ElementsAreArray(expected));
    }
  });
}

TEST(StepEventsTest, OneRank) {
  RunRanks(1, [](comm::World& world) {
    SingleRankPlugin plugin;
    for (const Lines& step : Record(world, plugin).steps) {
      EXPECT_THAT(step, ElementsAre("before backward", "before step", "decided", "after step"));
    }
  });
}

// A pipeline makes several backward passes, which are one for its listeners.
TEST(StepEventsTest, Pipeline) {
  RunRanks(kRanks, [](comm::World& world) {
    const testing::HybridTask task = testing::ShortGpt2Task(8);
    const auto model = testing::Initialized(task, world.context());
    optim::AdamW optimizer(model->Parameters(), {});
    HybridParallelPlugin plugin(world, {}, {.pp_size = 2, .stage = 1, .num_microbatches = 2});
    Lines lines;
    StepLog log(nullptr, [&](const std::string& line) { lines.push_back(line); });
    const Subscription own = optimizer.AddListener(log);
    Booster booster(plugin);
    const Boosted boosted = booster.boost(*model, optimizer, {.criterion = task.criterion});
    for (int64_t step = 0; step < kSteps; ++step) {
      const data::Batch batch{.inputs = task.tokens(step, 0, 4, world.context(), false),
                              .targets = task.tokens(step, 0, 4, world.context(), true)};
      booster.execute_pipeline(batch, boosted.model, boosted.criterion, &optimizer);
      optimizer.step();
      optimizer.zero_grad();
    }
    const Lines steps = Without(Without(lines, "gathered"), "gradient");
    ASSERT_EQ(steps.size(), kSteps * 4u);
    for (size_t i = 0; i < steps.size(); i += 4) {
      const std::string step = "step " + std::to_string(i / 4 + 1) + ": ";
      EXPECT_EQ(steps[i], step + "before backward");
      EXPECT_EQ(steps[i + 1], step + "before step");
      EXPECT_EQ(steps[i + 2], step + "decided");
      EXPECT_EQ(steps[i + 3], step + "after step");
    }
    EXPECT_GT(std::ranges::count_if(lines,
                                    [](const std::string& line) {
                                      return line.find("gradients reduced") != std::string::npos;
                                    }),
              0);
  });
}

}  // namespace step_events_test
}  // namespace apogee
