// SPDX-License-Identifier: Apache-2.0

// apogee timeline: the bubbles of schedules whose share is known, the picture, and traces of
// anybody.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>

#include "apogee/core/trace/trace_writer.h"
#include "apogee/pictures/timeline/timeline_svg.h"
#include "apogee/pictures/timeline/trace_reader.h"
#include "apogee/tests/support/files/mutate_text.h"
#include "apogee/tests/support/files/temp_dir.h"
#include "apogee/tests/support/files/xml.h"
#include "apogee/tests/support/tool_command.h"

namespace apogee::tools {
namespace timeline_test {

using apogee::testing::Command;
using apogee::testing::CommandResult;
using apogee::testing::ParseXml;
using apogee::testing::ReadFile;
using apogee::testing::TempDir;
using ::testing::HasSubstr;

constexpr int64_t kMs = 1'000'000;

// 1F1B as it runs when messages take no time: each piece of work begins when its stage is free and
// what it needs is there.
std::vector<PipelineEvent> OneForwardOneBackward(int stages, int micro_batches, int64_t forward_ns,
                                                 int64_t backward_ns, int64_t start_ns = 0,
                                                 int64_t step = 0) {
  const auto p = static_cast<size_t>(stages);
  std::vector<std::vector<std::pair<PipelineKind, int>>> order(p);
  for (int s = 0; s < stages; ++s) {
    const int warm = std::min(stages - 1 - s, micro_batches);
    auto& mine = order[static_cast<size_t>(s)];
    for (int i = 0; i < warm; ++i) mine.emplace_back(PipelineKind::kForward, i);
    for (int i = 0; i < micro_batches; ++i) {
      if (warm + i < micro_batches) mine.emplace_back(PipelineKind::kForward, warm + i);
      mine.emplace_back(PipelineKind::kBackward, i);
    }
  }
  std::vector<PipelineEvent> events;
  std::vector<int64_t> free(p, start_ns);
  std::vector<size_t> next(p, 0);
  std::map<std::tuple<PipelineKind, int, int>, int64_t> done;  // kind, stage, micro-batch
  while (events.size() < 2 * p * static_cast<size_t>(micro_batches)) {
    for (int s = 0; s < stages; ++s) {
      const auto i = static_cast<size_t>(s);
      if (next[i] == order[i].size()) continue;
      const auto [kind, batch] = order[i][next[i]];
      const bool is_forward = kind == PipelineKind::kForward;
      const int from = is_forward ? s - 1 : s + 1;
      int64_t ready = start_ns;
      if (from >= 0 && from < stages) {
        const auto it = done.find({kind, from, batch});
        if (it == done.end()) continue;
        ready = it->second;
      }
      const int64_t begin = std::max(ready, free[i]);
      free[i] = begin + (is_forward ? forward_ns : backward_ns);
      done[{kind, s, batch}] = free[i];
      ++next[i];
      events.push_back({.step = step,
                        .rank = s,
                        .kind = kind,
                        .micro_batch = batch,
                        .begin_ns = begin,
                        .end_ns = free[i]});
    }
  }
  return events;
}

TEST(TimelineTest, OneForwardOneBackwardHasItsKnownBubble) {
  for (const auto& [p, m] : std::vector<std::pair<int, int>>{{4, 8}, {2, 2}, {8, 3}, {1, 5}}) {
    for (const int64_t backward : {kMs, 2 * kMs}) {
      const auto steps = Timelines(OneForwardOneBackward(p, m, kMs, backward, 5 * kMs));
      ASSERT_EQ(steps.size(), 1u);
      EXPECT_EQ(steps[0].bubble_share(), static_cast<double>(p - 1) / (m + p - 1)) << p << " " << m;
      EXPECT_EQ(steps[0].makespan_ns(), (m + p - 1) * (kMs + backward));
      ASSERT_EQ(steps[0].stages().size(), static_cast<size_t>(p));
      for (int s = 0; s < p; ++s) {
        const StageTime& stage = steps[0].stages()[static_cast<size_t>(s)];
        EXPECT_EQ(stage.rank, s);
        EXPECT_EQ(stage.busy_ns, m * (kMs + backward));
        EXPECT_EQ(stage.idle_ns, (p - 1) * (kMs + backward));
      }
    }
  }
}

TEST(TimelineTest, StepsAreApart) {
  auto events = OneForwardOneBackward(4, 8, kMs, kMs, 0, 7);
  // Long after, the same work without waiting: two stages that are one micro-batch each.
  for (int rank = 0; rank < 2; ++rank) {
    events.insert(events.begin() + rank,
                  {.step = 9, .rank = rank, .begin_ns = 100 * kMs, .end_ns = 102 * kMs});
  }
  const auto steps = Timelines(events);
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[0].step(), 7);
  EXPECT_EQ(steps[0].bubble_share(), 3.0 / 11);
  EXPECT_EQ(steps[1].step(), 9);
  EXPECT_EQ(steps[1].bubble_share(), 0);
  EXPECT_EQ(steps[1].begin_ns(), 100 * kMs);
  EXPECT_EQ(BubbleShare(steps), (4.0 * 6) / (4.0 * 22 + 2 * 2));
  EXPECT_TRUE(Timelines({}).empty());
  EXPECT_EQ(BubbleShare({}), 0);
}

TEST(TimelineTest, WorkInWorkCountsOnce) {
  const auto steps =
      Timelines({{.rank = 3, .begin_ns = 0, .end_ns = 10},
                 {.rank = 3, .kind = PipelineKind::kWeightBackward, .begin_ns = 2, .end_ns = 6},
                 {.rank = 3, .begin_ns = 8, .end_ns = 12},
                 {.rank = 5, .begin_ns = 16, .end_ns = 16},
                 {.rank = 5, .begin_ns = 14, .end_ns = 20}});
  ASSERT_EQ(steps.size(), 1u);
  ASSERT_EQ(steps[0].stages().size(), 2u);
  EXPECT_EQ(steps[0].stages()[0].busy_ns, 12);
  EXPECT_EQ(steps[0].stages()[0].idle_ns, 8);
  EXPECT_EQ(steps[0].stages()[1].busy_ns, 6);
  EXPECT_EQ(steps[0].bubble_share(), 1 - 18.0 / 40);
  const auto nothing = Timelines({{.begin_ns = 4, .end_ns = 4}});
  EXPECT_EQ(nothing[0].bubble_share(), 0);
  EXPECT_EQ(nothing[0].makespan_ns(), 0);
  ParseXml(TimelineSvg(nothing[0], "no time at all"));
}

TEST(TimelineTest, ThePictureIsToScale) {
  const auto steps = Timelines(OneForwardOneBackward(4, 8, kMs, 2 * kMs));
  const auto elements = ParseXml(TimelineSvg(steps[0], "a <title> & \"more\""));
  double busy = 0, bubble = 0;
  std::map<std::string, int> kinds;
  std::string texts;
  for (const auto& element : elements) {
    texts += element.text + "\n";
    if (element.attributes.contains("data-kind")) {
      busy += std::stod(element.attributes.at("width"));
      ++kinds[element.attributes.at("data-kind") + element.attributes.at("data-rank")];
    }
    if (element.attributes.contains("data-bubble")) {
      bubble += std::stod(element.attributes.at("width"));
    }
  }
  EXPECT_EQ(kinds.size(), 8u);
  for (const auto& [kind, count] : kinds) EXPECT_EQ(count, 8) << kind;
  EXPECT_NEAR(bubble / (busy + bubble), 3.0 / 11, 1e-4);
  EXPECT_THAT(texts, HasSubstr("step 0: 33.000 ms, bubble 27.3 %"));
  EXPECT_THAT(texts, HasSubstr("a <title> & \"more\""));
  EXPECT_THAT(texts, HasSubstr("rank 3"));
}

std::string EventText(const std::string& fields, const std::string& args) {
  return "{\"ph\":\"X\",\"cat\":\"pipeline\"" + fields + ",\"args\":{" + args + "}}";
}
const char* const kFields = ",\"pid\":2,\"ts\":10.5,\"dur\":0.25";
const char* const kArgs = "\"kind\":\"B\",\"step\":3,\"micro_batch\":4,\"chunk\":1";
std::string Wrapped(const std::string& events) { return "{\"traceEvents\":[" + events + "]}"; }

TEST(TraceReaderTest, TakesBothFormsAndOnlyPipelineWork) {
  const std::string good = EventText(kFields, kArgs);
  const std::string others =
      "{},{\"ph\":\"M\",\"name\":\"x\",\"args\":{\"kind\":[1,{\"kind\":2}]},\"ts\":{\"ts\":1}},"
      "{\"ph\":\"X\",\"cat\":\"compute\",\"args\":{\"kind\":\"F\"}},"
      "{\"ph\":\"i\",\"cat\":\"pipeline\",\"args\":{\"kind\":\"F\"}},"
      "{\"ph\":\"X\",\"cat\":\"pipeline\",\"args\":{\"kind\":\"load\"}},"
      "{\"ph\":\"X\",\"cat\":\"pipeline\",\"args\":[{\"kind\":\"F\"}],\"kind\":\"F\"},";
  for (const std::string& text : {"[" + others + good + "]", Wrapped(others + good),
                                  "{\"a\":{\"traceEvents\":1},\"traceEvents\":[" + others + good +
                                      "],\"args\":[{}],\"ts\":1}"}) {
    const auto events = ReadPipelineEvents(text, "t");
    ASSERT_TRUE(events.ok()) << Message(events.status());
    ASSERT_EQ(events->size(), 1u) << text;
    const PipelineEvent& event = (*events)[0];
    EXPECT_EQ(event.step, 3);
    EXPECT_EQ(event.rank, 2);
    EXPECT_EQ(event.kind, PipelineKind::kBackward);
    EXPECT_EQ(event.micro_batch, 4);
    EXPECT_EQ(event.chunk, 1);
    EXPECT_EQ(event.begin_ns, 10500);
    EXPECT_EQ(event.end_ns, 10750);
  }
  EXPECT_TRUE(ReadPipelineEvents("[]", "t")->empty());
}

TEST(TraceReaderTest, DamagedTracesAreErrorsThatNameThePlace) {
  const std::string args = kArgs, fields = kFields;
  for (const auto& [text, problem] : std::vector<std::pair<std::string, std::string>>{
           {"", "t: byte 0: not valid JSON: the text ends too early"},
           {"7", "t: byte 1: a trace must be an object or a list"},
           {"{}", "t: there is no list \"traceEvents\""},
           {"{\"traceEvents\":7}", "byte 16: \"traceEvents\" must be a list"},
           {"{\"traceEvents\":{}}", "byte 16: \"traceEvents\" must be a list"},
           {"{\"traceEvents\":[],\"traceEvents\":[]}", "\"traceEvents\" is given twice"},
           {"[7]", "byte 2: an event must be an object"},
           {"[[]]", "byte 2: an event must be an object"},
           {"[{\"ph\":\"X\",\"ph\":\"X\"}]", "\"ph\" is given twice in an event"},
           {"[{\"args\":{},\"args\":{}}]", "\"args\" is given twice in an event"},
           {"[" + EventText(fields, args), "not valid JSON: the text ends too early"},
           {Wrapped(EventText(fields, args + ",\"step\":1")), "\"step\" is given twice"},
           {Wrapped(EventText(",\"ts\":1,\"dur\":1", args)), "a pipeline event: pid is missing"},
           {Wrapped(EventText(",\"pid\":1,\"dur\":1", args)), "a pipeline event: ts is missing"},
           {Wrapped(EventText(",\"pid\":1,\"ts\":1", args)), "a pipeline event: dur is missing"},
           {Wrapped(EventText(fields, "\"kind\":\"W\"")), "args.step is missing"},
           {Wrapped(EventText(fields, "\"kind\":\"W\",\"step\":1")), "args.micro_batch is missing"},
           {Wrapped(EventText(",\"pid\":1.5,\"ts\":1,\"dur\":1", args)), "pid must be a whole"},
           {Wrapped(EventText(",\"pid\":1000001,\"ts\":1,\"dur\":1", args)), "pid must be"},
           {Wrapped(EventText(",\"pid\":1,\"ts\":1,\"dur\":-1", args)),
            "dur must be a number from"},
           {Wrapped(EventText(",\"pid\":1,\"ts\":1e300,\"dur\":1", args)), "ts must be a number"},
           {Wrapped(EventText(",\"pid\":1,\"ts\":\"1\",\"dur\":1", args)), "ts must be a number"},
           {Wrapped(EventText(",\"pid\":1,\"ts\":[1],\"dur\":1", args)), "ts must be a number"},
           {Wrapped(EventText(fields, "\"kind\":\"F\",\"step\":null")), "args.step must be"}}) {
    const auto events = ReadPipelineEvents(text, "t");
    ASSERT_FALSE(events.ok()) << text;
    EXPECT_TRUE(absl::IsDataLoss(events.status())) << text;
    EXPECT_THAT(Message(events.status()), HasSubstr(problem)) << text;
    EXPECT_THAT(Message(events.status()), ::testing::StartsWith("t: ")) << text;
  }
}

// Whatever the text, the answer is an error or a timeline that can be drawn.
TEST(TraceReaderTest, RandomDamage) {
  std::string text = Wrapped(EventText(kFields, kArgs) + "," + EventText(kFields, kArgs) +
                             ",{\"ph\":\"M\",\"args\":{\"name\":\"rank 0\"}}");
  std::mt19937_64 random(1);
  int num_good = 0;
  for (int i = 0; i < 20000; ++i) {
    const auto events = ReadPipelineEvents(
        apogee::testing::MutatedText(
            text, {"null", "[", "{", "}", "\"ts\":", "\"args\":{", "1e18", "4e15", "-1"}, random),
        "t");
    if (!events.ok()) continue;
    ++num_good;
    for (const StepTimeline& step : Timelines(*events)) {
      ASSERT_GE(step.makespan_ns(), 0);
      ASSERT_GE(step.bubble_share(), 0);
      ASSERT_LT(step.bubble_share(), 1);
      ASSERT_FALSE(TimelineSvg(step, "").empty());
    }
  }
  EXPECT_GT(num_good, 1000);
}

// What the library records, the command shows.
class TimelineCommandTest : public ::testing::Test {
 protected:
  std::string Record() const {
    Trace trace;
    for (int rank = 0; rank < 2; ++rank) {
      TraceLane* lane = trace.Lane(rank, "compute");
      for (int64_t step = 4; step < 6; ++step) {
        const TraceSpan outer(lane, "step");
        for (int64_t i = 0; i < 3; ++i) {
          const TraceSpan span =
              TracePipeline(lane, PipelineKind::kForward, {.step = step, .micro_batch = i});
        }
      }
    }
    OkOrThrow(WriteTrace(trace, dir_ / "run.json"));
    return dir_ / "run.json";
  }
  const TempDir dir_;
};

TEST_F(TimelineCommandTest, ShowsAndDraws) {
  const std::string path = Record();
  const CommandResult result = Command("timeline " + path + " --svg " + dir_ / "a.svg");
  EXPECT_EQ(result.code, 0) << result.out;
  EXPECT_THAT(result.out, HasSubstr("step 4: "));
  EXPECT_THAT(result.out, HasSubstr("step 5: "));
  EXPECT_THAT(result.out, HasSubstr("  rank 1  busy "));
  EXPECT_THAT(result.out, HasSubstr("2 steps, bubble "));
  int boxes = 0;
  for (const auto& element : ParseXml(ReadFile(dir_ / "a.svg"))) {
    boxes += element.attributes.contains("data-kind");
  }
  EXPECT_EQ(boxes, 6) << "of the last step";
  const CommandResult one = Command("timeline " + path + " --step 4 --svg " + dir_ / "b.svg");
  EXPECT_EQ(one.code, 0);
  EXPECT_THAT(one.out, Not(HasSubstr("step 5")));
  EXPECT_THAT(ReadFile(dir_ / "b.svg"), HasSubstr("step 4: "));
}

TEST_F(TimelineCommandTest, ExactNumbers) {
  std::string events;
  const auto add = [&](int rank, int ts, int dur) {
    events += (events.empty() ? "" : ",") +
              EventText(",\"pid\":" + std::to_string(rank) + ",\"ts\":" + std::to_string(ts) +
                            ",\"dur\":" + std::to_string(dur),
                        "\"kind\":\"F\",\"step\":0,\"micro_batch\":0,\"chunk\":0");
  };
  add(0, 1000, 1000);
  add(1, 2000, 3000);
  const CommandResult result = Command("timeline " + dir_.Write("t.json", Wrapped(events)));
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.out,
            "step 0: 4.000 ms, bubble 50.0 %\n"
            "  rank 0  busy 1.000 ms, idle 3.000 ms\n"
            "  rank 1  busy 3.000 ms, idle 1.000 ms\n");
}

TEST_F(TimelineCommandTest, BadInput) {
  const auto expect = [](const std::string& arguments, int code, const std::string& message) {
    const CommandResult result = Command("timeline " + arguments);
    EXPECT_EQ(result.code, code) << arguments;
    EXPECT_THAT(result.out, HasSubstr(message)) << arguments;
  };
  expect("", 2, "trace is required");
  expect(dir_ / "missing.json", 2, "apogee timeline: ");
  expect(dir_.path(), 2, "apogee timeline: ");
  expect(dir_.Write("damaged.json", "[{]"), 1, "damaged.json: byte 3: not valid JSON");
  expect(dir_.Write("empty.json", "[]"), 2, "there is no pipeline work in it");
  const std::string path = Record();
  expect(path + " --step 6", 2, "there is no step 6; the trace has steps from 4 to 5");
  expect(path + " --svg " + dir_ / "missing/a.svg", 2, "missing/a.svg");
}

}  // namespace timeline_test
}  // namespace apogee::tools
