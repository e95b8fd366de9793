// SPDX-License-Identifier: Apache-2.0

// Every schedule of every shape: complete, without deadlock, with the idle time and the memory that
// plugins/pipeline/schedule.h says.
#include "apogee/plugins/pipeline/schedule.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>

#include "apogee/core/error.h"

namespace apogee::pipeline {
namespace schedule_test {

using Kind = PipelineOp::Kind;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Property;
using ::testing::Throws;

constexpr OpCosts kEqual{.forward = 1, .backward = 1, .weights = 1};

std::string Name(const PipelineShape& shape) {
  return std::string(Name(shape.kind)) + " p " + std::to_string(shape.num_stages) + ", v " +
         std::to_string(shape.num_chunks) + ", m " + std::to_string(shape.num_micros) +
         (shape.training ? "" : ", evaluation");
}

// p in 1..8, m in 1..32, up to 4 chunks where the schedule takes them.
std::vector<PipelineShape> Shapes(ScheduleKind kind, bool training = true) {
  std::vector<int> chunks = {1};
  if (kind == ScheduleKind::kInterleaved) chunks = {1, 2, 3, 4};
  if (kind == ScheduleKind::kZbv) chunks = {2};
  std::vector<PipelineShape> shapes;
  for (const int v : chunks) {
    for (int p = 1; p <= 8; ++p) {
      for (int m = 1; m <= 32; ++m) shapes.push_back({kind, p, v, m, training});
    }
  }
  return shapes;
}

SimulatedRun Simulated(const PipelineShape& shape, const OpCosts& costs = kEqual) {
  return Simulate(shape, MakeSchedule(shape), costs);
}

constexpr ScheduleKind kKinds[] = {ScheduleKind::k1F1B, ScheduleKind::kInterleaved,
                                   ScheduleKind::kZbv};

TEST(ScheduleTest, EachMicroBatchOfEachChunkOnceAndNoDeadlock) {
  for (const ScheduleKind schedule_kind : kKinds) {
    for (const bool training : {true, false}) {
      for (const PipelineShape& shape : Shapes(schedule_kind, training)) {
        const PipelineSchedule schedule = MakeSchedule(shape);
        ASSERT_EQ(schedule.size(), static_cast<size_t>(shape.num_stages)) << Name(shape);
        const int kinds = !training ? 1 : shape.splits_backward() ? 3 : 2;
        for (const std::vector<PipelineOp>& ops : schedule) {
          std::map<std::tuple<Kind, int, int>, int> times;
          for (const PipelineOp& op : ops) {
            ASSERT_TRUE(training || op.kind == Kind::kForward) << Name(shape);
            ASSERT_TRUE(op.micro >= 0 && op.micro < shape.num_micros) << Name(shape);
            ASSERT_TRUE(op.chunk >= 0 && op.chunk < shape.num_chunks) << Name(shape);
            ++times[{op.kind, op.micro, op.chunk}];
          }
          // So many different ones, within range, are all of them.
          ASSERT_EQ(times.size(), static_cast<size_t>(kinds * shape.num_micros * shape.num_chunks))
              << Name(shape);
          ASSERT_EQ(ops.size(), times.size()) << Name(shape);
        }
        ASSERT_NO_THROW(Simulate(shape, schedule, kEqual)) << Name(shape);
      }
    }
  }
}

// Buffers of gradients and sums do not depend on which micro-batch comes first: the last one, whose
// pass reduces, must be the last.
TEST(ScheduleTest, MicroBatchesOfAChunkGoInOrder) {
  for (const ScheduleKind schedule_kind : kKinds) {
    for (const PipelineShape& shape : Shapes(schedule_kind)) {
      for (const std::vector<PipelineOp>& ops : MakeSchedule(shape)) {
        std::map<std::pair<Kind, int>, int> next;
        for (const PipelineOp& op : ops) {
          const int due = next[{op.kind, op.chunk}]++;
          ASSERT_EQ(op.micro, due) << Name(shape);
        }
      }
    }
  }
}

TEST(ScheduleTest, OneFOneBIdlesAndKeepsAsTheFormula) {
  for (const PipelineShape& shape : Shapes(ScheduleKind::k1F1B)) {
    const double p = shape.num_stages, m = shape.num_micros;
    for (const OpCosts& costs : {kEqual, OpCosts{.forward = 2, .backward = 3, .weights = 0.5}}) {
      const SimulatedRun run = Simulated(shape, costs);
      ASSERT_NEAR(run.bubble_share, (p - 1) / (m + p - 1), 1e-12) << Name(shape);
      for (int s = 0; s < shape.num_stages; ++s) {
        ASSERT_EQ(run.peak_activations[static_cast<size_t>(s)],
                  std::min(shape.num_stages - s, shape.num_micros))
            << Name(shape) << ", stage " << s;
      }
    }
  }
}

TEST(ScheduleTest, InterleavedIdlesLessByItsChunks) {
  for (const PipelineShape& shape : Shapes(ScheduleKind::kInterleaved)) {
    if (shape.num_micros % shape.num_stages != 0) continue;
    const double idle = (shape.num_stages - 1.0) / shape.num_chunks, m = shape.num_micros;
    ASSERT_NEAR(Simulated(shape).bubble_share, idle / (m + idle), 1e-12) << Name(shape);
  }
}

TEST(ScheduleTest, InterleavedKeepsAsTheFormula) {
  for (const PipelineShape& shape : Shapes(ScheduleKind::kInterleaved)) {
    const int p = shape.num_stages, v = shape.num_chunks, m = shape.num_micros;
    if (v == 1) continue;  // 1F1B
    const SimulatedRun run = Simulated(shape);
    for (int s = 0; s < p; ++s) {
      const int formula = std::min(2 * (p - s - 1) + (v - 1) * p + 1, m * v);
      const int kept = run.peak_activations[static_cast<size_t>(s)];
      ASSERT_LE(kept, formula) << Name(shape) << ", stage " << s;
      if (m % p != 0) continue;
      ASSERT_EQ(kept, formula) << Name(shape) << ", stage " << s;
    }
  }
}

TEST(ScheduleTest, ZeroBubbleIdlesAndKeepsLittle) {
  for (const PipelineShape& shape : Shapes(ScheduleKind::kZbv)) {
    const int p = shape.num_stages, m = shape.num_micros;
    const SimulatedRun run = Simulated(shape);
    ASSERT_THAT(run.peak_activations, Each(::testing::Le(2 * p))) << Name(shape);
    if (p < 2 || m < p) continue;
    const double formula = (p - 1.0) / (m + p - 1.0);
    ASSERT_LE(run.bubble_share, 0.7 * formula) << Name(shape);
  }
}

TEST(ScheduleTest, PartsRunDownTheStagesOrAlongAV) {
  const PipelineShape round{.kind = ScheduleKind::kInterleaved, .num_stages = 3, .num_chunks = 2};
  const PipelineShape vee{.kind = ScheduleKind::kZbv, .num_stages = 3, .num_chunks = 2};
  constexpr int kRound[] = {0, 1, 2, 0, 1, 2}, kVee[] = {0, 1, 2, 2, 1, 0};
  for (int part = 0; part < 6; ++part) {
    EXPECT_EQ(round.StageOf(part), kRound[part]);
    EXPECT_EQ(vee.StageOf(part), kVee[part]);
    for (const PipelineShape& shape : {round, vee}) {
      EXPECT_EQ(shape.PartOf(shape.StageOf(part), shape.ChunkOf(part)), part);
    }
  }
}

TEST(ScheduleTest, SimulateSaysWhichStageWouldWaitForEver) {
  const PipelineShape shape{.num_stages = 2, .num_micros = 2};
  PipelineSchedule schedule = MakeSchedule(shape);
  // The last stage wants the second micro-batch's backward before its forward.
  std::ranges::reverse(schedule[1]);
  EXPECT_THAT([&] { Simulate(shape, schedule, kEqual); },
              Throws<Error>(Property(&Error::what,
                                     HasSubstr("stage 0 of 2 would wait forever at operation 2"))));
}

TEST(ScheduleTest, NamesAreParsed) {
  for (const ScheduleKind kind : kKinds) EXPECT_EQ(*ParsePipelineSchedule(Name(kind)), kind);
  EXPECT_STREQ(Name(ScheduleKind::k1F1B), "1f1b");
  EXPECT_THAT(Message(ParsePipelineSchedule("1f1B").status()), HasSubstr("did you mean \"1f1b\"?"));
}

}  // namespace schedule_test
}  // namespace apogee::pipeline
