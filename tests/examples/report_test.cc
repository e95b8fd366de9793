// SPDX-License-Identifier: Apache-2.0

// --report of the example programs: the page that a run writes at its end, and the files that it
// reads.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "apogee/report/files/run_record.h"
#include "apogee/tests/report/page.h"
#include "apogee/tests/support/files/temp_dir.h"
#include "apogee/tests/support/program.h"

namespace apogee {
namespace report_test {

using ::apogee::testing::Page;
using ::apogee::testing::ProgramResult;
using ::apogee::testing::ReadFile;
using ::apogee::testing::ReadPage;
using ::apogee::testing::ReadRows;
using ::apogee::testing::RunProgram;
using ::apogee::testing::TempDir;
using ::testing::HasSubstr;
using ::testing::Not;

class ExamplesReportTest : public ::testing::Test {
 protected:
  ExamplesReportTest() {
    std::string text;
    for (int i = 0; i < 400; ++i) text += "line " + std::to_string(i % 40) + " of the text\n";
    text_ = dir_.Write("text.txt", text);
  }
  // Runs the program with --report. Returns its page.
  Page Train(const char* program, const std::string& flags) const {
    const ProgramResult result =
        RunProgram(program,
                   "--data " + text_ + " --block 16 --batch 8 --lr 0.01 --threads 2 --out " +
                       (dir_ / "out") + " --report " + flags,
                   dir_);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("report: " + (dir_ / "out/report.html") + "\n"));
    return ReadPage(ReadFile(dir_ / "out/report.html"));
  }
  report::RunRecord Record() const {
    return ValueOrThrow(report::ReadRunRecord(ReadFile(dir_ / "out/run.json"), "run.json"));
  }
  report::TrafficRecord Traffic() const {
    return ValueOrThrow(report::ReadTrafficRecord(ReadFile(dir_ / "out/traffic.json"), "traffic"));
  }
  // Bytes per step of a collective.
  double BytesOf(const std::string& collective) const {
    const report::TrafficRecord traffic = Traffic();
    for (const auto& row : traffic.rows) {
      if (row.collective == collective) {
        return static_cast<double>(row.bytes) / static_cast<double>(traffic.steps);
      }
    }
    return 0;
  }
  const TempDir dir_;
  std::string text_;
};

const char* const kSmall = " --layers 2 --heads 4 --dim 16 --sample 0 --steps 4 ";

TEST_F(ExamplesReportTest, ShowsTheRun) {
  const Page page =
      Train(APOGEE_TRAIN_GPT, std::string(kSmall) + "--ranks 2 --plugin ddp --save-every 4");
  const auto rows = ReadRows(dir_ / "out/metrics.jsonl");
  ASSERT_EQ(rows.size(), 4u);
  const auto& loss = page.Chart("Loss");
  ASSERT_EQ(loss.lines.size(), 2u);
  for (const auto& row : rows) EXPECT_TRUE(loss.Has(0, row.at("step"), row.at("loss")));
  const report::RunRecord record = Record();
  EXPECT_EQ(record.model, "gpt2");
  EXPECT_EQ(record.ranks, 2);
  EXPECT_EQ(record.plugin, "ddp");
  EXPECT_EQ(record.options.at("steps"), "4");
  EXPECT_EQ(record.options.at("optim.lr"), "0.01");
  EXPECT_EQ(record.options.at("precision"), "f32");
  EXPECT_THAT(page.text, HasSubstr("Checkpoints in the folder: 4."));
  EXPECT_THAT(page.text, Not(HasSubstr("There is no traffic.json")));
}

// Against the formulas of the plugins' headers, with N parameters in f32.
TEST_F(ExamplesReportTest, TrafficFollowsTheFormulas) {
  Train(APOGEE_TRAIN_GPT, std::string(kSmall) + "--ranks 2 --plugin ddp");
  const double bytes = 4 * static_cast<double>(Record().parameters);
  EXPECT_EQ(Traffic().steps, 3);
  // A few bytes of losses and norms come on top.
  EXPECT_NEAR(BytesOf("all_reduce"), bytes, 2000);
  EXPECT_GE(BytesOf("all_reduce"), bytes);
  Train(APOGEE_TRAIN_GPT, std::string(kSmall) + "--ranks 2 --plugin zero2 --accumulate 2");
  EXPECT_NEAR(BytesOf("reduce_scatter"), bytes, 64);
  EXPECT_NEAR(BytesOf("all_gather"), bytes, 2000);
  // Gemini gathers each value for forward and for backward, in a group of its own: the tied table,
  // which has more than a third of the elements, up to four times. What forward used last may still
  // be there in backward.
  Train(APOGEE_TRAIN_GPT, std::string(kSmall) + "--ranks 2 --plugin gemini");
  EXPECT_NEAR(BytesOf("reduce_scatter"), bytes, 0.05 * bytes);
  EXPECT_GT(BytesOf("all_gather"), 0.9 * bytes);
  EXPECT_LT(BytesOf("all_gather"), 3 * bytes);
  // A new run of one rank leaves no traffic of another.
  const Page page = Train(APOGEE_TRAIN_GPT, std::string(kSmall) + "--ranks 1");
  EXPECT_TRUE(Traffic().rows.empty());
  EXPECT_THAT(page.text, HasSubstr("There were no collectives."));
}

TEST_F(ExamplesReportTest, DrawsWhoHoldsWhat) {
  const Page page = Train(APOGEE_TRAIN_LLAMA_HYBRID,
                          "--precision f32 --layers 2 --heads 4 --kv-heads 2 --dim 32 --hidden 48 "
                          "--sample 0 --steps 2");
  EXPECT_THAT(page.text, HasSubstr("Sharding plan of llama, f32: tp 2, dp 2, ZeRO stage 2"));
  EXPECT_FALSE(page.With("data-elements").empty());
}

TEST_F(ExamplesReportTest, DrawsTheChunkMap) {
  const Page page =
      Train(APOGEE_GEMINI_BIG_MODEL, "--precision f32 --layers 2 --heads 4 --dim 16 --steps 2");
  EXPECT_THAT(page.text, HasSubstr("Chunks of rank 0"));
  EXPECT_FALSE(page.With("data-from").empty());
}

TEST_F(ExamplesReportTest, DrawsThePipeline) {
  const Page page = Train(APOGEE_TRAIN_3D,
                          "--precision f32 --ranks 2 --tp 1 --pp 2 --layers 2 --heads 4 "
                          "--kv-heads 2 --dim 32 --hidden 48 --steps 2 --trace " +
                              (dir_ / "out/trace.json"));
  EXPECT_THAT(page.text, HasSubstr("2 steps traced, bubble "));
  EXPECT_FALSE(page.With("data-bubble").empty());
  // A new run in the same folder, of which there is no trace.
  const Page next = Train(APOGEE_TRAIN_GPT, std::string(kSmall) + "--steps 1");
  EXPECT_TRUE(next.With("data-bubble").empty());
  EXPECT_THAT(next.text, HasSubstr("There is no traffic.json"));
}

TEST_F(ExamplesReportTest, NeedsOut) {
  const ProgramResult result = RunProgram(APOGEE_TRAIN_GPT, "--data " + text_ + " --report", dir_);
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("--report needs --out"));
}

}  // namespace report_test
}  // namespace apogee
