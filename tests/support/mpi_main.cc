// main of the tests under mpirun: every process runs every test. Rank 0 prints what a test prints,
// the others their failures only, and the program fails where any process has failed.
#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "apogee/comm/launch.h"

namespace {

class FailurePrinter : public ::testing::EmptyTestEventListener {
 public:
  explicit FailurePrinter(int rank) : rank_(rank) {}

 private:
  // OnTestPartResult runs under the lock that asking for the current test takes.
  void OnTestStart(const ::testing::TestInfo& test) override { test_ = test.name(); }
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::fprintf(stderr, "rank %d, %s: %s:%d: %s\n", rank_, test_.c_str(), result.file_name(),
                 result.line_number(), result.message());
  }
  int rank_;
  std::string test_;
};

}  // namespace

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  int rank = 0, size = 0;
  const absl::Status status = apogee::comm::launch({}, [&](apogee::comm::World& world) {
    rank = world.rank();
    size = world.size();
  });
  if (!status.ok() || size < 2) {
    std::fprintf(stderr, "start me with mpirun on several processes%s%s\n", status.ok() ? "" : ": ",
                 apogee::Message(status).c_str());
    return 2;
  }
  if (rank != 0) {
    ::testing::TestEventListeners& listeners = ::testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new FailurePrinter(rank));
  }
  return RUN_ALL_TESTS();
}
