// SPDX-License-Identifier: Apache-2.0

#include "apogee/chunk/gradient_chunks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <thread>

#include "apogee/autograd/engine.h"
#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/tests/support/run_ranks.h"

namespace apogee::chunk {
namespace gradient_chunks_test {

using autograd::ParameterPtr;
using testing::RunRanks;

// What freed memory holds: a chunk that comes from it must not show it.
void Litter(int64_t numel, const ContextPtr& context) {
  std::vector<Tensor> litter;
  for (int i = 0; i < 32; ++i) {
    litter.push_back(Tensor::Full({numel}, DType::kF32, std::numeric_limits<double>::quiet_NaN(),
                                  context, MemoryCategory::kGradient));
  }
}

// a is absent on rank 1, b everywhere present, c everywhere absent; they share a chunk with
// padding.
TEST(GradientChunksTest, AbsentGradientsAndPaddingAreZeros) {
  for (const bool sharded : {false, true}) {
    RunRanks(2, [&](comm::World& world) {
      std::vector<ParameterPtr> parameters;
      for (const char* name : {"a", "b", "c"}) {
        parameters.push_back(std::make_shared<autograd::Parameter>(
            name, Tensor::Full({11}, DType::kF32, 1, world.context())));
      }
      const std::vector<ChunkRequest> requests(3, {.numel = 11});
      const auto plan = PlanChunks(requests, {.num_shards = 2});
      ASSERT_EQ(plan.size(), 1u);
      std::vector<Tensor> means(3);
      const auto on_mean = [&](size_t i, const Tensor& mean) { means[i] = mean; };
      std::unique_ptr<GradientChunks> chunks =
          sharded
              ? std::make_unique<GradientChunks>(parameters, plan, world.group(),
                                                 GradientChunkOptions{}, on_mean)
              : std::make_unique<GradientChunks>(parameters, world.group(), GradientChunkOptions{});
      Tensor loss = autograd::Scale(autograd::Sum(parameters[1]->value()), 3 + world.rank());
      if (world.rank() == 0) {
        loss = autograd::Add(loss, autograd::Scale(autograd::Sum(parameters[0]->value()), 5));
      }
      Litter(plan[0].numel(), world.context());
      Litter(33, world.context());
      chunks->Run([&] { autograd::Backward(loss); }, {.reduce = true});
      const double want[] = {2.5, 3.5, 0};
      for (size_t i = 0; i < 3; ++i) {
        // Replicated ones are held in reverse order.
        EXPECT_EQ(chunks->present(sharded ? i : 2 - i), i < 2);
        const bool has = sharded || parameters[i]->has_grad();
        EXPECT_EQ(has, sharded || i < 2);
        if (!has) continue;
        const Tensor& mean = sharded ? means[i] : parameters[i]->grad();
        for (const double x : mean.ToVector<double>()) EXPECT_EQ(x, want[i]) << i;
      }
    });
  }
}

// Rank 1 has no gradient of a, and rank 2's of c comes late. b is reduced where ranks agree, though
// it lies behind a; a and c at the end; d, which nobody has, never.
TEST(GradientChunksTest, RanksAgreeOnWhatAllOfThemHave) {
  RunRanks(3, [&](comm::World& world) {
    const int rank = world.rank();
    std::vector<ParameterPtr> parameters;
    for (const char* name : {"a", "b", "c", "d", "point"}) {
      parameters.push_back(std::make_shared<autograd::Parameter>(
          name, Tensor::Full({11}, DType::kF32, 1, world.context())));
    }
    const ParameterPtr point = parameters.back();
    parameters.pop_back();
    const std::vector<ChunkRequest> requests(4, {.numel = 11});
    const auto plan = PlanChunks(requests, {.chunk_bytes = 1, .num_shards = 3});
    ASSERT_EQ(plan.size(), 4u);
    std::string order;
    GradientChunks* made = nullptr;
    const double want[] = {8.0 / 3, 6, 8};
    const auto on_mean = [&](size_t i, const Tensor& mean) {
      EXPECT_TRUE(made->present(i));
      for (const double x : mean.ToVector<double>()) EXPECT_FLOAT_EQ(x, want[i]);
      order += parameters[i]->name();
    };
    GradientChunks chunks(parameters, plan, world.group(), {.on_chunk = [&] { order += "."; }},
                          on_mean);
    made = &chunks;
    chunks.Agree();  // without a backward there is nothing to agree on
    const auto use = [&](size_t i, double factor) {
      return autograd::Scale(autograd::Sum(parameters[i]->value()), factor + rank);
    };
    // What is nested deeper in the sum has its gradient later.
    Tensor late = autograd::Sum(autograd::Scale(point->value(), 1));
    if (rank == 2) late = autograd::Add(late, use(2, 7));
    Tensor loss = autograd::Add(use(1, 5), autograd::Scale(late, 1));
    if (rank != 2) loss = autograd::Add(loss, use(2, 7));
    if (rank != 1) loss = autograd::Add(loss, use(0, 3));
    point->AddGradHook([&](autograd::Parameter&) { chunks.Agree(); });
    Litter(plan[0].numel(), world.context());
    chunks.Run([&] { autograd::Backward(loss); }, {.reduce = true});
    EXPECT_EQ(order, "b.a.c.");
    for (size_t i = 0; i < 4; ++i) EXPECT_EQ(chunks.present(i), i < 3);
    EXPECT_EQ(world.context()->ledger().live_bytes(MemoryCategory::kGradient), 44)
        << "that of the point is left";
  });
}

// Rank 1 is slow. Rank 0 waits for it, since else it would keep all chunks that rank 1 has yet to
// reduce.
TEST(GradientChunksTest, FewChunksExistThoughAnotherRankIsSlow) {
  constexpr size_t kNumChunks = 16;
  constexpr int64_t kNumel = 4000;
  RunRanks(2, [&](comm::World& world) {
    std::vector<ParameterPtr> parameters;
    Tensor loss;
    for (size_t i = 0; i < kNumChunks; ++i) {
      parameters.push_back(std::make_shared<autograd::Parameter>(
          std::to_string(i), Tensor::Full({kNumel}, DType::kF32, 1, world.context())));
      parameters[i]->AddGradHook([&](autograd::Parameter&) {
        if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      });
      const Tensor own = autograd::Sum(parameters[i]->value());
      loss = loss.defined() ? autograd::Add(autograd::Scale(loss, 1), own) : own;
    }
    std::ranges::reverse(parameters);  // the last one has its gradient first
    const std::vector<ChunkRequest> requests(kNumChunks, {.numel = kNumel});
    const auto plan = PlanChunks(requests, {.chunk_bytes = 1, .num_shards = 2});
    ASSERT_EQ(plan.size(), kNumChunks);
    GradientChunks chunks(parameters, plan, world.group(), {.wait_inside = false},
                          [](size_t, const Tensor&) {});
    chunks.Run([&] { autograd::Backward(loss); }, {.reduce = true});
    // Two in flight and one in work, each with its mean, and gradients on their way to chunks.
    EXPECT_LT(world.context()->ledger().peak_bytes(MemoryCategory::kGradient),
              7 * kNumel * int64_t{sizeof(float)});
  });
}

}  // namespace gradient_chunks_test
}  // namespace apogee::chunk
