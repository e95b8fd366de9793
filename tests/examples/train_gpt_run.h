// SPDX-License-Identifier: Apache-2.0

// Runs of the program 01_train_gpt on a tiny text. The test defines APOGEE_TRAIN_GPT, its path.
//
//   const ProgramResult result = Train("--out " + (dir_ / "out"));
//   EXPECT_EQ(Rows("out/metrics.jsonl").size(), 12u);
#ifndef APOGEE_TESTS_EXAMPLES_TRAIN_GPT_RUN_H_
#define APOGEE_TESTS_EXAMPLES_TRAIN_GPT_RUN_H_

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apogee/tests/support/files/temp_dir.h"
#include "apogee/tests/support/program.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace apogee::testing {

class TrainGptTest : public ::testing::Test {
 protected:
  TrainGptTest() {
    // Forty different lines, repeated: learnable within a few steps.
    std::string text;
    for (int i = 0; i < 200; ++i) text += "line " + std::to_string(i % 40) + " of the text\n";
    text_ = dir_.Write("text.txt", text);
  }

  // Runs the program on the tiny text with a tiny model; `flags` come last and win.
  ProgramResult Train(const std::string& flags) { return Train(text_, flags); }
  ProgramResult Train(const std::string& data, const std::string& flags) {
    return Run(
        "--data " + data +
        " --layers 1 --heads 2 --dim 16 --block 16 --batch 8 --steps 12 --lr 0.01 --threads 2"
        " --sample 20 " +
        flags);
  }
  ProgramResult Run(const std::string& flags) { return RunProgram(APOGEE_TRAIN_GPT, flags, dir_); }
  std::vector<nlohmann::json> Rows(const std::string& name) { return ReadRows(dir_ / name); }
  // What must not depend on the clock.
  std::vector<nlohmann::json> Trajectory(const std::string& out) {
    std::vector<nlohmann::json> rows = Rows(out + "/metrics.jsonl");
    for (nlohmann::json& row : rows) {
      row.erase("seconds");
      row.erase("tokens_per_s");
      row.erase("share_of_peak");
    }
    return rows;
  }
  void ExpectWrongUsage(const std::string& flags, const std::string& message) {
    ExpectRefused(text_, flags, 2, message);
  }
  void ExpectRefused(const std::string& data, const std::string& flags, int exit_code,
                     const std::string& message) {
    const ProgramResult result = Train(data, "--out " + (dir_ / "refused") + " " + flags);
    EXPECT_EQ(result.exit_code, exit_code) << flags << "\n" << result.out << result.err;
    EXPECT_THAT(result.err, ::testing::HasSubstr(message)) << flags;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    EXPECT_EQ(result.out, "") << flags;
    EXPECT_FALSE(std::filesystem::exists(dir_ / "refused")) << flags;
  }

  TempDir dir_;
  std::string text_;
};

}  // namespace apogee::testing

#endif  // APOGEE_TESTS_EXAMPLES_TRAIN_GPT_RUN_H_
