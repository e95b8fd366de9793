// SPDX-License-Identifier: Apache-2.0

// Rates of kernels and links: fitting, formulas, and the file that keeps them.
#include "apogee/plan/machine/machine.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <string>

#include "apogee/core/kernel_listener.h"
#include "apogee/plan/machine/fit.h"
#include "apogee/plan/machine/measure.h"
#include "apogee/plan/machine/rates.h"

namespace apogee::plan {
namespace machine_test {

using comm::CollectiveKind;
using ::testing::AllOf;
using ::testing::HasSubstr;

void ExpectRate(const KernelRate& rate, double call, double flop, double byte) {
  EXPECT_NEAR(rate.seconds_per_call, call, 1e-6 * call + 1e-15);
  EXPECT_NEAR(rate.seconds_per_flop, flop, 1e-6 * flop);
  EXPECT_NEAR(rate.seconds_per_byte, byte, 1e-6 * byte);
}

std::vector<MeasuredCall> Calls(double call, double flop, double byte) {
  std::vector<MeasuredCall> calls;
  for (const double flops : {1e3, 1e6, 3e7, 1e9}) {
    for (const double bytes : {1e3, 1e5, 2e6}) {
      calls.push_back({flops, bytes, call + flop * flops + byte * bytes});
    }
  }
  return calls;
}

TEST(MachineTest, AFitFindsTheRates) {
  ExpectRate(Fit(Calls(2e-6, 1e-11, 3e-10)), 2e-6, 1e-11, 3e-10);
  ExpectRate(Fit(Calls(0, 1e-11, 0)), 0, 1e-11, 0);
  ExpectRate(Fit({}), 0, 0, 0);
  // The line through these falls with the flops; no rate is below zero.
  const KernelRate rate = Fit({{1e6, 0, 3e-3}, {2e6, 0, 2e-3}, {3e6, 0, 1e-3}});
  EXPECT_GE(rate.seconds_per_call, 0);
  EXPECT_GE(rate.seconds_per_flop, 0);
}

TEST(MachineTest, KernelsTakeTheirOwnRateOrTheOther) {
  Machine machine{.other = {.seconds_per_call = 1, .seconds_per_flop = 2, .seconds_per_byte = 3}};
  machine.kernels["matmul f32"] = {.seconds_per_call = 10, .seconds_per_flop = 20};
  EXPECT_EQ(machine.SecondsOf({"matmul", DType::kF32, 5, 7}), 10 + 20 * 5);
  EXPECT_EQ(machine.SecondsOf({"matmul", DType::kBF16, 5, 7}), 1 + 2 * 5 + 3 * 7);
}

TEST(MachineTest, CollectivesOverLinks) {
  const Machine machine{.ranks_per_machine = 4,
                        .within = {.bytes_per_second = 100, .latency_seconds = 1},
                        .between = {.bytes_per_second = 10, .latency_seconds = 5}};
  const std::vector<int> near = {0, 1, 2, 3}, far = {0, 4, 8, 12}, pair = {3, 4};
  // 400 bytes take 4 s within a machine and 40 s between machines; four ranks have two rounds.
  EXPECT_DOUBLE_EQ(machine.SecondsOf(CollectiveKind::kAllReduce, 400, near), 2 * (3 + 2 * 1));
  EXPECT_DOUBLE_EQ(machine.SecondsOf(CollectiveKind::kReduceScatter, 400, near), 3 + 2 * 1);
  EXPECT_DOUBLE_EQ(machine.SecondsOf(CollectiveKind::kAllGather, 400, far), 30 + 2 * 5);
  EXPECT_DOUBLE_EQ(machine.SecondsOf(CollectiveKind::kBroadcast, 400, far), 40 + 2 * 5);
  EXPECT_DOUBLE_EQ(machine.SecondsOf(CollectiveKind::kSend, 400, pair), 40 + 5);
  EXPECT_EQ(machine.SecondsOf(CollectiveKind::kAllReduce, 400, {3}), 0);
  EXPECT_TRUE(machine.IsWithin(near));
  EXPECT_FALSE(machine.IsWithin(pair));
}

Rates Some() {
  RateSet set{.ranks = 2, .threads = 1, .precision = "f32", .other = {1e-6, 2e-11, 3e-10}};
  set.kernels["matmul f32"] = {4e-6, 5e-11, 6e-10};
  set.collectives["all_reduce"] = {7e-6, 8e-10};
  return {.processor = "test", .cores = 2, .sets = {set}};
}

TEST(MachineTest, TheFileKeepsTheRates) {
  const Rates rates = ValueOrThrow(ParseRates(ToJson(Some()), "rates.json"));
  EXPECT_EQ(ToJson(rates), ToJson(Some()));
  const Machine machine = ValueOrThrow(MachineOf(rates, 4, 1, Precision::kF32));
  EXPECT_EQ(machine.name, "test");
  EXPECT_TRUE(machine.shares_cores());
  EXPECT_DOUBLE_EQ(machine.SecondsOf(CollectiveKind::kAllReduce, 1000, {0, 1}), 7e-6 + 8e-7);
  EXPECT_DOUBLE_EQ(machine.SecondsOf({"matmul", DType::kF32, 1e6, 0}), 4e-6 + 5e-5);
  EXPECT_THAT(Message(MachineOf(rates, 2, 2, Precision::kF32).status()),
              "no rates were measured for ranks of 2 threads in f32; add --measure (about 40 s)");
  EXPECT_FALSE(MachineOf(rates, 2, 1, Precision::kBf16).ok());
  Rates newer = Some();
  newer.sets[0].kernels["matmul f32"].seconds_per_call = 1;
  newer.sets.push_back({.ranks = 1, .threads = 1, .precision = "f32"});
  Rates into = rates;
  Merge(newer, into);
  EXPECT_EQ(ToJson(into), ToJson(newer));
}

TEST(MachineTest, DamagedFiles) {
  const auto damaged = [](const std::string& from, const std::string& to) {
    std::string text = ToJson(Some());
    const size_t at = text.find(from);
    APOGEE_CHECK(at != std::string::npos, "the file has no ", from);
    text.replace(at, from.size(), to);
    return text;
  };
  for (const std::string& text :
       {std::string(), std::string("{}"), damaged("\"cores\": 2", "\"cores\": 0"),
        damaged("4e-06", "-1"), damaged("4e-06", "\"fast\""), damaged("8e-10", "1e999"),
        damaged("\"sets\"", "\"set\""), damaged("\"rates\": 1", "\"rates\": 99"),
        damaged("\"threads\": 1", "\"threads\": 0"),
        ToJson(Some()).substr(0, ToJson(Some()).size() / 2)}) {
    const absl::Status status = ParseRates(text, "a/rates.json").status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << text;
    EXPECT_THAT(Message(status), AllOf(HasSubstr("a/rates.json: not a file of measured rates"),
                                       HasSubstr("apogee plan --measure")));
  }
}

TEST(MachineTest, MeasuresHere) {
  const Rates rates = ValueOrThrow(MeasureRates({.seconds = 0.2}));
  ASSERT_FALSE(rates.sets.empty());
  for (const RateSet& set : rates.sets) {
    EXPECT_EQ(set.precision, "f32");
    EXPECT_GT(set.other.seconds_per_call + set.other.seconds_per_byte, 0);
    double slowest = 0;
    for (const auto& [name, rate] : set.kernels) {
      slowest = std::max(slowest, rate.seconds_per_flop);
    }
    EXPECT_GT(slowest, 1e-13);
    EXPECT_LT(slowest, 1e-7);
    EXPECT_TRUE(set.collectives.contains("all_reduce"));
  }
}

}  // namespace machine_test
}  // namespace apogee::plan
