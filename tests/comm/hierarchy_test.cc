// SPDX-License-Identifier: Apache-2.0

// The hierarchical all-reduce of all members at once, without MPI: transfers match and end in
// random order, nothing is sent before its receive is posted, and whoever touches memory that a
// transfer has, or waits in a circle, is found out.
#include "apogee/comm/process/hierarchy.h"

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <random>

#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tests/support/runs/rough_sums.h"

namespace apogee::comm::process {
namespace hierarchy_test {

using ::apogee::testing::RoughSums;

class RandomNetwork : public Transfers {
 public:
  explicit RandomNetwork(uint32_t seed) : random_(seed) {}

  void Send(Operation& operation, size_t peer, int tag, const void* data, int64_t bytes,
            std::function<void()> then) override {
    const auto* const chars = static_cast<const char*>(data);
    Channel& channel = channels_[{operation.self, peer, tag}];
    channel.sends.push_back({chars, {chars, static_cast<size_t>(bytes)}, std::move(then)});
  }
  void Receive(Operation& operation, size_t peer, int tag, void* data, int64_t bytes,
               std::function<void()> then) override {
    auto* const chars = static_cast<char*>(data);
    std::memset(chars, 0x5a, static_cast<size_t>(bytes));
    Channel& channel = channels_[{peer, operation.self, tag}];
    channel.receives.push_back({chars, static_cast<size_t>(bytes), std::move(then)});
  }
  int MachineOf(int) const override { return 0; }

  // Returns whether everything that was posted has ended.
  bool Run() {
    while (true) {
      std::vector<Channel*> matching;
      bool idle = true;
      for (auto& [key, channel] : channels_) {
        idle = idle && channel.sends.empty() && channel.receives.empty();
        if (!channel.sends.empty() && !channel.receives.empty()) matching.push_back(&channel);
      }
      const size_t choices = matching.size() + ending_.size();
      if (choices == 0) return idle;
      const size_t choice = random_() % choices;
      if (choice < matching.size()) {
        Match(*matching[choice]);
      } else {
        std::swap(ending_[choice - matching.size()], ending_.back());
        const auto end = std::move(ending_.back());
        ending_.pop_back();
        end();
      }
    }
  }

 private:
  struct Sent {
    const char* data;
    std::string before;  // what was to be sent
    std::function<void()> then;
  };
  struct Received {
    char* data;
    size_t bytes;
    std::function<void()> then;
  };
  struct Channel {
    std::deque<Sent> sends;
    std::deque<Received> receives;
  };

  void Match(Channel& channel) {
    auto sent = std::make_shared<Sent>(std::move(channel.sends.front()));
    const Received received = std::move(channel.receives.front());
    channel.sends.pop_front();
    channel.receives.pop_front();
    ASSERT_EQ(sent->before.size(), received.bytes);
    std::memcpy(received.data, sent->before.data(), received.bytes);
    ending_.push_back(received.then);
    ending_.push_back([sent] {
      EXPECT_EQ(std::memcmp(sent->data, sent->before.data(), sent->before.size()), 0)
          << "changed while it was being sent";
      sent->then();
    });
  }

  std::mt19937 random_;
  std::map<std::tuple<size_t, size_t, int>, Channel> channels_;  // from, to, tag
  std::vector<std::function<void()>> ending_;
};

struct Case {
  size_t machines, local;
  int64_t n;
  DType dtype;
  uint32_t seeds;
};

class HierarchyTest : public ::testing::TestWithParam<Case> {};

TEST_P(HierarchyTest, InAnyOrder) {
  const auto [machines, local, n, dtype, seeds] = GetParam();
  const size_t size = machines * local;
  const RoughSums sums(size, dtype, ReduceOp::kSum);
  const ContextPtr context = CpuContext({.num_threads = 1});
  for (uint32_t seed = 0; seed < seeds; ++seed) {
    RandomNetwork network(seed);
    std::vector<std::shared_ptr<Operation>> operations;
    for (size_t self = 0; self < size; ++self) {
      const auto operation = std::make_shared<Operation>();
      const Tensor x = sums.Addend(static_cast<int>(self), n, context);
      operation->call = {.kind = CollectiveKind::kAllReduce, .input = x, .output = x};
      operation->self = self;
      operation->members.resize(size);
      for (size_t peer = 0; peer < size; ++peer) {
        operation->members[peer].tag = static_cast<int>(1 + 2 * peer);
      }
      operations.push_back(operation);
    }
    for (const auto& operation : operations) {
      StartHierarchicalAllReduce(*operation, network, local);
    }
    ASSERT_TRUE(network.Run()) << "waits in a circle, seed " << seed;
    for (const auto& operation : operations) sums.Check(operation->call.output);
  }
}

// Few elements, of which not every member gets any; several chunks; more than are gathered ahead.
INSTANTIATE_TEST_SUITE_P(Sizes, HierarchyTest,
                         ::testing::Values(Case{4, 8, 600, DType::kF32, 5},
                                           Case{5, 4, 1025, DType::kBF16, 20},
                                           Case{2, 2, 1300007, DType::kF64, 5},
                                           Case{7, 2, 1300007, DType::kF16, 5},
                                           Case{3, 2, (7 << 20) + 5, DType::kF32, 4}));

}  // namespace hierarchy_test
}  // namespace apogee::comm::process
