// SPDX-License-Identifier: Apache-2.0

// The tree of sums in two halves, as processes on several machines compute it, against the tree in
// one; which groups may do so; and what the environment says about machines.
#include "apogee/comm/tree_reduce.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "apogee/comm/process/hierarchy.h"
#include "apogee/comm/transport/machines.h"
#include "apogee/tests/support/runs/rough_sums.h"

namespace apogee::comm {
namespace tree_reduce_test {

using ::apogee::testing::RoughAddend;
using ::testing::HasSubstr;

class TreeHalvesTest : public ::testing::TestWithParam<std::tuple<DType, ReduceOp>> {
 protected:
  DType dtype() const { return std::get<0>(GetParam()); }
  ReduceOp op() const { return std::get<1>(GetParam()); }

  std::string Whole(const std::vector<std::string>& addends) const {
    std::string result(addends[0].size(), '\0');
    std::vector<const void*> inputs;
    for (const std::string& addend : addends) inputs.push_back(addend.data());
    void* const outputs[] = {result.data()};
    TreeReduce("test", dtype(), op(), inputs, outputs, Count(addends));
    return result;
  }
  std::string Halves(const std::vector<std::string>& addends, size_t block) const {
    std::vector<std::string> partials;
    std::vector<const void*> inputs;
    for (size_t first = 0; first < addends.size(); first += block) {
      inputs.clear();
      for (size_t r = first; r < first + block; ++r) inputs.push_back(addends[r].data());
      partials.emplace_back(static_cast<size_t>(Count(addends) * DTypeSize(PartialDType(dtype()))),
                            '\0');
      TreeReducePartial("test", dtype(), op(), inputs, partials.back().data(), Count(addends));
    }
    inputs.clear();
    for (const std::string& partial : partials) inputs.push_back(partial.data());
    std::string result(addends[0].size(), '\0');
    void* const outputs[] = {result.data()};
    TreeReduceFinish("test", dtype(), op(), inputs, outputs, Count(addends));
    return result;
  }
  int64_t Count(const std::vector<std::string>& addends) const {
    return static_cast<int64_t>(addends[0].size()) / DTypeSize(dtype());
  }
};

INSTANTIATE_TEST_SUITE_P(All, TreeHalvesTest,
                         ::testing::Combine(::testing::Values(DType::kF32, DType::kBF16,
                                                              DType::kF16, DType::kF64),
                                            ::testing::Values(ReduceOp::kSum, ReduceOp::kMax)));

TEST_P(TreeHalvesTest, HaveTheBitsOfTheWhole) {
  for (const size_t block : {1, 2, 4, 8}) {
    for (size_t blocks = 1; blocks <= 7; ++blocks) {
      for (const int64_t n : {0, 1, 2051}) {
        std::vector<std::string> addends;
        for (size_t r = 0; r < block * blocks; ++r) {
          addends.push_back(RoughAddend(r, block * blocks, n, dtype()));
        }
        EXPECT_EQ(Halves(addends, block), Whole(addends))
            << blocks << " blocks of " << block << ", " << n << " elements";
      }
    }
  }
}

// Blocks of another size are no branches of the tree; and the addends show it.
TEST_P(TreeHalvesTest, OfThreesDiffer) {
  std::vector<std::string> addends;
  for (size_t r = 0; r < 6; ++r) addends.push_back(RoughAddend(r, 6, 2051, dtype()));
  EXPECT_EQ(Halves(addends, 3) == Whole(addends), op() == ReduceOp::kMax);
}

TEST(MembersPerMachineTest, AreAPowerOfTwoNextToEachOther) {
  const auto members = [](const std::vector<int>& machines) {
    return process::MembersPerMachine(machines);
  };
  EXPECT_EQ(members({0, 0, 2, 2}), 2u);
  EXPECT_EQ(members({2, 2, 0, 0}), 2u);
  EXPECT_EQ(members({0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8}), 4u);
  EXPECT_EQ(members({0, 0, 2, 2, 4, 4}), 2u);
  // Six to a machine count as three machines of two.
  EXPECT_EQ(members({0, 0, 0, 0, 0, 0, 6, 6, 6, 6, 6, 6}), 2u);
  EXPECT_EQ(members({0, 0, 2, 2, 2, 2}), 2u);

  EXPECT_EQ(members({0, 0, 0, 0}), 1u) << "one machine";
  EXPECT_EQ(members({0, 0, 0}), 1u) << "one machine";
  EXPECT_EQ(members({0, 1, 2, 3}), 1u) << "one member each";
  EXPECT_EQ(members({0, 2, 0, 2}), 1u) << "not next to each other";
  EXPECT_EQ(members({0, 2, 2, 0}), 1u) << "not aligned";
  EXPECT_EQ(members({0, 0, 2}), 1u) << "unequal";
  EXPECT_EQ(members({0, 0, 0, 3, 3, 3}), 1u) << "three each";
  EXPECT_EQ(members({0, 0, 2, 4}), 1u) << "unequal";
}

TEST(RanksPerMachineTest, AreAPositiveNumberOrAnError) {
  const char* const name = "APOGEE_RANKS_PER_MACHINE";
  unsetenv(name);
  EXPECT_EQ(ValueOrThrow(RanksPerMachineInEnvironment()), std::nullopt);
  setenv(name, "12", 1);
  EXPECT_EQ(ValueOrThrow(RanksPerMachineInEnvironment()), 12);
  for (const char* bad : {"", "0", "-2", "two", "2x", " 2", "2.0", "99999999999"}) {
    setenv(name, bad, 1);
    const auto result = RanksPerMachineInEnvironment();
    EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_THAT(Message(result.status()),
                HasSubstr(internal::Concat(name, " is '", bad, "'; it must be a positive number")));
  }
  unsetenv(name);
}

}  // namespace tree_reduce_test
}  // namespace apogee::comm
