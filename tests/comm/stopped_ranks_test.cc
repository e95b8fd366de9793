// SPDX-License-Identifier: Apache-2.0

// A job that is stopped for longer than its timeout (Ctrl-Z) and goes on is none the worse.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <functional>

#include "apogee/comm/launch.h"
#include "apogee/tests/comm/tcp/tcp_jobs.h"

namespace apogee::comm {
namespace stopped_ranks_test {

using std::chrono::milliseconds;

// Rank 0 waits in a collective for the last, which takes 0.8 s of the time in which it is not
// stopped.
absl::Status Train(int num_ranks) {
  return launch({.num_ranks = num_ranks, .threads_per_rank = 1, .timeout_seconds = 3},
                [](World& world) {
                  if (world.rank() == world.size() - 1) {
                    for (int i = 0; i < 80; ++i) std::this_thread::sleep_for(milliseconds(10));
                  }
                  world.group()->Barrier();
                });
}

// Starts these in processes of their own, stops all after 0.4 s for 5 s, and returns whether all
// ended well.
bool SurviveAStop(const std::vector<std::function<absl::Status()>>& programs) {
  std::vector<pid_t> children;
  for (const auto& program : programs) {
    children.push_back(fork());
    if (children.back() != 0) continue;
    const absl::Status status = program();
    if (!status.ok()) std::fprintf(stderr, "%s\n", Message(status).c_str());
    _exit(status.ok() ? 0 : 1);
  }
  std::this_thread::sleep_for(milliseconds(400));
  for (const pid_t child : children) kill(child, SIGSTOP);
  std::this_thread::sleep_for(milliseconds(5000));
  for (const pid_t child : children) kill(child, SIGCONT);
  bool well = true;
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    well = well && status == 0;
  }
  return well;
}

TEST(StoppedRanksTest, Threads) {
  EXPECT_TRUE(SurviveAStop({[] { return Train(2); }}));
}

TEST(StoppedRanksTest, Processes) {
  const std::string address = "127.0.0.1:" + std::to_string(tcp::FreePort());
  const auto as_rank = [&](const char* rank) {
    return [&address, rank] {
      setenv("APOGEE_RANK", rank, 1);
      setenv("APOGEE_NUM_RANKS", "2", 1);
      setenv("APOGEE_ADDRESS", address.c_str(), 1);
      return Train(2);
    };
  };
  EXPECT_TRUE(SurviveAStop({as_rank("0"), as_rank("1")}));
}

}  // namespace stopped_ranks_test
}  // namespace apogee::comm
