// SPDX-License-Identifier: Apache-2.0

#include "apogee/booster/metrics/metrics.h"

#include <sys/resource.h>
#include <sys/stat.h>

#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "apogee/booster/metrics/crc32c.h"
#include "apogee/booster/metrics/progress.h"
#include "apogee/core/process_memory.h"
#include "apogee/tests/support/files/temp_dir.h"
#include "apogee/tests/support/files/tfrecord.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace apogee {
namespace metrics_test {

using ::apogee::testing::Event;
using ::apogee::testing::ReadEvents;
using ::apogee::testing::ReadFile;
using ::apogee::testing::TempDir;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

std::vector<nlohmann::json> ReadJsonLines(const std::string& path) {
  std::vector<nlohmann::json> rows;
  std::istringstream text(ReadFile(path));
  for (std::string line; std::getline(text, line);) rows.push_back(nlohmann::json::parse(line));
  return rows;
}

std::vector<std::string> EventFiles(const std::string& directory) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("events.out.tfevents.")) files.push_back(entry.path().string());
  }
  return files;
}

std::unique_ptr<MetricsLogger> Quiet(const std::string& out, const MemoryLedger* ledger = nullptr) {
  return ValueOrThrow(MetricsLogger::Create(
      {.out = out, .total_steps = 3, .log_every = 2, .console = nullptr, .ledger = ledger}));
}

// RFC 3720, appendix B.4.
TEST(Crc32c, PublishedVectors) {
  EXPECT_EQ(Crc32c("123456789", 9), 0xe3069283u);
  EXPECT_EQ(Crc32c(nullptr, 0), 0u);
  EXPECT_EQ(Crc32c(std::string(32, '\0').data(), 32), 0x8a9136aau);
  EXPECT_EQ(Crc32c(std::string(32, '\xff').data(), 32), 0x62a8ab43u);
  std::string ascending, descending;
  for (int i = 0; i < 32; ++i) {
    ascending.push_back(static_cast<char>(i));
    descending.push_back(static_cast<char>(31 - i));
  }
  EXPECT_EQ(Crc32c(ascending.data(), 32), 0x46dd794eu);
  EXPECT_EQ(Crc32c(descending.data(), 32), 0x113fdb5cu);
  EXPECT_EQ(apogee::testing::UnmaskedCrc(MaskedCrc32c("123456789", 9)), 0xe3069283u);
}

TEST(MetricsLogger, WritesEveryStepAsJson) {
  const TempDir dir;
  MemoryLedger ledger;
  ledger.Add(MemoryCategory::kParameter, 1000);
  const auto metrics = Quiet(dir / "new/out", &ledger);
  const double loss = static_cast<double>(5.5451776f);
  ASSERT_TRUE(
      metrics->Step({.step = 1, .loss = loss, .lr = 1e-3, .grad_norm = 0.5, .tokens = 64}).ok());
  ASSERT_TRUE(
      metrics
          ->Step({.step = 2, .loss = 2, .lr = 1e-3, .tokens = 64, .flops = 4e6, .peak_flops = 2e9})
          .ok());
  ASSERT_TRUE(metrics->Validation({.step = 2, .loss = 1.75, .tokens = 128, .bytes = 512}).ok());

  const auto rows = ReadJsonLines(dir / "new/out/metrics.jsonl");
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0]["step"], 1);
  EXPECT_EQ(static_cast<float>(rows[0]["loss"]), 5.5451776f);
  EXPECT_EQ(rows[0]["lr"], 1e-3);
  EXPECT_EQ(rows[0]["grad_norm"], 0.5);
  EXPECT_TRUE(rows[1]["grad_norm"].is_null());
  EXPECT_GT(rows[0]["tokens_per_s"], 0);
  EXPECT_FALSE(rows[0].contains("share_of_peak"));
  const double seconds = rows[1]["seconds"];
  EXPECT_NEAR(rows[1]["share_of_peak"], 2e-3 / seconds, 1e-6 / seconds);
  EXPECT_EQ(rows[0]["memory"]["parameter"], 1000);
  EXPECT_EQ(rows[0]["memory"]["total"], 1000);
  EXPECT_EQ(rows[0]["memory"].size(), kNumMemoryCategories + 2u);
  const auto validations = ReadJsonLines(dir / "new/out/validation.jsonl");
  ASSERT_EQ(validations.size(), 1u);
  EXPECT_EQ(validations[0]["loss"], 1.75);
  EXPECT_EQ(validations[0]["bytes"], 512);
  EXPECT_THAT(
      ReadFile(dir / "new/out/train.log"),
      HasSubstr("validation loss 1.7500 nats per token, 0.4375 nats per byte (0.631 bits)"));
}

TEST(MetricsLogger, RefusesALossThatIsNotFinite) {
  const TempDir dir;
  const auto metrics = Quiet(dir.path());
  for (const double loss : {kNan, HUGE_VAL}) {
    EXPECT_THAT(Message(metrics->Step({.step = 17, .loss = loss})),
                StartsWith("step 17: the loss is "));
  }
  EXPECT_FALSE(metrics->Validation({.step = 17, .loss = kNan}).ok());
  EXPECT_EQ(ReadFile(dir / "metrics.jsonl") + ReadFile(dir / "validation.jsonl"), "");
}

TEST(MetricsLogger, AResumedRunKeepsTheRowsUpToThere) {
  const TempDir dir;
  {
    const auto first = Quiet(dir.path());
    for (int64_t step = 1; step <= 3; ++step) {
      ASSERT_TRUE(first->Step({.step = step, .loss = 1.0 * static_cast<double>(step)}).ok());
      ASSERT_TRUE(first->Validation({.step = step, .loss = 1}).ok());
    }
  }
  // What a process that ends within a write may leave.
  std::ofstream(dir / "metrics.jsonl", std::ios::app) << "{\"step\":2,\"lo";
  const std::string log = ReadFile(dir / "train.log");
  const auto second = ValueOrThrow(MetricsLogger::Create(
      {.out = dir.path(), .total_steps = 4, .resumed_step = 2, .console = nullptr}));
  ASSERT_TRUE(second->Step({.step = 3, .loss = 30}).ok());
  const auto rows = ReadJsonLines(dir / "metrics.jsonl");
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0]["loss"], 1.0);
  EXPECT_EQ(rows[1]["loss"], 2.0);
  EXPECT_EQ(rows[2]["loss"], 30.0);
  EXPECT_EQ(ReadJsonLines(dir / "validation.jsonl").size(), 2u);
  EXPECT_THAT(ReadFile(dir / "train.log"), StartsWith(log));
  EXPECT_GT(ReadFile(dir / "train.log").size(), log.size());
}

TEST(MetricsLogger, TensorBoardFileReadsBack) {
  const TempDir dir;
  const auto metrics = Quiet(dir.path());
  for (int64_t step = 1; step <= 3; ++step) {
    ASSERT_TRUE(metrics->Step({.step = step, .loss = 3.0 / step, .lr = 0.5, .tokens = 8}).ok());
  }
  ASSERT_TRUE(metrics->Validation({.step = 3, .loss = 1.25}).ok());
  const auto files = EventFiles(dir.path());
  ASSERT_EQ(files.size(), 1u);
  const std::vector<Event> events = ReadEvents(files[0]);
  ASSERT_EQ(events.size(), 6u);
  EXPECT_EQ(events[0].file_version, "brain.Event:2");
  EXPECT_GT(events[0].wall_time, 1.6e9);
  EXPECT_EQ(events[1].session_status, 1);
  EXPECT_EQ(events[1].step, 1);
  EXPECT_EQ(events[3].step, 2);
  EXPECT_EQ(events[3].scalars.at("train/loss"), 1.5f);
  EXPECT_EQ(events[3].scalars.at("train/lr"), 0.5f);
  EXPECT_EQ(events[5].scalars.at("validation/loss"), 1.25f);
}

TEST(MetricsLogger, OneEventFilePerRun) {
  const TempDir dir;
  Quiet(dir.path());
  Quiet(dir.path());
  EXPECT_EQ(EventFiles(dir.path()).size(), 2u);
}

TEST(MetricsLogger, ADamagedEventFileIsNoticed) {
  const TempDir dir;
  Quiet(dir.path());
  std::string bytes = ReadFile(EventFiles(dir.path())[0]);
  bytes[bytes.size() / 2] ^= 1;
  EXPECT_THROW(ReadEvents(dir.Write("damaged", bytes)), std::runtime_error);
}

TEST(MetricsLogger, LogHasPlainLines) {
  const TempDir dir;
  MemoryLedger ledger;
  ledger.Add(MemoryCategory::kGradient, 3 << 20);
  const auto metrics = Quiet(dir.path(), &ledger);
  ASSERT_TRUE(metrics->Note("model: tiny").ok());
  for (int64_t step = 1; step <= 3; ++step) {
    ASSERT_TRUE(
        metrics->Step({.step = step, .loss = 2.5, .lr = 1e-3, .grad_norm = 1, .tokens = 8}).ok());
  }
  const std::string log = ReadFile(dir / "train.log");
  EXPECT_THAT(log, StartsWith("model: tiny\nstep 1/3  loss 2.5000  lr 1.00e-03  norm 1.00  "));
  EXPECT_THAT(log, HasSubstr("\nstep 2/3  loss 2.5000"));
  EXPECT_THAT(log, HasSubstr("\nstep 3/3  loss 2.5000"));
  EXPECT_THAT(log, HasSubstr("  eta 0:00  peak 3.0 MiB (grad 3.0)\n"));
  EXPECT_EQ(log.find('\r'), std::string::npos);
}

TEST(MetricsLogger, AnUnwritableDirectoryIsAnError) {
  const TempDir dir;
  const std::string file = dir.Write("file", "x");
  const auto metrics = MetricsLogger::Create({.out = file + "/out", .console = nullptr});
  ASSERT_FALSE(metrics.ok());
  EXPECT_THAT(Message(metrics.status()), StartsWith("cannot make the output directory " + file));
  EXPECT_FALSE(MetricsLogger::Create({.log_every = 0, .console = nullptr}).ok());
}

TEST(MetricsLogger, AStepHasOneRow) {
  const TempDir dir;
  {
    const auto first = Quiet(dir.path());
    EXPECT_FALSE(first->has_validation(3));
    ASSERT_TRUE(first->Step({.step = 3, .loss = 1}).ok());
    ASSERT_TRUE(first->Validation({.step = 3, .loss = 1}).ok());
    EXPECT_TRUE(first->has_validation(3));
  }
  const std::string row = ReadFile(dir / "validation.jsonl");
  std::ofstream(dir / "validation.jsonl", std::ios::app) << row;  // as earlier versions did
  const auto again = ValueOrThrow(MetricsLogger::Create(
      {.out = dir.path(), .total_steps = 3, .resumed_step = 3, .console = nullptr}));
  EXPECT_TRUE(again->has_validation(3));
  ASSERT_TRUE(again->Validation({.step = 3, .loss = 1}).ok());
  EXPECT_EQ(ReadFile(dir / "validation.jsonl"), row);
}

TEST(LineFile, AFullDiskIsAnError) {
  const TempDir dir;
  const auto file = ValueOrThrow(LineFile::Create(dir / "file"));
  ASSERT_TRUE(file->Append("one\n").ok());
  const auto before = std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit{};
  getrlimit(RLIMIT_FSIZE, &limit);
  const rlimit small{.rlim_cur = 6, .rlim_max = limit.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  const absl::Status status = file->Append("two\n");
  setrlimit(RLIMIT_FSIZE, &limit);
  std::signal(SIGXFSZ, before);
  EXPECT_THAT(Message(status),
              StartsWith("cannot write to " + (dir / "file") + ": File too large"));
  EXPECT_EQ(ReadFile(dir / "file"), "one\n") << "no part of a record";
}

TEST(LineFile, OnlyARegularFileIsWritten) {
  const TempDir dir;
  dir.Write("precious", "text");
  std::filesystem::create_symlink(dir / "precious", dir / "link");
  ASSERT_EQ(mkfifo((dir / "fifo").c_str(), 0600), 0);
  const std::vector<std::pair<std::string, std::string>> cases = {
      {dir / "link", "a symbolic link"}, {dir / "fifo", "a FIFO"}, {"/dev/null", "a device"}};
  for (const auto& [path, what] : cases) {
    for (const absl::Status& status :
         {LineFile::Create(path).status(), LineFile::Continue(path).status()}) {
      EXPECT_THAT(Message(status), StartsWith("cannot write " + path + ": it is " + what));
      EXPECT_THAT(Message(status), HasSubstr("remove it or choose another place"));
    }
  }
  EXPECT_EQ(ReadFile(dir / "precious"), "text");
}

TEST(Progress, Durations) {
  EXPECT_EQ(FormatDuration(0.4), "0:00");
  EXPECT_EQ(FormatDuration(95), "1:35");
  EXPECT_EQ(FormatDuration(3723), "1:02:03");
}

TEST(ProcessMemory, PeakIsAtLeastWhatIsResident) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer's own memory grows with the block";
#endif
  const auto memory = ReadProcessMemory();
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_GT(memory->resident_bytes, 1 << 20);
  EXPECT_GE(memory->peak_resident_bytes, memory->resident_bytes);
  EXPECT_GT(memory->file_bytes, 0);
  EXPECT_LT(memory->file_bytes, memory->resident_bytes);
  std::vector<char> block(32 << 20, 1);
  EXPECT_NEAR(ReadProcessMemory()->own_bytes() - memory->own_bytes(), 32 << 20, 1 << 20);
  EXPECT_GE(ReadProcessMemory()->peak_own_bytes() - memory->own_bytes(), 31 << 20);
}

}  // namespace metrics_test
}  // namespace apogee
