// SPDX-License-Identifier: Apache-2.0

// Values are whole between Acquire and Release, an error otherwise, and never anything else.
#include "apogee/chunk/sharded_parameters.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tests/support/run_ranks.h"

namespace apogee::chunk {
namespace sharded_parameters_test {

using ::testing::HasSubstr;
using ::testing::Property;
using testing::RunRanks;
using ::testing::Throws;

// Element i of a parameter is 100 times its number, plus i.
std::vector<autograd::ParameterPtr> Make(const ContextPtr& context, DType dtype) {
  std::vector<autograd::ParameterPtr> parameters;
  for (const int64_t numel : {5, 30, 1, 17}) {
    std::vector<float> values;
    for (int64_t i = 0; i < numel; ++i) {
      values.push_back(static_cast<float>(100 * parameters.size() + static_cast<size_t>(i)));
    }
    parameters.push_back(std::make_shared<autograd::Parameter>(
        "p" + std::to_string(parameters.size()),
        Tensor::FromVector<float>(values, {numel}, context, dtype)));
  }
  return parameters;
}

std::vector<ChunkSpec> Plan(const std::vector<autograd::ParameterPtr>& parameters, int shards) {
  std::vector<ChunkRequest> requests;
  for (const auto& parameter : parameters)
    requests.push_back({.numel = parameter->shape().numel()});
  return PlanChunks(requests, {.chunk_bytes = 120, .num_shards = shards, .distinct_sizes = true});
}

TEST(ShardedParametersTest, EveryElementIsKeptOnceAndComesBack) {
  for (const int num_ranks : {1, 2, 3}) {
    RunRanks(num_ranks, [&](comm::World& world) {
      const auto parameters = Make(world.context(), DType::kF32);
      const auto want = Make(world.context(), DType::kBF16);
      size_t moved = 0;
      const std::vector<ChunkSpec> plan = Plan(parameters, num_ranks);
      const auto sharded = ShardedParameters::Make(
          parameters, plan,
          {.group = world.group(), .dtypes = std::vector<DType>(plan.size(), DType::kBF16)},
          [&](size_t, const Tensor& old_value, const Tensor&, const Layout&) {
            EXPECT_EQ(old_value.dtype(), DType::kF32);
            ++moved;
          });
      EXPECT_EQ(moved, parameters.size());
      EXPECT_GT(sharded->plan().size(), 1u);
      const MemoryLedger& ledger = world.context()->ledger();
      const int64_t rest = ledger.live_bytes(MemoryCategory::kParameter);
      for (int round = 0; round < 2; ++round) {
        for (size_t i = 0; i < parameters.size(); ++i) {
          EXPECT_EQ(parameters[i]->data().numel(), sharded->LayoutOf(i).local_numel());
          EXPECT_THAT([&] { parameters[i]->value(); },
                      Throws<Error>(Property(&Error::what, HasSubstr("\"p" + std::to_string(i)))));
          sharded->Acquire(sharded->ChunkOf(i));
          sharded->Acquire(sharded->ChunkOf(i));
          sharded->Release(sharded->ChunkOf(i));
          EXPECT_EQ(parameters[i]->value().ToVector<float>(), want[i]->data().ToVector<float>());
          sharded->Release(sharded->ChunkOf(i));
        }
        EXPECT_EQ(ledger.live_bytes(MemoryCategory::kParameter), rest);
      }
      EXPECT_THROW(sharded->Release(0), Error);
    });
  }
}

TEST(ShardedParametersTest, AnUpdatedShardIsWhatOthersGather) {
  RunRanks(3, [&](comm::World& world) {
    const auto parameters = Make(world.context(), DType::kF32);
    const auto sharded =
        ShardedParameters::Make(parameters, Plan(parameters, 3), {.group = world.group()},
                                [](size_t, const Tensor&, const Tensor&, const Layout&) {});
    for (size_t i = 0; i < parameters.size(); ++i) sharded->Shard(i).Fill(world.rank());
    sharded->Acquire(sharded->ChunkOf(1));
    std::vector<float> got = parameters[1]->value().ToVector<float>();
    const Layout layout = sharded->LayoutOf(1);
    for (const Segment& segment : layout.segments()) {
      for (int64_t k = 0; k < segment.length; ++k) {
        EXPECT_EQ(got[static_cast<size_t>(segment.begin + k)], world.rank());
      }
    }
    EXPECT_NE(got.front(), got.back()) << "one rank's alone";
    sharded->Release(sharded->ChunkOf(1));
  });
}

TEST(ShardedParametersTest, ReadsRunOnMiss) {
  const ContextPtr context = CpuContext();
  const auto parameters = Make(context, DType::kF32);
  const auto sharded =
      ShardedParameters::Make(parameters, Plan(parameters, 1), {},
                              [](size_t, const Tensor&, const Tensor&, const Layout&) {});
  std::vector<size_t> missed;
  sharded->set_on_miss([&](size_t index) {
    missed.push_back(index);
    sharded->Acquire(sharded->ChunkOf(index));
  });
  EXPECT_EQ(parameters[3]->value().ToVector<float>()[2], 302);
  EXPECT_EQ(parameters[3]->value().ToVector<float>()[3], 303);
  EXPECT_EQ(missed, std::vector<size_t>{3});
  EXPECT_THAT(
      [&] { parameters[3]->set_value(Tensor::Zeros({17}, DType::kF32, context)); },
      Throws<Error>(Property(&Error::what, HasSubstr("\"p3\" cannot take another tensor"))));
  sharded->Release(sharded->ChunkOf(3));
}

}  // namespace sharded_parameters_test
}  // namespace apogee::chunk
