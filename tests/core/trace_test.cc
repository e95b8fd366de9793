// SPDX-License-Identifier: Apache-2.0

// Trace: what is written is JSON that viewers take, for every record, and complete or not
// there.
#include "apogee/core/trace/trace.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <new>
#include <thread>

#include "apogee/core/trace/trace_writer.h"
#include "apogee/tests/support/files/trace_file.h"

// Counts what this program allocates.
namespace {
thread_local int64_t num_allocations = 0;
}
void* operator new(size_t size) {
  ++num_allocations;
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
void* operator new(size_t size, const std::nothrow_t&) noexcept {
  ++num_allocations;
  return std::malloc(size);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace apogee {
namespace trace_test {

using ::apogee::testing::Nanoseconds;
using ::apogee::testing::ReadFile;
using ::apogee::testing::TempDir;
using ::apogee::testing::TraceFile;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

void SleepMs(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

TEST(TraceTest, SpansNestAndCarryTheirArguments) {
  Trace trace;
  TraceLane* lane = trace.Lane(3, "compute");
  {
    const TraceSpan outer(lane, "outer", {.category = "test"});
    SleepMs(2);
    {
      const TraceSpan inner(
          lane, "inner",
          {.category = "test",
           .args = {{"whole", -7}, {"real", 0.5}, {"text", "a"}, {"big", int64_t{1} << 60}}});
      SleepMs(3);
    }
    const TraceSpan last(lane, "last");
  }
  const TraceFile file = TraceFile::Of(trace);
  const auto spans = file.Spans(3, "compute");
  ASSERT_EQ(spans.size(), 3u);
  EXPECT_EQ(spans[0].at("name"), "outer");
  EXPECT_EQ(spans[0].at("cat"), "test");
  EXPECT_EQ(spans[0].at("args"), nlohmann::json::object());
  EXPECT_EQ(spans[1].at("name"), "inner");
  EXPECT_EQ(spans[1].at("args"),
            nlohmann::json({{"whole", -7}, {"real", 0.5}, {"text", "a"}, {"big", 1LL << 60}}));
  EXPECT_EQ(spans[2].at("name"), "last");
  EXPECT_EQ(spans[2].at("args"), nlohmann::json::object()) << "those of the span before";
  const auto begin = [&](size_t i) { return Nanoseconds(spans[i].at("ts")); };
  const auto end = [&](size_t i) { return begin(i) + Nanoseconds(spans[i].at("dur")); };
  EXPECT_GE(begin(1) - begin(0), 2'000'000);
  EXPECT_GE(end(1) - begin(1), 3'000'000);
  EXPECT_LT(end(1) - begin(1), 3'000'000'000) << "microseconds in the file";
  EXPECT_LE(end(1), begin(2));
  EXPECT_LE(end(2), end(0));
}

TEST(TraceTest, RanksAndLanesHaveNamesAndOneClock) {
  Trace trace;
  { const TraceSpan span(trace.Lane(10, "compute"), "first"); }
  { const TraceSpan span(trace.Lane(2, "saver"), "second"); }
  { const TraceSpan span(trace.Lane(2, "compute"), "third"); }
  EXPECT_EQ(trace.Lane(2, "compute"), trace.Lane(2, "compute"));
  EXPECT_NE(trace.Lane(2, "compute"), trace.Lane(10, "compute"));
  trace.Lane(5, "never used");
  const TraceFile file = TraceFile::Of(trace);
  EXPECT_THAT(file.Lanes(10), ElementsAre("compute"));
  EXPECT_THAT(file.Lanes(2), ElementsAre("saver", "compute"));
  EXPECT_THAT(file.Lanes(5), ElementsAre());
  const auto at = [&](int rank, const char* lane) {
    return Nanoseconds(file.Spans(rank, lane).at(0).at("ts"));
  };
  EXPECT_LT(at(10, "compute"), at(2, "saver"));
  EXPECT_LT(at(2, "saver"), at(2, "compute"));
  // What viewers sort ranks by.
  bool sorted = false;
  for (const auto& event : file.document.at("traceEvents")) {
    if (event.at("name") != "process_sort_index") continue;
    EXPECT_EQ(event.at("args").at("sort_index"), event.at("pid"));
    sorted = true;
  }
  EXPECT_TRUE(sorted);
  EXPECT_GT(std::stoll(file.document.at("otherData").at("steady_clock_zero_ns").get<std::string>()),
            0);
}

TEST(TraceTest, EverythingIsEscaped) {
  Trace trace;
  const std::string nasty = "a\"b\\c\nd\te\x01/\x7f ü";
  const std::string no_utf8 = "x\xff\xc3(y";
  TraceLane* lane = trace.Lane(0, nasty);
  const double inf = std::numeric_limits<double>::infinity();
  {
    const TraceSpan span(lane, nasty,
                         {.category = nasty,
                          .args = {{nasty, nasty}, {"n", std::nan("")}, {"i", inf}, {"m", -inf}}});
  }
  { const TraceSpan span(lane, no_utf8); }
  const TraceFile file = TraceFile::Of(trace);
  const auto spans = file.Spans(0, nasty);
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0].at("name"), nasty);
  EXPECT_EQ(spans[0].at("cat"), nasty);
  EXPECT_EQ(spans[0].at("args"),
            nlohmann::json({{nasty, nasty}, {"n", "nan"}, {"i", "inf"}, {"m", "-inf"}}));
  EXPECT_EQ(spans[1].at("name"), "x??(y");
}

// Viewers cannot draw such; TraceFile checks that rows nest.
TEST(TraceTest, EventsThatOverlapGetARowOfTheirOwn) {
  Trace trace;
  TraceLane* lane = trace.Lane(0, "lane");
  const size_t a = lane->Begin("a");
  SleepMs(1);
  const size_t b = lane->Begin("b");
  SleepMs(1);
  lane->End(a);
  SleepMs(1);
  lane->End(b);
  { const TraceSpan span(lane, "c"); }
  { const TraceSpan span(trace.Lane(0, "next"), "d"); }
  const TraceFile file = TraceFile::Of(trace);
  EXPECT_THAT(file.Lanes(0), ElementsAre("lane", "lane (2)", "next"));
  EXPECT_EQ(file.Spans(0, "lane").size(), 2u);
  ASSERT_EQ(file.Spans(0, "lane (2)").size(), 1u);
  EXPECT_EQ(file.Spans(0, "lane (2)")[0].at("name"), "b");
}

TEST(TraceTest, WhatHasNotEndedLastsUntilTheFileIsWritten) {
  Trace trace;
  TraceLane* lane = trace.Lane(0, "lane");
  const TraceSpan outer(lane, "outer");
  { const TraceSpan inner(lane, "inner"); }
  SleepMs(2);
  const auto first = TraceFile::Of(trace).Spans(0, "lane");
  ASSERT_EQ(first.size(), 2u);
  EXPECT_EQ(first[0].at("name"), "outer");
  EXPECT_GE(Nanoseconds(first[0].at("dur")), 2'000'000);
  { const TraceSpan more(lane, "more"); }
  EXPECT_EQ(TraceFile::Of(trace).Spans(0, "lane").size(), 3u) << "it can be written again";
}

TEST(TraceTest, PipelineWork) {
  Trace trace;
  TraceLane* lane = trace.Lane(1, "compute");
  {
    const TraceSpan span = TracePipeline(lane, PipelineKind::kWeightBackward,
                                         {.step = 7, .micro_batch = 3, .chunk = 1});
  }
  { const TraceSpan span = TracePipeline(nullptr, PipelineKind::kForward, {}); }
  const auto spans = TraceFile::Of(trace).Spans(1, "compute");
  ASSERT_EQ(spans.size(), 1u);
  EXPECT_EQ(spans[0].at("name"), "W");
  EXPECT_EQ(spans[0].at("cat"), "pipeline");
  EXPECT_EQ(spans[0].at("args"),
            nlohmann::json({{"kind", "W"}, {"step", 7}, {"micro_batch", 3}, {"chunk", 1}}));
}

TEST(TraceTest, ASpanAllocatesNothingOfItsOwn) {
  Trace trace;
  TraceLane* lane = trace.Lane(0, "lane");
  const auto record = [&](TraceLane* to) {
    for (int64_t i = 0; i < 10000; ++i) {
      const TraceSpan span(to, "a name that is too long to lie inside of a std::string",
                           {.category = "test", .args = {{"i", i}}});
    }
  };
  int64_t before = num_allocations;
  record(lane);
  EXPECT_LT(num_allocations - before, 60) << "vectors that double, and three texts";
  before = num_allocations;
  record(nullptr);
  EXPECT_EQ(num_allocations, before);
}

TEST(TraceTest, ThreadsRecordWhileTheFileIsWritten) {
  Trace trace;
  std::vector<std::thread> threads;
  constexpr int kThreads = 4, kSpans = 2000;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&trace, t] {
      TraceLane* own = trace.Lane(t, "own");
      TraceLane* shared = trace.Lane(0, "shared");
      for (int i = 0; i < kSpans; ++i) {
        const TraceSpan span(own, "own", {.args = {{"i", i}}});
        const TraceSpan other(shared, "shared", {.args = {{"thread", t}}});
      }
    });
  }
  for (int i = 0; i < 5; ++i) TraceFile::Of(trace);
  for (std::thread& thread : threads) thread.join();
  const TraceFile file = TraceFile::Of(trace);
  for (int t = 0; t < kThreads; ++t) {
    const auto spans = file.Spans(t, "own");
    ASSERT_EQ(spans.size(), size_t{kSpans});
    for (int i = 0; i < kSpans; ++i) ASSERT_EQ(spans[static_cast<size_t>(i)].at("args").at("i"), i);
  }
  size_t num_shared = 0;
  for (const std::string& lane : file.Lanes(0)) {
    if (lane.starts_with("shared")) num_shared += file.Spans(0, lane).size();
  }
  EXPECT_EQ(num_shared, size_t{kThreads} * kSpans);
}

class TraceFilesTest : public ::testing::Test {
 protected:
  TraceFilesTest() { const TraceSpan span(trace_.Lane(0, "lane"), "span"); }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(dir_.path())) {
      names.push_back(entry.path().filename());
    }
    return names;
  }
  const TempDir dir_;
  Trace trace_;
};

TEST_F(TraceFilesTest, APathThatCannotBeWrittenIsAnErrorThatNamesIt) {
  dir_.Write("file", "");
  std::filesystem::create_directory(dir_ / "folder");
  for (const auto& [path, reason] : std::vector<std::pair<std::string, std::string>>{
           {dir_ / "missing/run.json", "No such file or directory"},
           {dir_ / "file/run.json", "Not a directory"},
           {dir_ / "folder", "something other than a regular file is there"},
           {"", "the path is empty"}}) {
    for (const absl::Status& status : {CheckTraceWritable(path), WriteTrace(trace_, path)}) {
      EXPECT_TRUE(absl::IsInvalidArgument(status)) << path;
      EXPECT_THAT(Message(status), HasSubstr("cannot write the trace " + path + ": " + reason));
    }
  }
  EXPECT_EQ(Names().size(), 2u) << "nothing is left behind";
}

TEST_F(TraceFilesTest, TheCheckLeavesNothingAndChangesNothing) {
  OkOrThrow(CheckTraceWritable(dir_ / "new.json"));
  EXPECT_THAT(Names(), ElementsAre());
  dir_.Write("old.json", "old");
  OkOrThrow(CheckTraceWritable(dir_ / "old.json"));
  EXPECT_EQ(ReadFile(dir_ / "old.json"), "old");
  EXPECT_THAT(Names(), ElementsAre("old.json"));
  OkOrThrow(WriteTrace(trace_, dir_ / "old.json"));
  EXPECT_THAT(ReadFile(dir_ / "old.json"), HasSubstr("span"));
  EXPECT_THAT(Names(), ElementsAre("old.json"));
}

TEST_F(TraceFilesTest, AFailedWriteLeavesTheOldFile) {
  dir_.Write("run.json", "old");
  // A limit on the size of files stands for a disk that is full.
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  const rlimit small{100, old.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const absl::Status status = WriteTrace(trace_, dir_ / "run.json");
  setrlimit(RLIMIT_FSIZE, &old);
  EXPECT_THAT(Message(status), HasSubstr("cannot write the trace " + dir_ / "run.json"));
  EXPECT_EQ(ReadFile(dir_ / "run.json"), "old");
  EXPECT_THAT(Names(), ElementsAre("run.json"));
}

}  // namespace trace_test
}  // namespace apogee
