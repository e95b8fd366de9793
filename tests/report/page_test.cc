// SPDX-License-Identifier: Apache-2.0

// The page against the files of the runs: values read back from the drawing, texts, what is absent.
#include "apogee/tests/report/page.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <random>

#include "apogee/booster/metrics/metrics.h"
#include "apogee/report/files/run_record.h"
#include "apogee/report/report.h"
#include "apogee/tests/support/files/temp_dir.h"

namespace apogee::report {
namespace page_test {

using apogee::testing::Page;
using apogee::testing::PlottedChart;
using apogee::testing::ReadPage;
using apogee::testing::TempDir;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

struct Row {
  int64_t step;
  double loss, lr, norm, speed;
};

std::string RowText(const Row& row) {
  char text[300];
  std::snprintf(text, sizeof(text),
                "{\"step\":%lld,\"loss\":%.9g,\"lr\":%.9g,\"grad_norm\":%.9g,\"tokens_per_s\":%.9g,"
                "\"seconds\":0.5,\"memory\":{\"parameter\":1048576,\"total\":3145728}}\n",
                static_cast<long long>(row.step), row.loss, row.lr, row.norm, row.speed);
  return text;
}

std::vector<Row> RandomRows(int64_t steps) {
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> noise(0, 1);
  std::vector<Row> rows;
  for (int64_t step = 1; step <= steps; ++step) {
    // One in a thousand is a spike.
    const double norm = (noise(random) < 0.001 ? 300 : 1) * (0.5 + noise(random));
    rows.push_back({step, 2 + noise(random), 1e-3 * noise(random), norm, 900 + noise(random)});
  }
  return rows;
}

class PageTest : public ::testing::Test {
 protected:
  std::string WriteRun(const std::string& name, const std::vector<Row>& rows) const {
    std::string text;
    for (const Row& row : rows) text += RowText(row);
    dir_.Write(name + "/metrics.jsonl", text);
    return dir_ / name;
  }
  static Page PageOf(const std::vector<std::string>& folders) {
    const auto text = MakeReport(folders);
    EXPECT_TRUE(text.ok()) << Message(text.status());
    return text.ok() ? ReadPage(*text) : Page();
  }
  const TempDir dir_;
};

TEST_F(PageTest, EveryPointOfAShortRunIsThere) {
  const std::vector<Row> rows = RandomRows(60);
  const std::string out = WriteRun("run", rows);
  dir_.Write(
      "run/validation.jsonl",
      "{\"step\":30,\"loss\":2.25,\"tokens\":9}\n{\"step\":60,\"loss\":2.125,\"tokens\":9}\n");
  const Page page = PageOf({out});
  const PlottedChart& loss = page.Chart("Loss");
  ASSERT_EQ(loss.lines.size(), 2u);
  EXPECT_EQ(loss.lines[0].label, "run");
  ASSERT_EQ(loss.lines[0].points.size(), rows.size());
  EXPECT_EQ(loss.lines[1].label, "run, validation");
  ASSERT_EQ(loss.lines[1].points.size(), 2u);
  EXPECT_TRUE(loss.Has(1, 30, 2.25) && loss.Has(1, 60, 2.125));
  const auto& lr = page.Chart("Learning rate").lines.at(0).points;
  const auto& norm = page.Chart("Gradient norm").lines.at(0).points;
  const auto& speed = page.Chart("Tokens per second").lines.at(0).points;
  for (size_t i = 0; i < rows.size(); ++i) {
    // Pixels have six digits.
    EXPECT_NEAR(loss.lines[0].points[i].x, static_cast<double>(rows[i].step), 1e-3);
    EXPECT_NEAR(loss.lines[0].points[i].y, rows[i].loss, 1e-4);
    EXPECT_NEAR(lr.at(i).y, rows[i].lr, 1e-7);
    EXPECT_NEAR(norm.at(i).y, rows[i].norm, 1e-2);
    EXPECT_NEAR(speed.at(i).y, rows[i].speed, 1e-4);
  }
}

TEST_F(PageTest, LongRunsLoseNoSpikeAndStaySmall) {
  const std::vector<Row> rows = RandomRows(10000);
  const std::string out = WriteRun("run", rows);
  const auto text = MakeReport({out});
  ASSERT_TRUE(text.ok()) << Message(text.status());
  EXPECT_LE(text->size(), size_t{2} << 20);
  const Page page = ReadPage(*text);
  const PlottedChart& norm = page.Chart("Gradient norm");
  EXPECT_TRUE(norm.is_log);
  ASSERT_EQ(norm.lines.size(), 1u);
  EXPECT_LE(norm.lines[0].points.size(), 4u * 500);
  int spikes = 0;
  for (const Row& row : rows) {
    if (row.norm < 100) continue;
    ++spikes;
    EXPECT_TRUE(norm.Has(0, static_cast<double>(row.step), row.norm)) << "step " << row.step;
  }
  EXPECT_GT(spikes, 4);
  // Within each pixel column the line reaches the lowest and the highest value.
  const PlottedChart& loss = page.Chart("Loss");
  std::map<int64_t, std::pair<Row, Row>> columns;
  for (const Row& row : rows) {
    auto& [low, high] =
        columns
            .try_emplace(static_cast<int64_t>(static_cast<double>(row.step - 1) / loss.x_pixel),
                         row, row)
            .first->second;
    if (row.loss < low.loss) low = row;
    if (row.loss > high.loss) high = row;
  }
  for (const auto& [column, extremes] : columns) {
    for (const Row& row : {extremes.first, extremes.second}) {
      EXPECT_TRUE(loss.Has(0, static_cast<double>(row.step), row.loss)) << "step " << row.step;
    }
  }
}

TEST_F(PageTest, UnknownNormsInterruptTheLine) {
  dir_.Write(
      "run/metrics.jsonl",
      "{\"step\":1,\"loss\":2,\"grad_norm\":1}\n{\"step\":2,\"loss\":2,\"grad_norm\":3}\n"
      "{\"step\":3,\"loss\":2,\"grad_norm\":null}\n{\"step\":4,\"loss\":2,\"grad_norm\":2}\n");
  const Page page = PageOf({dir_ / "run"});
  EXPECT_EQ(page.Chart("Gradient norm").lines.size(), 2u);
  EXPECT_EQ(page.Chart("Loss").lines.size(), 1u);
}

TEST_F(PageTest, RunsShareCharts) {
  const Page page =
      PageOf({WriteRun("a/run", {{1, 2, 1e-3, 1, 10}, {2, 3, 1e-3, 1, 10}}),
              WriteRun("b/run", {{5, 7, 1e-3, 1, 10}}), WriteRun("c", {{1, 4, 1e-3, 1, 10}})});
  const PlottedChart& loss = page.Chart("Loss");
  ASSERT_EQ(loss.lines.size(), 3u);
  EXPECT_EQ(loss.lines[0].label, dir_ / "a/run");  // the last part alone is not enough
  EXPECT_EQ(loss.lines[1].label, dir_ / "b/run");
  EXPECT_EQ(loss.lines[2].label, "c");
  EXPECT_TRUE(loss.Has(0, 2, 3) && loss.Has(1, 5, 7) && loss.Has(2, 1, 4));
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_THAT(loss.lines[i].classes, HasSubstr("run" + std::to_string(i)));
  }
}

TEST_F(PageTest, TextsAreEscaped) {
  const std::string evil = "<script>alert(\"1\")</script>&amp;\x01'";
  const std::string out = WriteRun("<b>&\"run", {{1, 2, 1e-3, 1, 10}});
  dir_.Write("<b>&\"run/train.log", evil + "\n\xff\xfe\nstep 1 changed nothing: " + evil + "\n");
  RunRecord record{.model = evil, .parameters = 7, .ranks = 2, .plugin = evil};
  record.options[evil] = evil;
  dir_.Write("<b>&\"run/run.json", ToJson(record));
  dir_.Write("<b>&\"run/plan.json",
             "{\"planned_peak_bytes\":1,\"measured_peak_bytes\":1,\"ranks\":[{\"rank\":0,"
             "\"planned_peak_bytes\":1,\"measured_peak_bytes\":1,\"categories\":{\"</td><script>\":"
             "{\"planned_peak_bytes\":1,\"measured_peak_bytes\":1}}}]}");
  dir_.Write("<b>&\"run/traffic.json",
             "{\"steps\":1,\"collectives\":{\"<img>\":{\"calls\":1,\"bytes\":1}}}");
  const Page page = PageOf({out});  // well-formed
  EXPECT_EQ(page.Count("script"), 1u);
  EXPECT_EQ(page.Count("img"), 0u);
  EXPECT_EQ(page.Count("b"), 0u);
  const std::string shown = "<script>alert(\"1\")</script>&amp;?'";
  size_t count = 0;
  for (size_t at = 0; (at = page.text.find(shown, at)) != std::string::npos; ++at) ++count;
  EXPECT_EQ(count, 6u) << "note, reason, model, plugin, option and its value";
  EXPECT_THAT(page.text, HasSubstr("</td><script>"));
  EXPECT_THAT(page.text, HasSubstr("<b>&\"run"));
}

TEST_F(PageTest, PlannedAgainstMeasured) {
  const std::string out = WriteRun("run", {{1, 2, 1e-3, 1, 10}});
  const auto peak = [](int64_t planned, int64_t measured) {
    return "\"planned_peak_bytes\":" + std::to_string(planned) +
           ",\"measured_peak_bytes\":" + std::to_string(measured);
  };
  const auto rank = [&](int number, int64_t planned, int64_t measured) {
    return "{\"rank\":" + std::to_string(number) + "," + peak(planned, measured) +
           ",\"categories\":{\"parameter\":{" + peak(planned / 2, measured / 2) + "},\"slack\":{" +
           peak(0, 64) + "}}}";
  };
  dir_.Write("run/plan.json", "{" + peak(300 << 20, 303 << 20) + ",\"ranks\":[" +
                                  rank(0, 100 << 20, 101 << 20) + "," +
                                  rank(3, 200 << 20, 202 << 20) + "]}");
  const Page page = PageOf({out});
  EXPECT_THAT(page.text, HasSubstr("Planned 300.0 MiB, measured 303.0 MiB (+1.0 %)."));
  EXPECT_THAT(page.text, HasSubstr("rank 3, the fullest"));
  EXPECT_THAT(page.text, Not(HasSubstr("There is no plan.json")));
  std::map<std::string, std::string> bytes;
  for (const auto& bar : page.With("data-bytes")) {
    bytes[bar.at("data-name") + " " + bar.at("class")] = bar.at("data-bytes");
  }
  EXPECT_EQ(bytes["parameter planned"], std::to_string(100 << 20));
  EXPECT_EQ(bytes["parameter measured"], std::to_string(101 << 20));
  EXPECT_EQ(bytes["slack planned"], "0");
  EXPECT_EQ(bytes["slack measured"], "64");
  EXPECT_EQ(bytes["peak measured"], std::to_string(202 << 20));
  EXPECT_EQ(bytes["0 planned"], std::to_string(100 << 20));
  EXPECT_EQ(bytes["3 planned"], std::to_string(200 << 20));
}

TEST_F(PageTest, SaysWhatIsMissing) {
  const std::string out = WriteRun("run", {{1, 2, 1e-3, 1, 10}});
  const Page page = PageOf({out});
  for (const std::string& text :
       {"There is no plan.json in " + out, "There is no traffic.json in " + out,
        std::string("(shard_map.svg)"), std::string("(chunk_map.svg)"), std::string("trace.json"),
        std::string("No run recorded its share of the device's peak"),
        std::string("There are no notes (train.log)"), std::string("No step was skipped"),
        std::string("There are no checkpoints in the folder"),
        std::string("The options of the runs are not recorded (run.json)")}) {
    EXPECT_THAT(page.text, HasSubstr(text));
  }
  EXPECT_THAT(page.text, HasSubstr("3.0 MiB"));  // measured on rank 0
}

TEST_F(PageTest, SummaryAndEvents) {
  const std::string out =
      WriteRun("run", {{1, 5, 1e-3, 1, 1}, {2, 4, 1e-3, 1, 1000}, {1500, 2.34567, 1e-3, 1, 2000}});
  dir_.Write("run/train.log",
             "text: the Bible\nstep 2 changed nothing: the gradient of w is not finite\n"
             "saved step 1500\n");
  dir_.Write("run/run.json", ToJson(RunRecord{.model = "gpt2",
                                              .parameters = 1000000,
                                              .ranks = 2,
                                              .plugin = "ddp",
                                              .options = {{"lr", "0.002"}, {"precision", "f32"}}}));
  dir_.Write("run/traffic.json",
             ToJson(TrafficRecord{.steps = 10, .rows = {{"all_reduce", 30, 40400000}}}));
  const Page page = PageOf({out});
  std::vector<std::string> cells;
  for (const auto& element : page.elements) {
    if (element.name == "td") cells.push_back(element.text);
  }
  const auto row = [&cells](size_t begin, size_t count) {
    return std::vector<std::string>(cells.begin() + static_cast<ptrdiff_t>(begin),
                                    cells.begin() + static_cast<ptrdiff_t>(begin + count));
  };
  // The first cell has the label in an element of its own. Two steps of half a second each count
  // for the speed: 1000 and 2000.
  EXPECT_THAT(row(0, 9), ElementsAre("", "gpt2, 1,000,000 parameters", "ddp", "2", "1,500",
                                     "2.3457", "–", "1,500", "3.0 MiB"));
  EXPECT_THAT(row(9, 4), ElementsAre("lr", "0.002", "precision", "f32"));
  const size_t traffic =
      static_cast<size_t>(std::find(cells.begin(), cells.end(), "all_reduce") - cells.begin());
  EXPECT_THAT(row(traffic, 8), ElementsAre("all_reduce", "30", "38.5 MiB", "3.0", "3.9 MiB",
                                           "4.040", "3.8 MiB", "+1.00 %"));
  EXPECT_THAT(page.text, HasSubstr("the gradient of w is not finite"));
  EXPECT_THAT(page.text, HasSubstr("Saved: 1,500."));
  EXPECT_THAT(page.text, HasSubstr("text: the Bible"));
  EXPECT_THAT(page.text, HasSubstr("run skipped: step 2"));  // on the axis
}

TEST_F(PageTest, DrawsTheRunsPictures) {
  const std::string svg =
      "<svg xmlns=\"http://www.w3.org/2000/svg\"><defs><pattern id=\"padding\"></pattern></defs>"
      "<rect fill=\"url(#padding)\" data-chunk=\"5\"/></svg>\n";
  const std::string out = WriteRun("run", {{1, 2, 1e-3, 1, 10}});
  dir_.Write("run/shard_map.svg", svg);
  dir_.Write("run/chunk_map.svg", svg);
  dir_.Write("run/expert_loads.svg", svg);
  const auto event = [](int rank, int ts, int step) {
    return "{\"ph\":\"X\",\"cat\":\"pipeline\",\"pid\":" + std::to_string(rank) +
           ",\"ts\":" + std::to_string(ts) +
           ",\"dur\":1000,\"args\":{\"kind\":\"F\",\"step\":" + std::to_string(step) +
           ",\"micro_batch\":0,\"chunk\":0}}";
  };
  dir_.Write("run/trace.json", "[" + event(0, 0, 1) + "," + event(1, 1000, 1) + "," +
                                   event(0, 5000, 2) + "," + event(1, 6000, 2) + "]");
  const Page page = PageOf({out});
  std::vector<std::string> patterns;
  for (const auto& element : page.elements) {
    if (element.name == "pattern") patterns.push_back(element.attributes.at("id"));
  }
  EXPECT_THAT(patterns, ElementsAre("r0-shards-padding", "r0-chunks-padding", "r0-timeline-bubble",
                                    "r0-experts-padding"));
  EXPECT_EQ(page.With("data-chunk").size(), 3u + 2u);  // the timeline's boxes have it, too
  EXPECT_EQ(page.With("data-bubble").size(), 2u);
  EXPECT_THAT(page.text, HasSubstr("2 steps traced, bubble 50.0 %."));
  EXPECT_THAT(page.text, Not(HasSubstr("did not record")));
}

TEST_F(PageTest, NothingIsLoaded) {
  const auto text = MakeReport({WriteRun("run", {{1, 2, 1e-3, 1, 10}})});
  ASSERT_TRUE(text.ok());
  for (const char* word : {"http:", "https:", "src=", "@import", "url(", "fetch", "<link"}) {
    EXPECT_THAT(*text, Not(HasSubstr(word)));
  }
  EXPECT_THAT(*text, HasSubstr("default-src 'none'"));
}

// What a program logs, a report shows.
TEST_F(PageTest, ReadsWhatTheLoggerWrites) {
  {
    auto metrics = ValueOrThrow(MetricsLogger::Create(
        {.out = dir_ / "run", .total_steps = 2, .log_every = 1, .console = nullptr}));
    OkOrThrow(metrics->Note("model: a model"));
    for (int64_t step = 1; step <= 2; ++step) {
      OkOrThrow(metrics->Step({.step = step, .loss = 4.0 / static_cast<double>(step), .lr = 1e-3}));
    }
    OkOrThrow(metrics->Validation({.step = 2, .loss = 2.5, .tokens = 7}));
  }
  const Page page = PageOf({dir_ / "run"});
  const PlottedChart& loss = page.Chart("Loss");
  ASSERT_EQ(loss.lines.size(), 2u);
  EXPECT_TRUE(loss.Has(0, 1, 4) && loss.Has(0, 2, 2) && loss.Has(1, 2, 2.5));
  EXPECT_THAT(page.text, HasSubstr("No run recorded the gradients' norm"));
  EXPECT_THAT(page.text, HasSubstr("model: a model"));
  EXPECT_THAT(page.text, Not(HasSubstr("validation loss 2.5")));  // it is a value, not a note
}

}  // namespace page_test
}  // namespace apogee::report
