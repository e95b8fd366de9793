// SPDX-License-Identifier: Apache-2.0

// main of the tests whose ranks may be threads or processes. Started alone it is gtest's main.
// Under mpirun and apogee run every process runs every test: rank 0 prints as usual, the others
// print only their failures. The program fails if any process failed.
//
//   comm_collectives_test                                    # ranks are threads
//   mpirun -np 4 comm_collectives_test --hang-rank 2 --timeout-seconds 2
//
// --hang-rank: this rank never reaches the first collective, and the suite must end by itself.
// --timeout-seconds: an upper limit for the timeouts of all launches.
// --only-source: see tests/support/only_source.h. APOGEE_TEST_SHARD: tests/support/test_shard.h.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "apogee/tests/support/launch_ranks.h"
#include "apogee/tests/support/only_source.h"
#include "apogee/tests/support/test_shard.h"

namespace {

class FailurePrinter : public ::testing::EmptyTestEventListener {
 public:
  explicit FailurePrinter(int rank) : rank_(rank) {}

 private:
  // Remember the name: OnTestPartResult holds the lock that asking for the current test would take.
  void OnTestStart(const ::testing::TestInfo& test) override { test_ = test.name(); }
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::fprintf(stderr, "rank %d, %s: %s:%d: %s\n", rank_, test_.c_str(), result.file_name(),
                 result.line_number(), result.message());
  }
  int rank_;
  std::string test_;
};

class Hang : public ::testing::EmptyTestEventListener {
  void OnTestStart(const ::testing::TestInfo& /*test*/) override {
    while (true) std::this_thread::sleep_for(std::chrono::hours(1));
  }
};

struct Flags {
  std::optional<int> hang_rank;
  std::optional<double> timeout_seconds;
};

// Parses the arguments that gtest left; nothing if one is not understood.
std::optional<Flags> ParseFlags(int argc, char** argv) {
  Flags flags;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    if (i + 1 == argc) return std::nullopt;
    char* end = nullptr;
    const double value = std::strtod(argv[i + 1], &end);
    if (*end != '\0' || !(value >= 0)) return std::nullopt;
    if (name == "--hang-rank") {
      flags.hang_rank = static_cast<int>(value);
    } else if (name == "--timeout-seconds" && value > 0) {
      flags.timeout_seconds = value;
    } else {
      return std::nullopt;
    }
  }
  return flags;
}

}  // namespace

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (!apogee::testing::TakeOnlySource(argc, argv)) return 2;
  const std::optional<Flags> flags = ParseFlags(argc, argv);
  const auto processes = apogee::comm::StartedProcesses();
  if (!processes.ok()) {
    std::fprintf(stderr, "%s\n", apogee::Message(processes.status()).c_str());
    return 2;
  }
  if (!apogee::testing::TakeShard(processes->size)) return 2;
  const int rank = processes->rank;
  if (!flags || flags->hang_rank.value_or(0) >= processes->size) {
    if (rank == 0) {
      std::fprintf(stderr,
                   "usage: %s [gtest's flags] [--only-source=FILE] [--hang-rank 0..%d] "
                   "[--timeout-seconds S]\n",
                   argv[0], processes->size - 1);
    }
    return 2;
  }
  if (flags->timeout_seconds) {
    setenv(apogee::testing::kTimeoutVariable, std::to_string(*flags->timeout_seconds).c_str(), 1);
  }
  ::testing::TestEventListeners& listeners = ::testing::UnitTest::GetInstance()->listeners();
  if (rank != 0) {
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new FailurePrinter(rank));
  }
  if (flags->hang_rank == rank) listeners.Append(new Hang);
  return RUN_ALL_TESTS();
}
