// SPDX-License-Identifier: Apache-2.0

// The base of tests that run a training program on a tiny text.
//
//   class Train3dTest : public TextProgramTest {
//    protected:
//     Train3dTest() : TextProgramTest(APOGEE_TRAIN_3D, "--layers 4 --steps 10") {}
//   };
//   TEST_F(Train3dTest, BadInput) { ExpectRefused("--pp 0", 2, "--pp: needs"); }
#ifndef APOGEE_TESTS_EXAMPLES_TEXT_PROGRAM_TEST_H_
#define APOGEE_TESTS_EXAMPLES_TEXT_PROGRAM_TEST_H_

#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>

#include "apogee/tests/support/program.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace apogee::testing {

class TextProgramTest : public ::testing::Test {
 protected:
  // `flags` of every run; those of a test come later and win.
  TextProgramTest(std::string program, std::string flags) : program_(std::move(program)) {
    std::string text;
    for (int i = 0; i < 200; ++i) text += "line " + std::to_string(i % 40) + " of the text\n";
    text_ = dir_.Write("text.txt", text);
    flags_ = "--data " + text_ + " " + std::move(flags) + " ";
  }
  ProgramResult Train(const std::string& flags) {
    return RunProgram(program_, flags_ + flags, dir_);
  }
  // With nothing on stdout, `num_lines` lines on stderr, and no folder.
  void ExpectRefused(const std::string& flags, int exit_code, const std::string& message,
                     int num_lines = 1) {
    const ProgramResult result = Train("--out " + (dir_ / "refused") + " " + flags);
    EXPECT_EQ(result.exit_code, exit_code) << flags << "\n" << result.out << result.err;
    EXPECT_THAT(result.err, ::testing::HasSubstr(message)) << flags;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), num_lines) << result.err;
    EXPECT_EQ(result.out, "") << flags;
    EXPECT_FALSE(std::filesystem::exists(dir_ / "refused")) << flags;
  }
  // Losses and norms of all steps, of runs in f64 with other sums.
  void ExpectSameSteps(const std::string& out, const std::string& want_out) {
    const auto got = ReadRows(dir_ / (out + "/metrics.jsonl"));
    const auto want = ReadRows(dir_ / (want_out + "/metrics.jsonl"));
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_NEAR(want[i]["loss"], got[i]["loss"], 1e-8);
      EXPECT_NEAR(want[i]["grad_norm"], got[i]["grad_norm"], 1e-8);
    }
  }

  TempDir dir_;
  std::string text_;

 private:
  const std::string program_;
  std::string flags_;
};

}  // namespace apogee::testing

#endif  // APOGEE_TESTS_EXAMPLES_TEXT_PROGRAM_TEST_H_
