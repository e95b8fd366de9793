// SPDX-License-Identifier: Apache-2.0

// GPT-2 in bf16 on a GPU, with a vocabulary whose rows of logits are not aligned: products on
// padded copies, and products that cuBLASLt refuses, change no bit of a training.
#include <cmath>
#include <memory>
#include <vector>

#include "apogee/tensor/cuda/cuda_context.h"
#include "apogee/tests/plugins/hybrid/hybrid_short_run.h"
#include "apogee/tests/support/environment.h"

namespace apogee {
namespace odd_vocabulary_test {

using ::apogee::testing::Environment;
using ::apogee::testing::HybridTask;
using ::apogee::testing::Weights;

constexpr int64_t kVocab = 257;

struct Training {
  int num_ranks = 1;
  bool tied = true, recompute = false;
};

// The losses and final weights of rank 0, whose cuBLASLt refuses these products.
Weights Trained(const Training& run, const char* refuses) {
  const Environment environment("APOGEE_EMULATED_CUBLASLT_REFUSES", refuses);
  nn::Gpt2Config config = testing::ShortGpt2(kVocab, run.tied);
  config.recompute = run.recompute;
  const HybridTask task =
      testing::ShortTask([=] { return std::make_unique<nn::Gpt2>(config); }, kVocab);
  Weights result;
  const absl::Status status = comm::launch(
      {.num_ranks = run.num_ranks, .threads_per_rank = 1, .device = "cuda"},
      [&](comm::World& world) {
        const ContextPtr context = world.context();
        const auto model = testing::Initialized(task, context);
        const auto optimizer = testing::OptimizerOf(task, *model);
        HybridParallelPlugin plugin(world, {.precision = Precision::kBf16},
                                    {.tp_size = run.num_ranks});
        Booster booster(plugin);
        Boosted boosted = booster.boost(*model, *optimizer, {.criterion = task.criterion});
        std::vector<double> losses;
        for (int64_t step = 0; step < 3; ++step) {
          const auto ids = [&](bool targets) {
            return task.tokens(step, 0, task.batch, context, targets);
          };
          const Tensor loss = boosted.criterion(boosted.model(ids(false)), ids(true));
          booster.backward(loss, boosted.optimizer);
          boosted.optimizer.step();
          boosted.optimizer.zero_grad();
          losses.push_back(loss.Item());
        }
        const CudaProducts products = CudaProductsOf(context);
        EXPECT_EQ(products.padded > 0, *refuses != '\0');
        EXPECT_EQ(products.unfused > 0, *refuses != '\0');
        EXPECT_EQ(products.own, 0);
        if (world.rank() == 0) result["losses"] = losses;
        for (const auto& p : model->Parameters()) {
          const std::vector<double> value = plugin.WholeValue(*p).ToVector<double>();
          if (world.rank() == 0) result[p->name()] = value;
        }
      });
  EXPECT_TRUE(status.ok()) << Message(status);
  return result;
}

TEST(OddVocabularyTest, RefusedProductsChangeNoBit) {
  for (const Training& run :
       {Training{}, Training{.tied = false, .recompute = true}, Training{.num_ranks = 2},
        Training{.num_ranks = 2, .tied = false, .recompute = true}}) {
    SCOPED_TRACE(::testing::Message() << run.num_ranks << " ranks, tied " << run.tied
                                      << ", recompute " << run.recompute);
    const Weights expected = Trained(run, "");
    ASSERT_EQ(expected.at("losses").size(), 3u);
    EXPECT_NEAR(expected.at("losses")[0], std::log(kVocab), 0.3);
    EXPECT_EQ(Trained(run, "bias,gelu,unaligned"), expected);
  }
}

}  // namespace odd_vocabulary_test
}  // namespace apogee
