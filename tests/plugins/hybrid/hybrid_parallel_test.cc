// SPDX-License-Identifier: Apache-2.0

// Tensor parallelism × data parallelism × ZeRO computes what one rank computes. (The matrix runs
// the products with every optimizer; here: the criterion over cut logits, dropout, recompute, plans
// of other models, frozen and unused parameters.)
#include "apogee/plugins/hybrid_parallel.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/functions/embedding.h"
#include "apogee/autograd/functions/loss.h"
#include "apogee/booster/booster.h"
#include "apogee/nn/losses.h"
#include "apogee/optim/registry.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tests/plugins/hybrid/hybrid_run.h"
#include "apogee/tests/support/exactness.h"
#include "apogee/tests/support/run_ranks.h"

namespace apogee {
namespace hybrid_parallel_test {

using testing::BoostedRun;
using testing::HybridTask;
using testing::Initialized;
using testing::OptimizerOf;
using testing::PlainRun;
using testing::RunRanks;
using testing::Weights;
using testing::WeightsOf;
using testing::WorstUpdateError;

constexpr int64_t kBatch = 12, kTokens = 6, kVocab = 19, kSteps = 12;

Tensor Tokens(int64_t step, int64_t first, int64_t count, const ContextPtr& context, bool targets) {
  const int64_t shift = targets ? 1 : 0;
  std::vector<int64_t> values;
  for (int64_t sample = first; sample < first + count; ++sample) {
    for (int64_t t = shift; t < kTokens + shift; ++t) {
      const auto place = static_cast<uint64_t>((step * kBatch + sample) * 16 + t);
      values.push_back(static_cast<int64_t>(Philox(MakeKey(5, "tokens"), place)[0] % kVocab));
    }
  }
  return Tensor::FromVector<int64_t>(values, {count, kTokens}, context);
}

// Training on random tokens; the model's output goes to the criterion.
HybridTask TaskOf(std::function<std::unique_ptr<nn::Module>()> make) {
  return {.make = std::move(make),
          .tokens = Tokens,
          .batch = kBatch,
          .steps = kSteps,
          .options = {{"lr", "0.01"}, {"weight_decay", "0.1"}}};
}

void ExpectEqualRuns(const HybridTask& task, int num_ranks, const HybridParallelOptions& options,
                     int64_t accumulate = 1) {
  if (testing::TooManyRanks(num_ranks)) GTEST_SKIP() << "needs " << num_ranks << " processes";
  Weights start;
  const Weights want = PlainRun(task, {}, start);
  const Weights got = BoostedRun(
      task, num_ranks, options,
      {.data_size = num_ranks / options.tp_size, .accumulate = accumulate, .no_sync = true});
  ASSERT_EQ(got.size(), want.size());
  const auto worst = WorstUpdateError(start, want, got);
  EXPECT_LE(worst.error, 1e-9) << worst.name << ", " << num_ranks << " ranks, tp "
                               << options.tp_size << ", zero " << options.stage;
}

HybridTask Gpt2Task(double dropout = 0, bool tied = true, bool recompute = false) {
  return TaskOf([=] {
    return std::make_unique<nn::Gpt2>(nn::Gpt2Config{.vocab_size = kVocab,
                                                     .n_positions = kTokens,
                                                     .n_embd = 16,
                                                     .n_layer = 2,
                                                     .n_head = 4,
                                                     .dropout = dropout,
                                                     .tie_word_embeddings = tied,
                                                     .recompute = recompute});
  });
}

HybridTask LlamaTask(bool tied) {
  return TaskOf([=] {
    return std::make_unique<nn::Llama>(nn::LlamaConfig{.vocab_size = kVocab,
                                                       .hidden_size = 32,
                                                       .intermediate_size = 24,
                                                       .num_hidden_layers = 2,
                                                       .num_attention_heads = 8,
                                                       .num_key_value_heads = 4,
                                                       .max_position_embeddings = kTokens,
                                                       .tie_word_embeddings = tied});
  });
}

TEST(HybridParallelTest, Gpt2EqualsOneRank) {
  for (const int tp : {1, 2, 4}) {
    for (const int zero : {0, 1, 2, 3}) {
      ExpectEqualRuns(Gpt2Task(), tp, {.tp_size = tp, .stage = zero});
      ExpectEqualRuns(Gpt2Task(), 2 * tp, {.tp_size = tp, .stage = zero}, 3);
    }
  }
}

TEST(HybridParallelTest, LlamaEqualsOneRank) {
  for (const bool tied : {false, true}) {
    for (const int zero : {0, 2, 3}) {
      ExpectEqualRuns(LlamaTask(tied), 4, {.tp_size = 2, .stage = zero});
      ExpectEqualRuns(LlamaTask(tied), 4, {.tp_size = 4, .stage = zero});
    }
  }
}

TEST(HybridParallelTest, MasksAreThoseOfOneRank) {
  ExpectEqualRuns(Gpt2Task(0.2), 4, {.tp_size = 2, .stage = 1});
  for (const int zero : {0, 3}) {
    ExpectEqualRuns(Gpt2Task(0.2, false, /*recompute=*/true), 4, {.tp_size = 2, .stage = zero});
  }
}

// Any function of whole logits, which is what criteria that the plugin does not know get.
TEST(HybridParallelTest, OtherCriteriaGetWholeLogits) {
  HybridTask task = Gpt2Task();
  task.criterion = [](const Tensor& logits, const Tensor& targets) {
    EXPECT_EQ(logits.size(-1), kVocab);
    return autograd::Scale(autograd::CrossEntropy(logits, targets), 0.5);
  };
  for (const int zero : {2, 3}) {
    ExpectEqualRuns(task, 4, {.tp_size = 4, .stage = zero});
  }
}

// Words -> a model of one's own: an embedding that stays whole, then layers of every style.
class OwnModel : public nn::Module {
 public:
  OwnModel()
      : table_(Register("table", std::make_shared<nn::Embedding>(kVocab, 12))),
        gathered_(Register("gathered", std::make_shared<nn::Linear>(12, 8))),
        wide_(Register("wide", std::make_shared<nn::Linear>(
                                   8, 24, nn::LinearOptions{.activation = Activation::kSilu}))),
        drop_(Register("drop", std::make_shared<nn::Dropout>(0.3))),
        narrow_(Register("narrow", std::make_shared<nn::Linear>(
                                       24, 8, nn::LinearOptions{.activation = Activation::kGelu}))),
        split_(Register("split", std::make_shared<nn::Linear>(8, 10))),
        head_(Register("head", std::make_shared<nn::Linear>(10, kVocab))),
        unused_(RegisterParameter("unused", {5, 3}, nn::Init::Normal(0, 1))) {}
  Tensor Forward(const Tensor& tokens) override {
    const Tensor x = (*gathered_)((*table_)(tokens));
    return (*head_)((*split_)((*narrow_)((*drop_)((*wide_)(x)))));
  }

 private:
  std::shared_ptr<nn::Embedding> table_;
  std::shared_ptr<nn::Linear> gathered_, wide_;
  std::shared_ptr<nn::Dropout> drop_;
  std::shared_ptr<nn::Linear> narrow_, split_, head_;
  autograd::ParameterPtr unused_;
};

nn::parallel::ParallelPlan OwnPlan() {
  using enum nn::parallel::ParallelStyle;
  return {.name = "own",
          .rules = {{.pattern = "gathered", .style = kColumnGather},
                    {.pattern = "wide", .style = kColumn},
                    {.pattern = "drop", .style = kDropout},
                    {.pattern = "narrow", .style = kRow},
                    {.pattern = "split", .style = kRowSplit},
                    {.pattern = "head", .style = kVocabulary},
                    {.pattern = "unused", .style = kParameter, .dim = 0, .pad = true}},
          .output_module = "head"};
}

TEST(HybridParallelTest, EveryStyleInAModelOfOnesOwn) {
  const HybridTask task = TaskOf([] { return std::make_unique<OwnModel>(); });
  for (const int zero : {0, 1, 2, 3}) {
    ExpectEqualRuns(task, 2, {.tp_size = 2, .stage = zero, .plan = OwnPlan()});
    ExpectEqualRuns(task, 8, {.tp_size = 4, .stage = zero, .plan = OwnPlan()});
  }
}

TEST(HybridParallelTest, AnMlpWithALayerLeftOver) {
  class Words : public nn::Mlp {
   public:
    Words() : Mlp({.sizes = {kVocab, 8, 12, kVocab}, .activation = Activation::kGelu}) {}
    Tensor Forward(const Tensor& tokens) override {
      const Tensor table = Tensor::Zeros({kVocab, kVocab}, DType::kF64, tokens.context());
      for (int64_t i = 0; i < kVocab; ++i) table.data<double>()[i * kVocab + i] = 1;
      return Mlp::Forward(autograd::Embedding(tokens, table));
    }
  };
  const HybridTask task = TaskOf([] { return std::make_unique<Words>(); });
  ExpectEqualRuns(task, 4, {.tp_size = 4, .stage = 0});
  ExpectEqualRuns(task, 4, {.tp_size = 2, .stage = 2});
  ExpectEqualRuns(task, 4, {.tp_size = 2, .stage = 3});
}

// In evaluation mode logits are whole, and those of the one-rank model; the criterion takes both.
TEST(HybridParallelTest, EvaluationSeesWholeLogits) {
  const HybridTask task = Gpt2Task();
  const ContextPtr context = CpuContext();
  const auto plain = Initialized(task, context, 11);
  const Tensor want = (*plain)(Tokens(0, 0, 2, context, false));
  const double want_loss = task.criterion(want, Tokens(0, 0, 2, context, true)).Item();
  for (const int zero : {0, 3}) {
    RunRanks(4, [&](comm::World& world) {
      const auto model = Initialized(task, world.context(), 11);
      const auto optimizer = OptimizerOf(task, *model);
      HybridParallelPlugin plugin(world, {.precision = Precision::kF64},
                                  {.tp_size = 4, .stage = zero});
      Booster booster(plugin);
      Boosted boosted = booster.boost(*model, *optimizer, {.criterion = task.criterion});
      const Tensor inputs = Tokens(0, 0, 2, world.context(), false);
      const Tensor targets = Tokens(0, 0, 2, world.context(), true);
      EXPECT_EQ(boosted.model(inputs).size(-1), 5) << "19 words on 4 ranks";
      EXPECT_NEAR(boosted.criterion(boosted.model(inputs), targets).Item(), want_loss, 1e-13);
      boosted.model.Train(false);
      const Tensor logits = boosted.model(inputs);
      ASSERT_EQ(logits.shape(), want.shape());
      const std::vector<double> got = logits.ToVector<double>(), whole = want.ToVector<double>();
      for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], whole[i], 1e-13);
      EXPECT_NEAR(boosted.criterion(logits, targets).Item(), want_loss, 1e-13);
    });
  }
}

// States that a run on one rank left behind are cut like the weights.
TEST(HybridParallelTest, TrainingGoesOnFromStatesOfOneRank) {
  for (const std::string optimizer : {"adamw", "came", "adamw8bit"}) {
    HybridTask task = Gpt2Task();
    task.optimizer = optimizer;
    task.options = {{"lr", "0.01"}};
    if (optimizer == "adamw8bit") task.options["min_8bit_size"] = "0";
    const auto step = [](nn::Module& model, optim::Optimizer& optimizer, int64_t index,
                         const ContextPtr& context) {
      autograd::Backward(nn::CrossEntropyLoss()(model(Tokens(index, 0, kBatch, context, false)),
                                                Tokens(index, 0, kBatch, context, true)));
      optimizer.step();
      optimizer.zero_grad();
    };
    const ContextPtr context = CpuContext();
    const auto plain = Initialized(task, context, 11);
    const auto plain_optimizer = OptimizerOf(task, *plain);
    for (int64_t i = 0; i < 3; ++i) step(*plain, *plain_optimizer, i, context);
    const Weights start = WeightsOf(*plain);
    for (int64_t i = 3; i < 8; ++i) step(*plain, *plain_optimizer, i, context);
    for (const int zero : {0, 1, 3}) {
      RunRanks(4, [&](comm::World& world) {
        const auto model = Initialized(task, world.context(), 11);
        const auto optimizer = OptimizerOf(task, *model);
        for (int64_t i = 0; i < 3; ++i) step(*model, *optimizer, i, world.context());
        HybridParallelPlugin plugin(world, {.precision = Precision::kF64},
                                    {.tp_size = 2, .stage = zero});
        Booster booster(plugin);
        Boosted boosted = booster.boost(*model, *optimizer, {.criterion = nn::CrossEntropyLoss()});
        const int64_t count = kBatch / 2, first = plugin.data_rank() * count;
        for (int64_t i = 3; i < 8; ++i) {
          booster.backward(
              boosted.criterion(boosted.model(Tokens(i, first, count, world.context(), false)),
                                Tokens(i, first, count, world.context(), true)),
              boosted.optimizer);
          boosted.optimizer.step();
          boosted.optimizer.zero_grad();
        }
        Weights got;
        for (const auto& p : model->Parameters()) {
          got[p->name()] = plugin.WholeValue(*p).ToVector<double>();
        }
        const auto worst = WorstUpdateError(start, WeightsOf(*plain), got);
        EXPECT_LE(worst.error, 1e-9) << optimizer->name() << " " << worst.name;
      });
    }
  }
}

}  // namespace hybrid_parallel_test
}  // namespace apogee
