// SPDX-License-Identifier: Apache-2.0

// apogee report: the file that it writes, and bad input.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "apogee/tests/support/files/temp_dir.h"
#include "apogee/tests/support/tool_command.h"

namespace apogee::tools {
namespace report_test {

using apogee::testing::Command;
using apogee::testing::CommandResult;
using apogee::testing::ReadFile;
using apogee::testing::TempDir;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const char* const kRows =
    "{\"step\":1,\"loss\":2,\"lr\":0.1}\n{\"step\":2,\"loss\":1,\"lr\":0.1}\n";

class ReportCommandTest : public ::testing::Test {
 protected:
  ReportCommandTest() { dir_.Write("run/metrics.jsonl", kRows); }
  // Runs the command with `file` of the run changed to `text`, and expects its message.
  void ExpectDamage(const std::string& file, const std::string& text, const std::string& message,
                    int code = 1) const {
    const TempDir dir;
    dir.Write("run/metrics.jsonl", kRows);
    const std::string path = dir.Write("run/" + file, text);
    const CommandResult result = Command("report " + dir / "run" + " --out " + dir / "report.html");
    EXPECT_EQ(result.code, code) << result.out;
    EXPECT_THAT(result.out, HasSubstr("apogee report: " + path + message)) << text;
    EXPECT_FALSE(std::filesystem::exists(dir / "report.html"));
  }
  static void Expect(const std::string& arguments, int code, const std::string& message) {
    const CommandResult result = Command("report " + arguments);
    EXPECT_EQ(result.code, code) << arguments << "\n" << result.out;
    EXPECT_THAT(result.out, HasSubstr(message)) << arguments;
  }
  const TempDir dir_;
};

TEST_F(ReportCommandTest, WritesOnePage) {
  const std::string out = dir_ / "report.html";
  dir_.Write("report.html", "an old report");
  const CommandResult result = Command("report " + dir_ / "run" + "/ --out " + out);
  EXPECT_EQ(result.code, 0) << result.out;
  EXPECT_EQ(result.out, "wrote " + out + "\n");
  EXPECT_THAT(ReadFile(out), StartsWith("<!DOCTYPE html>"));
  EXPECT_THAT(ReadFile(out), HasSubstr("<h1>run</h1>"));
  EXPECT_FALSE(std::filesystem::exists(out + ".tmp"));
  // Into the folder of the run, which is then still a run.
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(Command("report " + dir_ / "run" + " --out " + dir_ / "run/report.html").code, 0);
  }
}

TEST_F(ReportCommandTest, WrongUse) {
  const std::string run = dir_ / "run", to = " --out " + dir_ / "report.html";
  Expect("", 2, "folders is required");
  Expect(run, 2, "--out is required");
  Expect(run + to + to, 2, "--out");
  Expect(run + " " + run + to, 2, "report: " + run + " is given twice");
  Expect(run + " " + dir_ / "run/../run/." + to, 2, "is given twice");
  Expect(dir_ / "missing" + to, 2, dir_ / "missing");
  Expect(dir_ / "run/metrics.jsonl" + to, 2, "metrics.jsonl");
  std::filesystem::create_directory(dir_ / "empty");
  Expect(run + " " + dir_ / "empty" + to, 2,
         dir_ / "empty" +
             ": there is no metrics.jsonl in it; give the folder that a training program");
  // The file of a run must not be overwritten by mistake.
  Expect(run + " --out " + run + "/metrics.jsonl", 2, "does not end in .html");
  EXPECT_EQ(ReadFile(run + "/metrics.jsonl"), kRows);
}

TEST_F(ReportCommandTest, OutputThatCannotBeWritten) {
  const std::string run = dir_ / "run";
  Expect(run + " --out " + dir_ / "missing/report.html", 2,
         "cannot write " + dir_ / "missing/report.html");
  std::filesystem::create_directory(dir_ / "folder.html");
  Expect(run + " --out " + dir_ / "folder.html", 2, "folder.html: it is a folder");
  // A full disk: the limit of file sizes stands for it. The old report stays.
  dir_.Write("old.html", "old");
  const CommandResult result =
      Command("report " + run + " --out " + dir_ / "old.html", "ulimit -f 1;");
  EXPECT_NE(result.code, 0);
  EXPECT_THAT(result.out, HasSubstr("ulimit -f"));
  EXPECT_EQ(ReadFile(dir_ / "old.html"), "old");
  EXPECT_FALSE(std::filesystem::exists(dir_ / "old.html.tmp"));
}

TEST_F(ReportCommandTest, DamagedFiles) {
  ExpectDamage("metrics.jsonl", "", ": there are no rows in it", 2);
  ExpectDamage("metrics.jsonl", std::string(kRows) + "{\"step\":3", ": line 3: it has no end");
  ExpectDamage("metrics.jsonl", std::string(kRows) + "{\"step\":\n", ": line 3: byte 8: ");
  ExpectDamage("metrics.jsonl", std::string(kRows) + "{\"loss\":3}\n", ": line 3: has no \"step\"");
  ExpectDamage("metrics.jsonl", std::string(kRows) + "{\"step\":1,\"loss\":3}\n",
               ": line 3: step 1 behind step 2");
  for (const auto& [field, problem] : std::vector<std::pair<std::string, std::string>>{
           {"\"tokens_per_s\":\"fast\"", "\"tokens_per_s\" is a text"},
           {"\"seconds\":[1]", "\"seconds\" is a list"},
           {"\"seconds\":1,\"seconds\":1", "\"seconds\" is given twice"},
           {"\"memory\":5", "\"memory\" is no object"},
           {"\"memory\":[]", "\"memory\" is a list"},
           {"\"memory\":null", "\"memory\" is no object"},
           {"\"memory\":{\"total\":\"a\"}", "\"memory.total\" is a text"},
           {"\"memory\":{\"total\":{}}", "\"memory.total\" is an object"},
           {"\"memory\":{\"total\":1,\"total\":1}", "\"memory.total\" is given twice"},
           {"\"memory\":{},\"memory\":{}", "\"memory\" is given twice"}}) {
    ExpectDamage("metrics.jsonl", "{\"step\":1," + field + "}\n", ": line 1: " + problem);
  }
  ExpectDamage("validation.jsonl", "[]\n", ": line 1: ");
  ExpectDamage("plan.json", "{\"planned_peak_bytes\":", ": byte 22: ");
  ExpectDamage("plan.json", "{\"planned_peak_bytes\":-1}", ": \"/planned_peak_bytes\" must be");
  const std::string peaks = "\"planned_peak_bytes\":1,\"measured_peak_bytes\":1";
  ExpectDamage("plan.json", "{" + peaks + "}", ": \"/ranks\" is missing");
  ExpectDamage("plan.json", "{" + peaks + ",\"ranks\":[]}", ": \"/ranks\" is empty");
  ExpectDamage("plan.json", "{" + peaks + ",\"ranks\":[{" + peaks + "}]}",
               ": \"/ranks/0/rank\" is missing");
  ExpectDamage("plan.json",
               "{" + peaks + ",\"ranks\":[{\"rank\":0," + peaks + ",\"categories\":{\"a/b\":{}}}]}",
               ": \"/ranks/0/categories/a~1b/planned_peak_bytes\" is missing");
  ExpectDamage("run.json", "{}", ": \"/model\" is missing");
  ExpectDamage("traffic.json", "{\"steps\":1,\"collectives\":{\"a\":{\"calls\":1}}}",
               ": \"/collectives/a/bytes\" is missing");
  ExpectDamage("trace.json", "[{]", ": byte 3: not valid JSON");
  ExpectDamage("shard_map.svg", "<svg><script>alert(1)</script></svg>",
               ": byte 12: the element <script>");
  ExpectDamage("chunk_map.svg", "", ": byte 0: an element is missing");
}

}  // namespace report_test
}  // namespace apogee::tools
