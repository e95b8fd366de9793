// SPDX-License-Identifier: Apache-2.0

// Every collective of comm/local against what it must give, on 1 to 5 ranks, in every float dtype.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <numeric>
#include <thread>

#include "apogee/comm/mesh.h"
#include "apogee/core/rng.h"
#include "apogee/tests/support/run_ranks.h"

namespace apogee::comm {
namespace collectives_test {

using ::apogee::testing::LaunchRanks;
using ::apogee::testing::NumProcesses;
using ::apogee::testing::RunRanks;

// What rank r holds at element i; exact in bf16, and so are its sums over 5 ranks.
double Value(int rank, int64_t i) { return static_cast<double>((rank + 1) * ((i % 7) - 3)); }

Tensor Make(const World& world, int64_t n, DType dtype, int64_t first = 0) {
  std::vector<double> values;
  for (int64_t i = 0; i < n; ++i) values.push_back(Value(world.rank(), first + i));
  return Tensor::FromVector<double>(values, {n}, world.context(), dtype);
}

class CollectivesTest : public ::testing::TestWithParam<std::tuple<int, int64_t, DType>> {
 protected:
  int size() const { return std::get<0>(GetParam()); }
  int64_t n() const { return std::get<1>(GetParam()); }
  DType dtype() const { return std::get<2>(GetParam()); }
  double Sum(int64_t i) const {
    double sum = 0;
    for (int r = 0; r < size(); ++r) sum += Value(r, i);
    return sum;
  }
};

TEST_P(CollectivesTest, AllReduceSumAndMax) {
  RunRanks(size(), [&](World& world) {
    const Tensor sum = Make(world, n(), dtype()), max = Make(world, n(), dtype());
    world.group()->AllReduce(sum);
    world.group()->AllReduce(max, ReduceOp::kMax);
    const auto s = sum.ToVector<double>(), m = max.ToVector<double>();
    for (int64_t i = 0; i < n(); ++i) {
      ASSERT_EQ(s[static_cast<size_t>(i)], Sum(i));
      ASSERT_EQ(m[static_cast<size_t>(i)], std::max(Value(0, i), Value(size() - 1, i)));
    }
  });
}

TEST_P(CollectivesTest, ReduceScatterAndAllGather) {
  RunRanks(size(), [&](World& world) {
    const Tensor input = Make(world, n() * size(), dtype());
    const Tensor slice = Tensor::Empty({n()}, dtype(), world.context());
    world.group()->ReduceScatter(slice, input);
    // In place gives the same.
    const Tensor own = input.Slice(0, world.rank() * n(), n());
    world.group()->ReduceScatter(own, input);
    EXPECT_EQ(own.ToVector<double>(), slice.ToVector<double>());
    const auto part = slice.ToVector<double>();
    for (int64_t i = 0; i < n(); ++i)
      ASSERT_EQ(part[static_cast<size_t>(i)], Sum(world.rank() * n() + i));

    const Tensor full = Tensor::Empty({n() * size()}, dtype(), world.context());
    world.group()->AllGather(full, slice);
    const auto all = full.ToVector<double>();
    for (int64_t i = 0; i < n() * size(); ++i) ASSERT_EQ(all[static_cast<size_t>(i)], Sum(i));
  });
}

TEST_P(CollectivesTest, BroadcastReduceAllToAll) {
  RunRanks(size(), [&](World& world) {
    for (int root = 0; root < size(); ++root) {
      const Tensor b = Make(world, n(), dtype()), r = Make(world, n(), dtype());
      world.group()->Broadcast(b, root);
      world.group()->Reduce(r, root);
      const auto got = b.ToVector<double>(), reduced = r.ToVector<double>();
      for (int64_t i = 0; i < n(); ++i) {
        ASSERT_EQ(got[static_cast<size_t>(i)], Value(root, i));
        ASSERT_EQ(reduced[static_cast<size_t>(i)],
                  world.rank() == root ? Sum(i) : Value(world.rank(), i));
      }
    }
    const Tensor input = Make(world, n() * size(), dtype());
    const Tensor output = Tensor::Empty({n() * size()}, dtype(), world.context());
    world.group()->AllToAll(output, input);
    const auto got = output.ToVector<double>();
    for (int r = 0; r < size(); ++r) {
      for (int64_t i = 0; i < n(); ++i) {
        ASSERT_EQ(got[static_cast<size_t>(r * n() + i)], Value(r, world.rank() * n() + i));
      }
    }
  });
}

// Rank i sends i * j * n / 4 elements to rank j: none from and to rank 0, and more than one
// message.
TEST_P(CollectivesTest, AllToAllOfUnequalParts) {
  RunRanks(size(), [&](World& world) {
    const auto count = [&](int from, int to) { return int64_t{from} * to * n() / 4; };
    std::vector<int64_t> sends, receives;
    for (int r = 0; r < size(); ++r) {
      sends.push_back(count(world.rank(), r));
      receives.push_back(count(r, world.rank()));
    }
    const int64_t num_sent = std::accumulate(sends.begin(), sends.end(), int64_t{0});
    const int64_t num_received = std::accumulate(receives.begin(), receives.end(), int64_t{0});
    const Tensor input = Make(world, num_sent, dtype());
    const Tensor output = Tensor::Empty({num_received}, dtype(), world.context());
    const Traffic before = world.group()->traffic();
    world.group()->AllToAll(output, receives, input, sends);
    const auto got = output.ToVector<double>();
    size_t at = 0;
    for (int r = 0; r < size(); ++r) {
      int64_t begin = 0;  // of this rank's part of rank r's input
      for (int to = 0; to < world.rank(); ++to) begin += count(r, to);
      for (int64_t i = 0; i < receives[static_cast<size_t>(r)]; ++i) {
        ASSERT_EQ(got[at++], Value(r, begin + i));
      }
    }
    const Traffic used = world.group()->traffic() - before;
    EXPECT_EQ(used.calls(CollectiveKind::kAllToAll), 1);
    EXPECT_EQ(used.bytes(CollectiveKind::kAllToAll),
              (num_sent - sends[static_cast<size_t>(world.rank())]) * DTypeSize(dtype()));
  });
}

TEST_P(CollectivesTest, SendAndRecvAroundARing) {
  RunRanks(size(), [&](World& world) {
    const int next = (world.rank() + 1) % size(), previous = (world.rank() + size() - 1) % size();
    const Tensor mine = Make(world, n(), dtype());
    const Tensor theirs = Tensor::Empty({n()}, dtype(), world.context());
    auto send = world.group()->SendAsync(mine, next);
    auto recv = world.group()->RecvAsync(theirs, previous);
    send->Wait();
    recv->Wait();
    const auto got = theirs.ToVector<double>();
    for (int64_t i = 0; i < n(); ++i) ASSERT_EQ(got[static_cast<size_t>(i)], Value(previous, i));
  });
}

INSTANTIATE_TEST_SUITE_P(
    Sizes, CollectivesTest,
    ::testing::Combine(::testing::Values(2, 3, 4, 5),
                       ::testing::Values(int64_t{0}, int64_t{1}, int64_t{1037}, int64_t{70001}),
                       ::testing::Values(DType::kF32, DType::kBF16, DType::kF16, DType::kF64)));

TEST(GroupTest, OneRankHasNoGroup) {
  RunRanks(1, [](World& world) { EXPECT_EQ(world.group(), nullptr); });
}

// The sum is rounded once: in bf16, 256 + 1 + 1 + … would otherwise stay 256.
TEST(GroupTest, SumsAccumulateInF32) {
  RunRanks(3, [](World& world) {
    const Tensor x =
        Tensor::Full({33}, DType::kBF16, world.rank() == 0 ? 256.0 : 1.0, world.context());
    world.group()->AllReduce(x);
    for (double value : x.ToVector<double>()) ASSERT_EQ(value, 258);
  });
}

// Sums over ranks form a balanced tree: splitting one rank's tree over two ranks changes no bit.
class SumsTest : public ::testing::TestWithParam<int64_t> {};
// Between processes small tensors, large ones and those of several chunks go different ways.
INSTANTIATE_TEST_SUITE_P(Sizes, SumsTest, ::testing::Values(501, 30011, 1300007));

TEST_P(SumsTest, DoNotDependOnTheNumberOfRanks) {
  const int64_t n = GetParam();
  auto leaf = [n](int part) {
    std::vector<float> values;
    // A third has digits that every addition must round: otherwise no order would show.
    for (int64_t i = 0; i < n; ++i) {
      values.push_back(
          (ToUniform(Philox({1, static_cast<uint32_t>(part)}, static_cast<uint64_t>(i))[0]) -
           0.5f) /
          3);
    }
    return values;
  };
  auto sum = [&](int num_ranks) {
    std::vector<float> result;
    RunRanks(num_ranks, [&](World& world) {
      // Each rank adds its share of 4 leaves as a tree, then the ranks add theirs.
      const int own = 4 / num_ranks;
      std::vector<std::vector<float>> partial;
      for (int k = 0; k < own; ++k) partial.push_back(leaf(world.rank() * own + k));
      for (size_t width = partial.size(); width > 1; width /= 2) {
        for (size_t k = 0; k < width / 2; ++k) {
          for (size_t i = 0; i < n; ++i) partial[k][i] = partial[2 * k][i] + partial[2 * k + 1][i];
        }
      }
      const Tensor x = Tensor::FromVector<float>(partial[0], {n}, world.context());
      if (world.group() != nullptr) world.group()->AllReduce(x);
      if (world.rank() == 0) result = x.ToVector<float>();
    });
    return result;
  };
  const std::vector<float> one = sum(1);
  EXPECT_EQ(sum(2), one);
  if (!apogee::testing::TooManyRanks(4)) EXPECT_EQ(sum(4), one);
}

TEST(GroupTest, ALaunchReturnsBeforeThePeersArrive) {
  RunRanks(2, [](World& world) {
    const Tensor x = Make(world, 100000, DType::kF32);
    const Tensor launched = Make(world, 1, DType::kF32);
    if (world.rank() == 0) {
      auto work = world.group()->AllReduceAsync(x);
      EXPECT_FALSE(work->IsDone());
      world.group()->Send(launched, 1);
      work->Wait();
      EXPECT_TRUE(work->IsDone());
    } else {
      world.group()->Recv(launched, 0);
      world.group()->AllReduce(x);
    }
    EXPECT_EQ(x.ToVector<double>()[6], 9);
  });
}

// Several collectives in flight on two groups, waited for in the reverse order.
TEST(GroupTest, ManyInFlight) {
  RunRanks(4, [](World& world) {
    const GroupPtr pair = world.NewGroup(world.rank() < 2 ? std::vector{0, 1} : std::vector{2, 3});
    std::vector<Tensor> tensors;
    std::vector<std::shared_ptr<Work>> works;
    for (int i = 0; i < 50; ++i) {
      tensors.push_back(Tensor::Full({3000}, DType::kF32, world.rank() + i, world.context()));
      works.push_back((i % 2 == 0 ? world.group() : pair)->AllReduceAsync(tensors.back()));
    }
    for (int i = 49; i >= 0; --i) {
      works[static_cast<size_t>(i)]->Wait();
      const double first = world.rank() < 2 ? 0 : 2;
      EXPECT_EQ(tensors[static_cast<size_t>(i)].ToVector<double>()[2999],
                i % 2 == 0 ? 6 + 4 * i : 2 * first + 1 + 2 * i);
    }
  });
}

// Two threads of a rank, each with its own group, in every order in which the machine runs them.
// Two handles of one group, as two plugins may hold, do not get the same duplicate.
TEST(GroupTest, DuplicatesOfTwoHandlesAreIndependent) {
  RunRanks(2, [](World& world) {
    const GroupPtr first = world.NewGroup({0, 1})->Duplicate(std::chrono::seconds(60));
    const GroupPtr second = world.NewGroup({0, 1})->Duplicate(std::chrono::seconds(60));
    const Tensor a = Tensor::Full({4}, DType::kF32, 1, world.context());
    const Tensor b = Tensor::Full({4}, DType::kF32, 10, world.context());
    // The ranks' threads come to them in any order.
    const auto& order = world.rank() == 0 ? std::pair(first, second) : std::pair(second, first);
    const auto one = order.first->AllReduceAsync(world.rank() == 0 ? a : b);
    const auto two = order.second->AllReduceAsync(world.rank() == 0 ? b : a);
    one->Wait();
    two->Wait();
    EXPECT_EQ(a.ToVector<float>(), std::vector<float>(4, 2));
    EXPECT_EQ(b.ToVector<float>(), std::vector<float>(4, 20));
  });
}

TEST(GroupTest, DuplicatesAreIndependent) {
  RunRanks(3, [](World& world) {
    const GroupPtr first = world.group()->Duplicate(std::chrono::seconds(60)),
                   second = world.group()->Duplicate(std::chrono::seconds(60));
    EXPECT_EQ(first->rank(), world.rank());
    EXPECT_EQ(first->world_ranks(), world.group()->world_ranks());
    const auto sum = [&world](const GroupPtr& group, int times, double from) {
      for (int i = 0; i < times; ++i) {
        const Tensor x = Tensor::Full({5}, DType::kF32, from + i + world.rank(), world.context());
        group->AllReduce(x);
        ASSERT_EQ(x.ToVector<double>()[4], 3 * (from + i) + 3);
      }
    };
    std::thread other([&] { sum(first, 200, 1000); });
    sum(second, 70, 5000);
    sum(world.group(), 100, 0);
    other.join();
  });
}

TEST(GroupTest, TrafficIsCounted) {
  RunRanks(2, [](World& world) {
    const Traffic before = world.group()->traffic();
    world.group()->AllReduce(Make(world, 100, DType::kF32));
    world.group()->AllReduce(Make(world, 10, DType::kBF16));
    const Tensor all = Tensor::Empty({20}, DType::kF64, world.context());
    world.group()->AllGather(all, Make(world, 10, DType::kF64));
    const Traffic traffic = world.group()->traffic() - before;
    EXPECT_EQ(traffic.calls(CollectiveKind::kAllReduce), 2);
    EXPECT_EQ(traffic.bytes(CollectiveKind::kAllReduce), 420);
    EXPECT_EQ(traffic.bytes(CollectiveKind::kAllGather), 160);
    EXPECT_EQ(traffic.total_calls(), 3);
  });
}

TEST(MeshTest, GroupsOfAxes) {
  RunRanks(8, [](World& world) {
    const Mesh mesh(world, {.dp = 2, .sp = 2, .tp = 2});
    EXPECT_EQ(mesh.coordinate(Axis::kDp), world.rank() / 4);
    EXPECT_EQ(mesh.coordinate(Axis::kTp), world.rank() % 2);
    EXPECT_EQ(mesh.group(Axis::kPp), nullptr);
    const int base = world.rank() - world.rank() % 2;
    EXPECT_EQ(mesh.group(Axis::kTp)->world_ranks(), (std::vector{base, base + 1}));
    const Tensor x = Tensor::Full({1}, DType::kF64, world.rank(), world.context());
    mesh.group({Axis::kDp, Axis::kSp})->AllReduce(x);
    EXPECT_EQ(x.Item(), world.rank() % 2 == 0 ? 0 + 2 + 4 + 6 : 1 + 3 + 5 + 7);
  });
  const absl::Status status =
      LaunchRanks({.num_ranks = 2}, [](World& world) { Mesh(world, {.tp = 3}); });
  EXPECT_NE(Message(status).find("tp 3 = 3 ranks, but the world has 2"), std::string::npos)
      << Message(status);
  EXPECT_EQ(Message(status).find("rank "), std::string::npos)
      << "one message for all: " << Message(status);
}

}  // namespace collectives_test
}  // namespace apogee::comm
