// SPDX-License-Identifier: Apache-2.0

// Dropout masks what one rank with the whole window in one batch masks, however the window is cut
// into ranks and micro-batches.
#include <gtest/gtest.h>

#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/recompute.h"
#include "apogee/booster/booster.h"
#include "apogee/nn/losses.h"
#include "apogee/optim/registry.h"
#include "apogee/plugins/ddp.h"
#include "apogee/plugins/gemini.h"
#include "apogee/plugins/hybrid_parallel.h"
#include "apogee/plugins/low_level_zero.h"
#include "apogee/plugins/single_rank.h"
#include "apogee/tests/support/exactness.h"
#include "apogee/tests/support/run_ranks.h"

namespace apogee {
namespace sample_places_test {

using testing::RunRanks;
using testing::Weights;
using testing::WeightsOf;
using testing::WorstUpdateError;

constexpr int64_t kTokens = 4, kVocab = 19, kSteps = 3, kStepSamples = 8;

class Numbers : public data::Dataset {
 public:
  int64_t num_samples() const override { return 64; }
  int64_t block() const override { return kTokens; }
  void Fill(int64_t sample, int64_t* inputs, int64_t* targets) const override {
    for (int64_t t = 0; t < kTokens; ++t) {
      const auto bits = Philox(MakeKey(5, "numbers"), static_cast<uint64_t>(sample * 16 + t));
      inputs[t] = bits[0] % kVocab;
      targets[t] = bits[1] % kVocab;
    }
  }
};

struct Layout {
  std::string plugin = "single";
  int ranks = 1;
  int64_t accumulate = 1;
  bool window_of_step = true;  // else of a micro-batch
  int tp = 1, pp = 1;
};

std::unique_ptr<Plugin> MakePlugin(const Layout& layout, const comm::World& world) {
  if (layout.plugin == "single") {
    return std::make_unique<SingleRankPlugin>(TrainingOptions{.precision = Precision::kF64});
  }
  if (layout.plugin == "ddp") {
    return std::make_unique<DdpPlugin>(world.group(),
                                       TrainingOptions{.precision = Precision::kF64});
  }
  if (layout.plugin == "zero2") {
    return std::make_unique<LowLevelZeroPlugin>(world.group(),
                                                TrainingOptions{.precision = Precision::kF64});
  }
  if (layout.plugin == "gemini") {
    return std::make_unique<GeminiPlugin>(world.group(),
                                          TrainingOptions{.precision = Precision::kF64});
  }
  HybridParallelOptions options{.tp_size = layout.tp, .pp_size = layout.pp, .stage = 1};
  if (layout.pp > 1) options.num_microbatches = 2;
  return std::make_unique<HybridParallelPlugin>(
      world, TrainingOptions{.precision = Precision::kF64}, options);
}

Weights Train(const Layout& layout, Weights& start) {
  Weights end;
  RunRanks(layout.ranks, [&](comm::World& world) {
    nn::Gpt2 model({.vocab_size = kVocab,
                    .n_positions = kTokens,
                    .n_embd = 8,
                    .n_layer = 2,
                    .n_head = 2,
                    .dropout = 0.2});
    model.Initialize(world.context(), {.seed = 11, .dtype = DType::kF64});
    if (world.rank() == 0) start = WeightsOf(model);
    const auto optimizer =
        ValueOrThrow(optim::MakeOptimizer("sgd", model.Parameters(), {{"lr", "0.5"}}));
    const auto plugin = MakePlugin(layout, world);
    Booster booster(*plugin);
    Boosted boosted = booster.boost(model, *optimizer, {.criterion = nn::CrossEntropyLoss()});
    auto* hybrid = dynamic_cast<HybridParallelPlugin*>(plugin.get());
    const int part = hybrid ? hybrid->data_rank() : world.rank();
    const int parts = hybrid ? hybrid->data_size() : world.size();
    const int64_t batch = kStepSamples / parts / layout.accumulate;
    data::Loader loader(std::make_shared<Numbers>(),
                        std::make_shared<data::DistributedSampler>(
                            std::make_shared<data::ShuffleSampler>(64, 3), part, parts,
                            layout.window_of_step ? batch * layout.accumulate : batch),
                        world.context(),
                        {.batch = batch, .num_batches = kSteps * layout.accumulate});
    int64_t micro = 0;
    for (const data::Batch& x : loader) {
      const bool last = ++micro % layout.accumulate == 0;
      const auto keep = last ? nullptr : booster.no_sync();
      const Criterion criterion = [&](const Tensor& output, const Tensor& targets) {
        return autograd::Scale(boosted.criterion(output, targets),
                               1.0 / static_cast<double>(layout.accumulate));
      };
      booster.execute_pipeline(x, boosted.model, criterion, &boosted.optimizer);
      if (!last) continue;
      boosted.optimizer.step();
      boosted.optimizer.zero_grad();
    }
    Weights whole;
    auto* gemini = dynamic_cast<GeminiPlugin*>(plugin.get());
    for (const auto& p : model.Parameters()) {
      const Tensor value = hybrid   ? hybrid->WholeValue(*p)
                           : gemini ? gemini->WholeValue(*p)
                                    : p->data();
      whole[p->name()] = value.ToVector<double>();
    }
    if (world.rank() == 0) end = whole;
  });
  return end;
}

TEST(SamplePlacesTest, MasksFollowThePlaceInTheWindow) {
  Weights start;
  const Weights want = Train({}, start);
  const Layout layouts[] = {
      {.accumulate = 4},
      {.plugin = "ddp", .ranks = 4},
      {.plugin = "ddp", .ranks = 4, .accumulate = 2},
      {.plugin = "ddp", .ranks = 2, .accumulate = 4},
      {.plugin = "zero2", .ranks = 4, .accumulate = 2},
      {.plugin = "gemini", .ranks = 2, .accumulate = 2},
      {.plugin = "hybrid", .ranks = 4, .accumulate = 2, .tp = 2},
      {.plugin = "hybrid", .ranks = 4, .accumulate = 2, .pp = 2},
  };
  for (const Layout& layout : layouts) {
    SCOPED_TRACE(layout.plugin + " x " + std::to_string(layout.accumulate));
    EXPECT_LE(WorstUpdateError(start, want, Train(layout, start)).error, 1e-9);
  }
}

TEST(SamplePlacesTest, AWindowMayBeAMicroBatch) {
  Weights start;
  const Weights want = Train({.accumulate = 2, .window_of_step = false}, start);
  for (const std::string plugin : {"ddp", "zero2"}) {
    const Layout layout{.plugin = plugin, .ranks = 4, .accumulate = 2, .window_of_step = false};
    EXPECT_LE(WorstUpdateError(start, want, Train(layout, start)).error, 1e-9) << plugin;
  }
}

Tensor PlacedTokens(const ContextPtr& context) {
  const Tensor tokens = Tensor::Full({2, kTokens}, DType::kI64, 3, context);
  tokens.storage()->set_sample_place({.stream = std::make_shared<int>(), .window = 0, .first = 6},
                                     kTokens);
  return tokens;
}

// Recomputing a whole model draws the masks of its forward again.
TEST(SamplePlacesTest, RecomputedModelsReplayTheirMasks) {
  const ContextPtr context = CpuContext();
  std::vector<double> sums;
  for (const bool recompute : {false, true}) {
    nn::Gpt2 model({.vocab_size = kVocab,
                    .n_positions = kTokens,
                    .n_embd = 8,
                    .n_layer = 1,
                    .n_head = 2,
                    .dropout = 0.5});
    model.Initialize(context, {.seed = 11, .dtype = DType::kF64});
    const Tensor tokens = PlacedTokens(context);
    const auto run = [&](const Tensor& x) { return model(x); };
    const Tensor output =
        recompute ? autograd::Recompute(run, tokens, &model.generator()) : run(tokens);
    autograd::Backward(autograd::Mean(output));
    double sum = 0;
    for (const auto& p : model.Parameters()) {
      if (!p->has_grad()) continue;
      for (const double g : p->grad().ToVector<double>()) sum += std::abs(g);
    }
    sums.push_back(sum);
  }
  EXPECT_EQ(sums[0], sums[1]);
}

// A boosted model may be a part of another one, which is not called.
TEST(SamplePlacesTest, AModelInsideAnotherKnowsThePlaceOfItsInputs) {
  RunRanks(2, [](comm::World& world) {
    nn::Container around;
    auto model = std::make_shared<nn::Gpt2>(nn::Gpt2Config{.vocab_size = kVocab,
                                                           .n_positions = kTokens,
                                                           .n_embd = 8,
                                                           .n_layer = 1,
                                                           .n_head = 2,
                                                           .dropout = 0.5});
    around.Register("model", model);
    around.Initialize(world.context(), {.seed = 1, .dtype = DType::kF64});
    const auto optimizer = ValueOrThrow(optim::MakeOptimizer("sgd", model->Parameters(), {}));
    DdpPlugin plugin(world.group(), {.precision = Precision::kF64});
    Booster booster(plugin);
    std::ignore = booster.boost(*model, *optimizer);
    (*model)(PlacedTokens(world.context()));
    EXPECT_EQ(model->generator().first_sample(), 6);
  });
}

TEST(SamplePlacesTest, SlicesAndViewsKnowTheirPlace) {
  const ContextPtr context = CpuContext();
  const Tensor inputs = Tensor::Zeros({4, 6}, DType::kI64, context);
  EXPECT_FALSE(SamplePlaceOf(inputs).has_value());
  inputs.storage()->set_sample_place({.stream = std::make_shared<int>(), .window = 2, .first = 10},
                                     6);
  EXPECT_EQ(SamplePlaceOf(inputs)->first, 10);
  EXPECT_EQ(SamplePlaceOf(inputs.Slice(0, 1, 2))->first, 11);
  EXPECT_EQ(SamplePlaceOf(inputs.View({24}))->first, 60);
  EXPECT_FALSE(SamplePlaceOf(inputs.Transpose(0, 1)).has_value());
}

TEST(SamplePlacesTest, StreamsOfAWindow) {
  Generator generator(1);
  const auto stream = std::make_shared<int>();
  const auto next = [&](int64_t window, int64_t first) {
    const SamplePlace place{.stream = stream, .window = window, .first = first};
    generator.BeginBatch(&place);
    EXPECT_EQ(generator.first_sample(), first);
    const uint64_t begin = generator.next_stream();
    generator.Next();
    generator.Next();
    return begin;
  };
  EXPECT_EQ(next(0, 0), 0u);
  EXPECT_EQ(next(0, 0), 2u) << "another forward of the same batch";
  EXPECT_EQ(next(0, 4), 0u) << "the window's next micro-batch";
  EXPECT_EQ(next(0, 4), 2u);
  EXPECT_EQ(generator.state(), 4u);
  EXPECT_EQ(next(1, 0), 4u) << "the next window";
  EXPECT_EQ(next(1, 4), 4u);
  EXPECT_EQ(next(1, 0), 6u) << "the same window again";
  generator.BeginBatch(nullptr);
  EXPECT_EQ(generator.next_stream(), 8u);
  EXPECT_EQ(generator.first_sample(), 0);
  generator.Restart(3);
  EXPECT_EQ(next(1, 4), 3u);
}

}  // namespace sample_places_test
}  // namespace apogee
