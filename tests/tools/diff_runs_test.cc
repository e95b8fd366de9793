// SPDX-License-Identifier: Apache-2.0

// apogee diff of two runs: the first step that differs, in metrics and in checkpoints.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "apogee/booster/metrics/metrics.h"
#include "apogee/checkpoint/checkpoint_folder.h"
#include "apogee/checkpoint/checkpoint_writer.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tests/support/files/temp_dir.h"
#include "apogee/tests/support/tool_command.h"

namespace apogee::tools {
namespace diff_runs_test {

using apogee::testing::Command;
using apogee::testing::CommandResult;
using apogee::testing::ReadFile;
using apogee::testing::TempDir;
using checkpoint::RealFileSystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

using Tensors = std::map<std::string, std::vector<float>>;

// Steps 1 to 6, checkpoints of 2, 4 and 6.
struct RunOf {
  int64_t steps = 6, save_every = 2;
  int64_t first_save = 2;
  // From this step on the losses and b's second element are off by these.
  int64_t differs_from = 1000;
  double loss_off = 0;
  float b_off = 0;
};

class DiffRunsTest : public ::testing::Test {
 protected:
  static Tensors TensorsAt(int64_t step, const RunOf& run) {
    const auto at = static_cast<float>(step);
    Tensors tensors = {{"model/a", {1 + at, -2}}, {"model/b", {8, 10 + at, 0}}};
    if (step >= run.differs_from) tensors["model/b"][1] += run.b_off;
    return tensors;
  }
  static void SaveTo(const std::string& path, const Tensors& tensors) {
    std::vector<checkpoint::TensorPart> parts;
    for (const auto& [name, values] : tensors) {
      const Shape shape{static_cast<int64_t>(values.size())};
      parts.push_back(
          {name, Tensor::FromVector<float>(values, shape, CpuContext()), Layout(shape)});
    }
    OkOrThrow(checkpoint::SaveCheckpoint({RealFileSystem(), path},
                                         {.attributes = {}, .parts = parts}, nullptr));
  }
  std::string Write(const std::string& name, const RunOf& run) const {
    const std::string out = dir_ / name;
    auto metrics = ValueOrThrow(MetricsLogger::Create({.out = out, .console = nullptr}));
    std::filesystem::create_directories(out + "/checkpoints");
    for (int64_t step = 1; step <= run.steps; ++step) {
      const double off = step >= run.differs_from ? run.loss_off : 0;
      OkOrThrow(metrics->Step(
          {.step = step, .loss = 5.0 - 0.5 * static_cast<double>(step) + off, .lr = 0.25}));
      if (step % run.save_every != 0 || step < run.first_save) continue;
      SaveTo(out + "/checkpoints/" + checkpoint::CheckpointName(step), TensorsAt(step, run));
    }
    OkOrThrow(metrics->Validation({.step = run.steps, .loss = 2.5, .tokens = 64}));
    return out;
  }
  CommandResult Diff(const std::string& a, const std::string& b) const {
    return Command("diff " + dir_ / a + " " + dir_ / b);
  }
  // The rows of a run without checkpoints.
  CommandResult DiffRows(const std::string& rows) const {
    dir_.Write("a/metrics.jsonl", rows);
    return Diff("a", "a");
  }

  const TempDir dir_;
};

TEST_F(DiffRunsTest, Equal) {
  Write("a", {});
  Write("b", {});
  ASSERT_NE(ReadFile(dir_ / "a/metrics.jsonl"), ReadFile(dir_ / "b/metrics.jsonl")) << "seconds";
  const CommandResult result = Diff("a", "b");
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.out,
            "metrics.jsonl: equal up to step 6 (6 in both)\n"
            "validation.jsonl: equal up to step 6 (1 in both)\n"
            "checkpoints: equal up to step 6 (3 in both)\n");
  EXPECT_EQ(Diff("a/checkpoints", "b").code, 0) << "checkpoints alone, on either side";
}

TEST_F(DiffRunsTest, MetricsPart) {
  Write("a", {});
  Write("b", {.differs_from = 4, .loss_off = 0.125});
  const CommandResult result = Diff("a", "b");
  EXPECT_EQ(result.code, 1);
  EXPECT_EQ(
      result.out,
      "metrics.jsonl: equal up to step 3, first difference at step 4 (3 of 6 in both differ)\n"
      "  loss  3 and 3.125\n"
      "validation.jsonl: equal up to step 6 (1 in both)\n"
      "checkpoints: equal up to step 6 (3 in both)\n");
  Write("c", {.differs_from = 1, .loss_off = 1});
  EXPECT_THAT(Diff("a", "c").out, HasSubstr("metrics.jsonl: first difference at step 1, the first "
                                            "in both (6 of 6 in both differ)\n  loss  4.5 and "));
}

// Every field that a run computes, in either file; times and memory are not looked at.
TEST_F(DiffRunsTest, EveryField) {
  const std::string same = "{\"step\":1,\"loss\":1}\n{\"step\":2,\"loss\":0,\"lr\":1}\n";
  for (const std::string file : {"metrics.jsonl", "validation.jsonl"}) {
    for (const std::string name : {"a", "b"}) {
      const char* row = name == "a" ? "{\"step\":5,\"seconds\":1,\"loss\":null,\"lr\":0.1,"
                                      "\"grad_norm\":1e300,\"tokens\":64,\"memory\":{\"x\":1}}\n"
                                    : "{\"step\":5,\"seconds\":2,\"loss\":1.5,\"lr\":0.25,"
                                      "\"grad_norm\":-7,\"memory\":{\"x\":2}}\n";
      dir_.Write(name + "/" + file, same + row);
    }
    const CommandResult result = Diff("a", "b");
    EXPECT_EQ(result.code, 1);
    EXPECT_EQ(result.out,
              file +
                  ": equal up to step 2, first difference at step 5 (1 of 3 in both differ)\n"
                  "  loss  null and 1.5\n"
                  "  lr  0.1 and 0.25\n"
                  "  grad_norm  1e+300 and -7\n"
                  "  tokens  64 and nothing\n");
    for (const std::string name : {"a", "b"}) std::filesystem::remove_all(dir_ / name);
  }
}

TEST_F(DiffRunsTest, OneParameterParts) {
  Write("a", {});
  Write("b", {.differs_from = 6, .b_off = 0.5});
  // At step 6: off by 0.5 beside values of at most 16, which moved by 2 since step 4.
  char line[120];
  std::snprintf(line, sizeof(line), "  model/b  max abs %.6g, relative %.6g, %.6g of the update ",
                0.5, 0.5 / 16, 0.5 / 2);
  const CommandResult result = Diff("a", "b");
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.out,
              HasSubstr("checkpoints: equal up to step 4, first difference at step 6\n" +
                        std::string(line) + "since step 4\n  1 equal, 1 different, 0 missing\n"));
  // Without an equal one before there is no update to measure by.
  const CommandResult first = Command("diff " + Write("c", {.first_save = 6}) + " " + dir_ / "b");
  EXPECT_EQ(first.code, 1);
  std::snprintf(line, sizeof(line), "  model/b  max abs %.6g, relative %.6g\n", 0.5, 0.5 / 16);
  EXPECT_THAT(first.out, AllOf(HasSubstr("checkpoints: first difference at step 6, the first in "
                                         "both; 2 only in " +
                                         dir_ / "b" + "\n"),
                               HasSubstr(line)));
}

TEST_F(DiffRunsTest, TensorsThatAreNotUpdatedOrMissing) {
  for (const std::string run : {"a", "b"}) {
    std::filesystem::create_directories(dir_ / run);
    const bool other = run == "b";
    SaveTo(dir_ / (run + "/step-1"), {{"w", {1, 2}}, {"x", {1}}});
    Tensors tensors = {{"w", {1, other ? 3.0f : 2.0f}}, {"x", {1}}};
    if (other) tensors["y"] = {1};
    SaveTo(dir_ / (run + "/step-3"), tensors);
  }
  const CommandResult result = Diff("a", "b");
  EXPECT_EQ(result.code, 1);
  EXPECT_EQ(result.out,
            "checkpoints: equal up to step 1, first difference at step 3\n"
            "  w  max abs 1, relative 0.5, not updated since step 1\n"
            "  y  only in " +
                dir_ / "b/step-3" + "\n  1 equal, 1 different, 1 missing\n");
  EXPECT_THAT(Command("diff --limit 1 " + dir_ / "a " + dir_ / "b").out,
              HasSubstr("step 1\n  ... and 1 more\n"));
}

TEST_F(DiffRunsTest, StepsOfOneRunAreCounted) {
  Write("a", {.steps = 4});
  Write("b", {.first_save = 4});
  const CommandResult result = Diff("a", "b");
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.out, "metrics.jsonl: equal up to step 4 (4 in both); 2 only in " + dir_ / "b" +
                            "\nvalidation.jsonl: no step of both; 1 only in " + dir_ / "a" +
                            "; 1 only in " + dir_ / "b" +
                            "\ncheckpoints: equal up to step 4 (1 in both); 1 only in " +
                            dir_ / "a" + "; 1 only in " + dir_ / "b" + "\n");
}

TEST_F(DiffRunsTest, DamagedCheckpointsArePassedOver) {
  Write("a", {});
  Write("b", {.differs_from = 6, .b_off = 1});
  const std::string damaged = dir_ / "b/checkpoints/step-00000006/rank-00000.safetensors";
  std::filesystem::resize_file(damaged, 9);
  const CommandResult result = Diff("a", "b");
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.out, AllOf(HasSubstr("passed over: " + damaged),
                                HasSubstr("checkpoints: equal up to step 4 (2 in both); 1 only")));
}

TEST_F(DiffRunsTest, DamagedRows) {
  const std::string good = "{\"step\":1,\"loss\":1}\n";
  const std::string path = dir_ / "a/metrics.jsonl";
  EXPECT_EQ(DiffRows(good + "{\"step\":2,\"loss\":null,\"more\":{\"a\":[1,{}]},\"x\":\"\"}\n").out,
            "metrics.jsonl: equal up to step 2 (2 in both)\n");
  for (const auto& [line, problem] : std::vector<std::pair<std::string, std::string>>{
           {"{\"step\":2,\"loss\":1", "it has no end"},
           {"{\"step\":2,\"loss\":1\n", "byte 18: "},
           {"{\"step\":2}}\n", "byte 11: "},
           {"\n", "byte 0: "},
           {"[1]\n", "a row must be an object"},
           {"7\n", "a row must be an object"},
           {"{\"loss\":1}\n", "has no \"step\""},
           {"{\"step\":-2}\n", "\"step\" is a number below 0"},
           {"{\"step\":2.5}\n", "\"step\" is no whole number"},
           {"{\"step\":null}\n", "\"step\" is null"},
           {"{\"step\":[2]}\n", "\"step\" is a list"},
           {"{\"step\":18446744073709551615}\n", "\"step\" is a number above 2^63"},
           {"{\"step\":2,\"step\":3}\n", "\"step\" is given twice"},
           {"{\"step\":2,\"lr\":1,\"lr\":1}\n", "\"lr\" is given twice"},
           {"{\"step\":2,\"loss\":\"1\"}\n", "\"loss\" is a text"},
           {"{\"step\":2,\"loss\":{}}\n", "\"loss\" is an object"},
           {"{\"step\":1}\n", "step 1 again, with other values: rows of two runs are mixed"},
           {"{\"step\":0}\n", "step 0 behind step 1: rows of two runs are mixed"},
           {"{\"step\":2,\"x\":\"" + std::string(70'000, 'x') + "\"}\n",
            "is longer than 65536 bytes"}}) {
    const CommandResult result = DiffRows(good + line);
    EXPECT_EQ(result.code, 2) << line;
    EXPECT_THAT(result.out, HasSubstr("apogee diff: " + path + ": line 2: " + problem)) << line;
  }
}

// Earlier versions wrote the validation of a finished run again whenever it was run again.
TEST_F(DiffRunsTest, RepeatedRowsAreCountedOnce) {
  const std::string row = "{\"step\":3,\"loss\":1.5}\n";
  dir_.Write("a/validation.jsonl", "{\"step\":1,\"loss\":2}\n" + row + row + row);
  dir_.Write("b/validation.jsonl", row);
  const CommandResult result = Diff("a", "b");
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.out, dir_ / "a/validation.jsonl" +
                            ": 2 rows are there twice with the same values, the first of step 3; "
                            "each is counted once (a finished run was run again)\n"
                            "validation.jsonl: equal up to step 3 (1 in both); 1 only in " +
                            dir_ / "a" + "\n");
}

TEST_F(DiffRunsTest, OutputThatCannotBeWrittenIsAnError) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  Write("a", {});
  const CommandResult result = Command("diff " + dir_ / "a " + dir_ / "a" + " >/dev/full");
  EXPECT_EQ(result.code, 2);
}

TEST_F(DiffRunsTest, RowsOfManyPieces) {
  std::string rows;
  for (int step = 1; step <= 20'000; ++step) rows += "{\"step\":" + std::to_string(step) + "}\n";
  EXPECT_EQ(DiffRows(rows).out, "metrics.jsonl: equal up to step 20000 (20000 in both)\n");
  EXPECT_THAT(DiffRows(rows + "x\n").out, HasSubstr("metrics.jsonl: line 20001: byte 1: "));
}

TEST_F(DiffRunsTest, NothingToCompare) {
  const std::string a = Write("a", {});
  const std::string checkpoint = a + "/checkpoints/step-00000002";
  for (const std::string& both : {a + " " + checkpoint, checkpoint + " " + a}) {
    const CommandResult mixed = Command("diff " + both);
    EXPECT_EQ(mixed.code, 2);
    EXPECT_EQ(mixed.out, "apogee diff: " + a + " is the folder of a run and " + checkpoint +
                             " is not: give two runs, or a checkpoint of the run, a folder "
                             "step-N\n");
  }
  EXPECT_EQ(Command("diff " + a + " " + dir_ / "none").code, 2);
  dir_.Write("b/metrics.jsonl", "{\"step\":7}\n");
  const CommandResult result = Diff("a", "b");
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.out, AllOf(HasSubstr("metrics.jsonl: no step of both; 6 only in " + a),
                                HasSubstr("validation.jsonl: only in " + a),
                                HasSubstr("there is nothing to compare")));
}

}  // namespace diff_runs_test
}  // namespace apogee::tools
