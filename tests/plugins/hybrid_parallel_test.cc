// Tensor parallelism × data parallelism × ZeRO computes what one rank computes. (The matrix runs
// the products with every optimizer; here: the criterion over cut logits, dropout, recompute, plans
// of other models, frozen and unused parameters.)
#include "apogee/plugins/hybrid_parallel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/functions/loss.h"
#include "apogee/booster/booster.h"
#include "apogee/optim/registry.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tests/support/exactness.h"
#include "apogee/tests/support/run_ranks.h"

namespace apogee {
namespace {

using testing::RunRanks;
using testing::Weights;
using testing::WeightsOf;
using testing::WorstUpdateError;

constexpr int64_t kBatch = 12, kTokens = 6, kVocab = 19, kSteps = 12;

using MakeModel = std::function<std::unique_ptr<nn::Module>()>;

// Training on random tokens; the model's output goes to the criterion.
struct Task {
  MakeModel make;
  Criterion criterion = nn::CrossEntropyLoss();
  std::string optimizer = "adamw";
  optim::OptionMap options = {{"lr", "0.01"}, {"weight_decay", "0.1"}};
  double max_norm = 0.5;
};

Tensor Tokens(int64_t step, int64_t first, int64_t count, int64_t shift,
              const ContextPtr& context) {
  std::vector<int64_t> values;
  for (int64_t sample = first; sample < first + count; ++sample) {
    for (int64_t t = shift; t < kTokens + shift; ++t) {
      const auto place = static_cast<uint64_t>((step * kBatch + sample) * 16 + t);
      values.push_back(static_cast<int64_t>(Philox(MakeKey(5, "tokens"), place)[0] % kVocab));
    }
  }
  return Tensor::FromVector<int64_t>(values, {count, kTokens}, context);
}

// A key's bias has gradient zero: what remains is rounding, which normalising optimizers blow up.
std::unique_ptr<nn::Module> Initialized(const Task& task, const ContextPtr& context,
                                        uint64_t seed) {
  std::unique_ptr<nn::Module> model = task.make();
  model->Initialize(context, {.seed = seed, .dtype = DType::kF64});
  for (const auto& p : model->Parameters()) {
    if (p->name().ends_with("c_attn.bias")) p->set_requires_grad(false);
  }
  return model;
}

std::unique_ptr<optim::Optimizer> Make(const Task& task, const nn::Module& model) {
  return ValueOrThrow(optim::MakeOptimizer(task.optimizer, model.Parameters(), task.options));
}

Weights PlainRun(const Task& task, Weights& start) {
  const ContextPtr context = CpuContext();
  const auto model = Initialized(task, context, 11);
  const auto optimizer = Make(task, *model);
  optimizer->set_step_options({.max_norm = task.max_norm});
  start = WeightsOf(*model);
  for (int64_t step = 0; step < kSteps; ++step) {
    autograd::Backward(task.criterion((*model)(Tokens(step, 0, kBatch, 0, context)),
                                      Tokens(step, 0, kBatch, 1, context)));
    optimizer->step();
    optimizer->zero_grad();
  }
  return WeightsOf(*model);
}

Weights BoostedRun(const Task& task, int num_ranks, HybridParallelOptions options,
                   int64_t accumulate = 1) {
  std::vector<Weights> results(static_cast<size_t>(num_ranks));
  options.precision = "f64";
  options.max_norm = task.max_norm;
  options.bucket_bytes = 3000;
  RunRanks(num_ranks, [&](comm::World& world) {
    const auto model = Initialized(task, world.context(), world.rank() == 0 ? 11 : 99);
    const auto optimizer = Make(task, *model);
    HybridParallelPlugin plugin(world, options);
    Booster booster(plugin);
    Boosted boosted = booster.boost(*model, *optimizer, task.criterion);
    const int64_t count = kBatch / plugin.data_size() / accumulate;
    for (int64_t step = 0; step < kSteps; ++step) {
      for (int64_t micro = 0; micro < accumulate; ++micro) {
        const int64_t first = (plugin.data_rank() * accumulate + micro) * count;
        const Tensor loss =
            boosted.criterion(boosted.model(Tokens(step, first, count, 0, world.context())),
                              Tokens(step, first, count, 1, world.context()));
        const auto hold = micro + 1 < accumulate ? booster.no_sync() : nullptr;
        booster.backward(autograd::Scale(loss, 1.0 / static_cast<double>(accumulate)),
                         boosted.optimizer);
      }
      boosted.optimizer.step();
      boosted.optimizer.zero_grad();
    }
    Weights& result = results[static_cast<size_t>(world.rank())];
    for (const auto& p : model->Parameters()) {
      result[p->name()] = plugin.WholeValue(*p).ToVector<double>();
    }
  });
  for (const Weights& other : results) EXPECT_EQ(other, results[0]) << "ranks differ";
  return results[0];
}

void ExpectEqualRuns(const Task& task, int num_ranks, const HybridParallelOptions& options,
                     int64_t accumulate = 1) {
  Weights start;
  const Weights want = PlainRun(task, start);
  const Weights got = BoostedRun(task, num_ranks, options, accumulate);
  ASSERT_EQ(got.size(), want.size());
  const auto worst = WorstUpdateError(start, want, got);
  EXPECT_LE(worst.error, 1e-9) << worst.name << ", " << num_ranks << " ranks, tp "
                               << options.tp_size << ", zero " << options.zero_stage;
}

Task Gpt2Task(double dropout = 0, bool tied = true, bool recompute = false) {
  return {.make = [=] {
    return std::make_unique<nn::Gpt2>(nn::Gpt2Config{.vocab_size = kVocab,
                                                     .n_positions = kTokens,
                                                     .n_embd = 16,
                                                     .n_layer = 2,
                                                     .n_head = 4,
                                                     .dropout = dropout,
                                                     .tie_word_embeddings = tied,
                                                     .recompute = recompute});
  }};
}

Task LlamaTask(bool tied) {
  return {.make = [=] {
    return std::make_unique<nn::Llama>(nn::LlamaConfig{.vocab_size = kVocab,
                                                       .hidden_size = 32,
                                                       .intermediate_size = 24,
                                                       .num_hidden_layers = 2,
                                                       .num_attention_heads = 8,
                                                       .num_key_value_heads = 4,
                                                       .max_position_embeddings = kTokens,
                                                       .tie_word_embeddings = tied});
  }};
}

TEST(HybridParallelTest, Gpt2EqualsOneRank) {
  for (const int tp : {1, 2, 4}) {
    for (const int zero : {0, 1, 2}) {
      ExpectEqualRuns(Gpt2Task(), tp, {.tp_size = tp, .zero_stage = zero});
      ExpectEqualRuns(Gpt2Task(), 2 * tp, {.tp_size = tp, .zero_stage = zero}, 3);
    }
  }
}

TEST(HybridParallelTest, LlamaEqualsOneRank) {
  for (const bool tied : {false, true}) {
    for (const int zero : {0, 2}) {
      ExpectEqualRuns(LlamaTask(tied), 4, {.tp_size = 2, .zero_stage = zero});
      ExpectEqualRuns(LlamaTask(tied), 4, {.tp_size = 4, .zero_stage = zero});
    }
  }
}

TEST(HybridParallelTest, MasksAreThoseOfOneRank) {
  ExpectEqualRuns(Gpt2Task(0.2), 4, {.tp_size = 2, .zero_stage = 1});
  ExpectEqualRuns(Gpt2Task(0.2, false, /*recompute=*/true), 4, {.tp_size = 2, .zero_stage = 0});
}

// Any function of whole logits, which is what criteria that the plugin does not know get.
TEST(HybridParallelTest, OtherCriteriaGetWholeLogits) {
  Task task = Gpt2Task();
  task.criterion = [](const Tensor& logits, const Tensor& targets) {
    EXPECT_EQ(logits.size(-1), kVocab);
    return autograd::Scale(autograd::CrossEntropy(logits, targets), 0.5);
  };
  ExpectEqualRuns(task, 4, {.tp_size = 4, .zero_stage = 2});
}

}  // namespace
}  // namespace apogee
