// SPDX-License-Identifier: Apache-2.0

// The parts of reports: thinning, axes, JSON, the log, text for HTML.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "apogee/report/charts/axis.h"
#include "apogee/report/charts/chart.h"
#include "apogee/report/charts/thin.h"
#include "apogee/report/files/flat_json.h"
#include "apogee/report/files/run_log.h"
#include "apogee/report/files/run_record.h"
#include "apogee/report/html.h"
#include "apogee/tests/support/files/mutate_text.h"

namespace apogee::report {
namespace parts_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Every column keeps its first, lowest, highest and last point, and nothing that was not there.
TEST(ThinTest, KeepsTheExtremesOfEachColumn) {
  std::mt19937_64 random(1);
  std::vector<Point> points;
  for (int i = 0; i < 10000; ++i) {
    points.push_back({static_cast<double>(i), std::ldexp(static_cast<double>(random()), -64)});
  }
  const int columns = 100;  // of 100 points, but for the last point, which is on the end
  const auto lines = Thin(points, {.begin = 0, .end = 10000}, columns);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_LE(lines[0].size(), 400u);
  size_t at = 0;
  for (int column = 0; column < columns; ++column) {
    const auto begin = points.begin() + 100 * column, end = begin + 100;
    const auto by_y = [](const Point& a, const Point& b) { return a.y < b.y; };
    const auto [low, high] = std::minmax_element(begin, end, by_y);
    std::vector<double> expected = {begin->x, low->x, high->x, (end - 1)->x};
    std::sort(expected.begin(), expected.end());
    expected.erase(std::unique(expected.begin(), expected.end()), expected.end());
    for (const double x : expected) {
      ASSERT_LT(at, lines[0].size());
      EXPECT_EQ(lines[0][at].x, x);
      EXPECT_EQ(lines[0][at].y, points[static_cast<size_t>(x)].y);
      ++at;
    }
  }
  EXPECT_EQ(at, lines[0].size());
}

TEST(ThinTest, UnknownValuesInterrupt) {
  const auto lines = Thin({{1, kNan}, {2, 5}, {3, 6}, {4, kNan}, {5, kNan}, {6, 7}, {7, kNan}},
                          {.begin = 1, .end = 7}, 1000);
  ASSERT_EQ(lines.size(), 2u);
  ASSERT_EQ(lines[0].size(), 2u);
  EXPECT_EQ(lines[0][1].y, 6);
  ASSERT_EQ(lines[1].size(), 1u);
  EXPECT_EQ(lines[1][0].x, 6);
  EXPECT_TRUE(Thin({}, {.begin = 0, .end = 1}, 10).empty());
}

TEST(AxisTest, RoundTicksInsideTheRange) {
  const Range pixels = {.begin = 0, .end = 100};
  EXPECT_THAT(Axis({.begin = 0, .end = 10}, pixels, false).Ticks(5),
              ElementsAre(0, 2, 4, 6, 8, 10));
  EXPECT_THAT(Axis({.begin = 1, .end = 3}, pixels, false).Ticks(6, true), ElementsAre(1, 2, 3));
  EXPECT_THAT(Axis({.begin = 0.5, .end = 2000}, pixels, true).Ticks(5),
              ElementsAre(1, 10, 100, 1000));
  for (const double size : {1e-300, 3e-7, 1.0, 12345.0, 1e300}) {
    for (const bool is_log : {false, true}) {
      const Axis axis({.begin = size, .end = 1.7 * size}, pixels, is_log);
      EXPECT_EQ(axis.ToPixels(size), 0);
      EXPECT_NEAR(axis.ToPixels(1.7 * size), 100, 1e-9);
      const auto ticks = axis.Ticks(5);
      EXPECT_GE(ticks.size(), 2u) << size;
      EXPECT_LE(ticks.size(), 12u) << size;
      for (const double tick : ticks) {
        EXPECT_TRUE(tick >= size * (1 - 1e-6) && tick <= 1.7 * size * (1 + 1e-6)) << tick;
      }
    }
  }
  // One value only, also one whose neighbours are far.
  for (const double value : {0.0, 5.0, -3.0, 1e17}) {
    const Axis axis({.begin = value, .end = value}, pixels, false);
    EXPECT_EQ(axis.ToPixels(value), 50);
    EXPECT_LE(axis.Ticks(5).size(), 12u);
  }
}

TEST(ShortNumberTest, ShortAndRight) {
  EXPECT_EQ(ShortNumber(0), "0");
  EXPECT_EQ(ShortNumber(0.0015), "0.0015");
  EXPECT_EQ(ShortNumber(2.5e-7), "2.5e-07");
  EXPECT_EQ(ShortNumber(9999), "9999");
  EXPECT_EQ(ShortNumber(12500), "12.5k");
  EXPECT_EQ(ShortNumber(-3e6), "-3M");
  EXPECT_EQ(ShortNumber(2e9), "2G");
  EXPECT_EQ(RunClass(3), "run3");
  EXPECT_EQ(RunClass(11), "run3 again1");
}

TEST(FlatJsonTest, ValuesByPointer) {
  const auto json = FlatJson::Read(
      R"({"a":{"b/c":7,"d~":"x"},"list":[1,[2,{"e":3}]],"n":-1,"r":1.5,"big":9223372036854775808})",
      "f");
  ASSERT_TRUE(json.ok()) << Message(json.status());
  EXPECT_EQ(*json->Count("/a/b~1c"), 7);
  EXPECT_EQ(*json->Text("/a/d~0"), "x");
  EXPECT_EQ(*json->Count("/list/1/1/e"), 3);
  EXPECT_THAT(*json->Children("/a"), ElementsAre("b/c", "d~"));
  EXPECT_THAT(*json->Children("/list"), ElementsAre("0", "1"));
  EXPECT_EQ(FlatJson::Child("/a", "b/c"), "/a/b~1c");
  for (const char* pointer : {"/n", "/r", "/big", "/a", "/a/d~0"}) {
    const auto count = json->Count(pointer);
    ASSERT_FALSE(count.ok()) << pointer;
    EXPECT_THAT(Message(count.status()), HasSubstr("must be a whole number from 0")) << pointer;
  }
  EXPECT_EQ(Message(json->Count("/no").status()), "f: \"/no\" is missing");
  EXPECT_EQ(Message(json->Text("/n").status()), "f: \"/n\" must be a text");
  EXPECT_EQ(Message(json->Children("/n").status()), "f: \"/n\" must be an object or a list");
}

TEST(FlatJsonTest, DamageIsAnErrorThatNamesThePlace) {
  EXPECT_THAT(Message(FlatJson::Read("{\"a\":1,\"a\":2}", "f").status()),
              HasSubstr("f: byte 12: \"/a\" is given twice"));
  EXPECT_THAT(Message(FlatJson::Read("{\"a\":", "f").status()), HasSubstr("f: byte 5: "));
  EXPECT_FALSE(FlatJson::Read("", "f").ok());
  // As deep and as long as it gets: an answer within the budget.
  std::string deep;
  for (int i = 0; i < 100000; ++i) deep += "[1,";
  EXPECT_FALSE(FlatJson::Read(deep, "f").ok());
  const std::string text = R"({"planned_peak_bytes":7,"ranks":[{"rank":0,"categories":{"a":{}}}]})";
  std::mt19937_64 random(1);
  for (int i = 0; i < 5000; ++i) {
    const auto json = FlatJson::Read(
        apogee::testing::MutatedText(text, {"null", "[", "{", "}", "\"a\":", "1e9", "-1"}, random),
        "f");
    EXPECT_TRUE(json.ok() || absl::IsDataLoss(json.status()));
  }
}

TEST(RunRecordTest, ReadsBackWhatItWrote) {
  const RunRecord record{.model = "a \"model\"",
                         .parameters = 12,
                         .ranks = 4,
                         .plugin = "ddp",
                         .options = {{"k/e~y", "<v>"}, {"lr", "1e-3"}}};
  const auto read = ReadRunRecord(ToJson(record), "f");
  ASSERT_TRUE(read.ok()) << Message(read.status());
  EXPECT_EQ(read->model, record.model);
  EXPECT_EQ(read->parameters, 12);
  EXPECT_EQ(read->ranks, 4);
  EXPECT_EQ(read->plugin, "ddp");
  EXPECT_EQ(read->options, record.options);
  const TrafficRecord traffic{.steps = 3, .rows = {{"all_reduce", 6, 700}, {"barrier", 1, 0}}};
  const auto moved = ReadTrafficRecord(ToJson(traffic), "f");
  ASSERT_TRUE(moved.ok()) << Message(moved.status());
  EXPECT_EQ(moved->steps, 3);
  ASSERT_EQ(moved->rows.size(), 2u);
  EXPECT_EQ(moved->rows[0].collective, "all_reduce");
  EXPECT_EQ(moved->rows[0].calls, 6);
  EXPECT_EQ(moved->rows[0].bytes, 700);
  EXPECT_THAT(Message(ReadTrafficRecord("{\"steps\":0,\"collectives\":{}}", "f").status()),
              HasSubstr("f: \"/steps\" is 0"));
}

TEST(RunLogTest, SortsTheLines) {
  const RunLog log = ReadRunLog(
      "text: a text\nmodel: gpt2, 12 parameters\n"
      "step   1/30  loss 5.5681  lr 6.67e-04\n"
      "step 7 changed nothing: the gradient of w is not finite\n"
      "saved step 10\nsaved step 10 times\nstep by step\n"
      "step 30: validation loss 2.6397 nats per token (3.808 bits)\nsample:\n\nIn the beginning");
  ASSERT_EQ(log.skipped.size(), 1u);
  EXPECT_EQ(log.skipped[0].step, 7);
  EXPECT_EQ(log.skipped[0].why, "the gradient of w is not finite");
  EXPECT_THAT(log.saved, ElementsAre(10));
  EXPECT_EQ(log.model, "gpt2, 12 parameters");
  EXPECT_THAT(log.notes,
              ElementsAre("text: a text", "model: gpt2, 12 parameters", "saved step 10 times",
                          "step by step", "sample:", "", "In the beginning"));
  EXPECT_TRUE(ReadRunLog("").notes.empty());
  EXPECT_EQ(ReadRunLog("step 99999999999999999999/30").notes.size(), 1u);
}

TEST(HtmlTest, EscapesAnything) {
  EXPECT_EQ(HtmlText("<a href=\"x\">&'"), "&lt;a href=&quot;x&quot;&gt;&amp;'");
  EXPECT_EQ(HtmlText("\x01\x7f\n"), "???");
  EXPECT_EQ(HtmlText("a\xff"
                     "b\xc3\xa9"),
            "a\xef\xbf\xbd"
            "b\xc3\xa9");
  HtmlTable table({"name", "count"});
  table.Row({"a", "-7"});
  EXPECT_THAT(table.Close(), HasSubstr("<th>name</th><th class=\"number\">count</th>"));
  EXPECT_THAT(table.Close(), HasSubstr("<td>a</td><td class=\"number\">-7</td>"));
}

}  // namespace parts_test
}  // namespace apogee::report
