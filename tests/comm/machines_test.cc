// SPDX-License-Identifier: Apache-2.0

// All-reduces of groups that span machines: the bits of TreeReduce over all members, and no more
// bytes between machines than the hierarchy needs. Runs under mpirun, where
// APOGEE_RANKS_PER_MACHINE makes ranks of one machine count as several.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "apogee/comm/process/process_world.h"
#include "apogee/tests/support/run_ranks.h"
#include "apogee/tests/support/runs/rough_sums.h"

namespace apogee::comm {
namespace machines_test {

using ::apogee::testing::LaunchRanks;
using ::apogee::testing::NumProcesses;
using ::apogee::testing::RoughSums;
using ::apogee::testing::RunRanks;
using ::apogee::testing::ShareByRank;
using ::testing::AllOf;
using ::testing::HasSubstr;

int RanksPerMachine() {
  const char* value = std::getenv("APOGEE_RANKS_PER_MACHINE");
  return value == nullptr ? NumProcesses() : std::atoi(value);
}
int NumMachines() { return NumProcesses() / RanksPerMachine(); }

std::vector<int> AllRanks() {
  std::vector<int> ranks(static_cast<size_t>(NumProcesses()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// The bytes that this process sends to other machines while fn runs, of every process.
std::vector<double> BytesOf(World& world, const std::function<void()>& fn) {
  const int64_t before = process::BytesToOtherMachines();
  fn();
  std::vector<double> bytes(static_cast<size_t>(world.size()));
  bytes[static_cast<size_t>(world.rank())] =
      static_cast<double>(process::BytesToOtherMachines() - before);
  const Tensor all =
      Tensor::FromVector<double>(bytes, {world.size()}, world.context(), DType::kF64);
  world.group()->AllReduce(all);  // small: it goes along with the announcements
  return all.ToVector<double>();
}
double Sum(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

class MachinesTest : public ::testing::TestWithParam<std::tuple<DType, ReduceOp>> {
 protected:
  DType dtype() const { return std::get<0>(GetParam()); }
  ReduceOp op() const { return std::get<1>(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(All, MachinesTest,
                         ::testing::Combine(::testing::Values(DType::kF32, DType::kBF16,
                                                              DType::kF16, DType::kF64),
                                            ::testing::Values(ReduceOp::kSum, ReduceOp::kMax)));

TEST_P(MachinesTest, TheBitsAreThoseOfOneTree) {
  const RoughSums sums(AllRanks().size(), dtype(), op());
  RunRanks(NumProcesses(), [&](World& world) {
    for (const int64_t n : {0, 1, 5, 1025, 30011, 1300007}) {
      const Tensor x = sums.Addend(world.rank(), n, world.context());
      world.group()->AllReduce(x, op());
      sums.Check(x);
    }
  });
}

// Many more chunks than are gathered ahead, of partial sums as large as the addends or twice.
TEST(GroupsOnMachinesTest, ManyChunks) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const RoughSums sums(AllRanks().size(), dtype, ReduceOp::kSum);
    RunRanks(NumProcesses(), [&](World& world) {
      const Tensor x = sums.Addend(world.rank(), (9 << 20) + 3, world.context());
      world.group()->AllReduce(x);
      sums.Check(x);
    });
  }
}

// The partial sums of a column go to the other machines, and its result comes back from them.
TEST_P(MachinesTest, BytesBetweenMachines) {
  const int64_t n = 1300007, element = DTypeSize(dtype());
  const int64_t partial = dtype() == DType::kF64 ? 8 : 4;
  const RoughSums sums(AllRanks().size(), dtype(), op());
  RunRanks(NumProcesses(), [&](World& world) {
    const Tensor x = sums.Addend(world.rank(), n, world.context());
    const std::vector<double> bytes = BytesOf(world, [&] { world.group()->AllReduce(x, op()); });
    const double expected = static_cast<double>((partial + element) * n) * (NumMachines() - 1);
    EXPECT_EQ(Sum(bytes), expected);
    for (int machine = 0; machine < NumMachines(); ++machine) {
      double own = 0;
      for (int r = 0; r < RanksPerMachine(); ++r) {
        own += bytes[static_cast<size_t>(machine * RanksPerMachine() + r)];
      }
      // Shares are cut between cache lines.
      EXPECT_NEAR(own, expected / NumMachines(), 4096) << "machine " << machine;
    }
  });
}

// Groups that lie on machines in some other way.
struct OtherGroup {
  std::vector<int> members;
  double copies;  // of the tensor that go from machine to machine, in f32
};

std::vector<OtherGroup> OtherGroups() {
  const int p = RanksPerMachine(), m = NumMachines(), size = NumProcesses();
  std::vector<OtherGroup> groups;
  // The machines, and the members of each, the other way round.
  std::vector<int> members = AllRanks();
  std::ranges::reverse(members);
  groups.push_back({members, 2.0 * (m - 1)});
  // Two of each machine.
  members.clear();
  for (int machine = 0; machine < m; ++machine) {
    members.insert(members.end(), {machine * p, machine * p + p - 1});
  }
  groups.push_back({members, 2.0 * (m - 1)});
  // One of each machine.
  members.clear();
  for (int machine = 0; machine < m; ++machine) members.push_back(machine * p + machine % p);
  if (m > 1) groups.push_back({members, 2.0 * (m - 1)});
  // One after the other of every machine: no branches of the tree lie on one machine, and each
  // member sends its addends and its sums to all on other machines.
  members.clear();
  for (int local = 0; local < p; ++local) {
    for (int machine = 0; machine < m; ++machine) members.push_back(machine * p + local);
  }
  groups.push_back({members, 2.0 * (size - p)});
  // Blocks begin in the middle of a machine.
  members = AllRanks();
  std::ranges::rotate(members, members.begin() + 1);
  groups.push_back({members, 2.0 * (size - p)});
  // One machine.
  members.resize(static_cast<size_t>(p));
  std::iota(members.begin(), members.end(), 0);
  groups.push_back({members, 0});
  return groups;
}

TEST(GroupsOnMachinesTest, OtherGroups) {
  const int64_t n = 300007;
  for (const OtherGroup& other : OtherGroups()) {
    const RoughSums sums(other.members.size(), DType::kF32, ReduceOp::kSum);
    RunRanks(NumProcesses(), [&](World& world) {
      const auto own = std::ranges::find(other.members, world.rank());
      const double copies = Sum(BytesOf(world,
                                        [&] {
                                          if (own == other.members.end()) return;
                                          const GroupPtr group = world.NewGroup(other.members);
                                          const Tensor x =
                                              sums.Addend(group->rank(), n, world.context());
                                          group->AllReduce(x);
                                          sums.Check(x);
                                        })) /
                            static_cast<double>(4 * n);
      EXPECT_NEAR(copies, other.copies, 1e-3) << FormatRanks(other.members);
    });
  }
}

// Uneven machines: the last member is alone.
TEST(GroupsOnMachinesTest, GroupsWithoutEqualMachinesAreExact) {
  std::vector<int> members = AllRanks();
  members.pop_back();
  const RoughSums sums(members.size(), DType::kBF16, ReduceOp::kSum);
  RunRanks(NumProcesses(), [&](World& world) {
    if (world.rank() == NumProcesses() - 1) return;
    const GroupPtr group = world.NewGroup(members);
    const Tensor x = sums.Addend(group->rank(), 300007, world.context());
    group->AllReduce(x);
    sums.Check(x);
  });
}

TEST(GroupsOnMachinesTest, SeveralAtOnce) {
  std::vector<int> backwards = AllRanks();
  std::ranges::reverse(backwards);
  const std::vector<RoughSums> sums = {{backwards.size(), DType::kF32, ReduceOp::kSum},
                                       {backwards.size(), DType::kF16, ReduceOp::kSum},
                                       {backwards.size(), DType::kF64, ReduceOp::kMax}};
  RunRanks(NumProcesses(), [&](World& world) {
    const GroupPtr group = world.NewGroup(backwards);
    std::vector<Tensor> tensors;
    std::vector<std::shared_ptr<Work>> works;
    for (size_t i = 0; i < 12; ++i) {
      const GroupPtr& chosen = i % 2 == 0 ? world.group() : group;
      const int64_t n = 700 + 90001 * static_cast<int64_t>(i % 5);
      tensors.push_back(sums[i % 3].Addend(chosen->rank(), n, world.context()));
      works.push_back(
          chosen->AllReduceAsync(tensors.back(), i % 3 == 2 ? ReduceOp::kMax : ReduceOp::kSum));
    }
    for (size_t i = 12; i-- > 0;) {
      works[i]->Wait();
      sums[i % 3].Check(tensors[i]);
    }
  });
}

// A rank that throws while data moves: what everyone has called ends, the next call names it.
TEST(GroupsOnMachinesTest, ARankThatThrowsIsNamed) {
  const RoughSums sums(AllRanks().size(), DType::kF32, ReduceOp::kSum);
  const int culprit = NumProcesses() - 1;
  std::vector<std::string> messages(static_cast<size_t>(NumProcesses()));
  const absl::Status status =
      LaunchRanks({.num_ranks = NumProcesses(), .threads_per_rank = 1, .timeout_seconds = 20},
                  [&](World& world) {
                    const Tensor x = sums.Addend(world.rank(), 1300007, world.context());
                    const Tensor y = sums.Addend(world.rank(), 1300007, world.context());
                    const auto work = world.group()->AllReduceAsync(x);
                    if (world.rank() == culprit) throw std::runtime_error("the disk is on fire");
                    work->Wait();
                    sums.Check(x);
                    try {
                      world.group()->AllReduce(y);
                    } catch (const CommError& error) {
                      messages[static_cast<size_t>(world.rank())] = error.what();
                      throw;
                    }
                  });
  ShareByRank(messages);
  EXPECT_EQ(Message(status), "rank " + std::to_string(culprit) + ": the disk is on fire");
  for (int r = 0; r < culprit; ++r) {
    EXPECT_THAT(messages[static_cast<size_t>(r)],
                AllOf(HasSubstr("all_reduce(sum, 1300007 x f32) #1"),
                      HasSubstr("rank " + std::to_string(culprit) + " failed: the disk")));
  }
}

}  // namespace machines_test
}  // namespace apogee::comm
