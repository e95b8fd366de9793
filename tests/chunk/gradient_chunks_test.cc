#include "apogee/chunk/gradient_chunks.h"

#include <gtest/gtest.h>

#include <limits>

#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/tests/support/run_ranks.h"

namespace apogee::chunk {
namespace {

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
      chunks->Backward(loss, 1, /*reduce=*/true);
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

}  // namespace
}  // namespace apogee::chunk
