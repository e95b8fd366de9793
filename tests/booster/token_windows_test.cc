// SPDX-License-Identifier: Apache-2.0

// Training from a loader of packed, masked documents: each target of a window weighs the same
// however ranks and micro-batches divide it, and a run that resumes under another number of ranks
// goes on with the same samples.
#include <gtest/gtest.h>

#include <cmath>

#include "apogee/autograd/engine.h"
#include "apogee/booster/booster.h"
#include "apogee/data/token_dataset.h"
#include "apogee/nn/losses.h"
#include "apogee/nn/models/gpt2.h"
#include "apogee/optim/registry.h"
#include "apogee/plugins/ddp.h"
#include "apogee/plugins/low_level_zero.h"
#include "apogee/plugins/single_rank.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tests/support/files/shared_temp_dir.h"
#include "apogee/tests/support/run_ranks.h"

namespace apogee {
namespace token_windows_test {

using apogee::testing::RunRanks;
using apogee::testing::SharedTempDir;
using Weights = std::map<std::string, std::vector<double>>;

constexpr int64_t kBlock = 8, kVocab = 23, kBatch = 12;

// Documents of 1 to 20 tokens. Up to a third of each is its prompt.
std::shared_ptr<const data::Dataset> Corpus() {
  std::vector<std::vector<int32_t>> documents;
  for (uint64_t d = 0; d < 120; ++d) {
    const auto bits = Philox(MakeKey(9, "documents"), d);
    documents.emplace_back(1 + bits[0] % 20);
    for (size_t i = 0; i < documents.back().size(); ++i) {
      documents.back()[i] = static_cast<int32_t>(Philox(MakeKey(9, "tokens"), d, i)[0] % kVocab);
    }
  }
  return std::make_shared<data::PackedDataset>(
      std::make_shared<data::MemoryTokenSource>(documents),
      data::PackedOptions{.block = kBlock, .prompt = [](std::span<const int32_t> document) {
                            return static_cast<int64_t>(document.size() / 3);
                          }});
}

std::shared_ptr<const data::Sampler> Order(const data::Dataset& dataset, int rank, int ranks,
                                           int64_t batch) {
  return std::make_shared<data::DistributedSampler>(
      std::make_shared<data::ShuffleSampler>(dataset.num_samples(), 3), rank, ranks, batch / ranks);
}

nn::Gpt2Config Config() {
  return {.vocab_size = kVocab, .n_positions = kBlock, .n_embd = 8, .n_layer = 1, .n_head = 2};
}

Weights WeightsOf(const nn::Module& model) {
  Weights weights;
  for (const auto& p : model.Parameters()) weights[p->name()] = p->data().ToVector<double>();
  return weights;
}

struct Layout {
  std::string plugin;
  int ranks = 1;
  int64_t accumulate = 1;
  int threads = 0;
};

std::unique_ptr<Plugin> MakePlugin(const std::string& name, const comm::World& world) {
  const TrainingOptions training{.precision = Precision::kF64};
  if (name == "single") return std::make_unique<SingleRankPlugin>(training);
  if (name == "ddp") return std::make_unique<DdpPlugin>(world.group(), training);
  return std::make_unique<LowLevelZeroPlugin>(world.group(), training,
                                              LowLevelZeroOptions{.stage = 2});
}

// Four steps; the weights at the end, and in `start` those at the beginning.
Weights Train(const Layout& run, Weights* start) {
  Weights end;
  const auto corpus = Corpus();
  RunRanks(run.ranks, [&](comm::World& world) {
    nn::Gpt2 model(Config());
    model.Initialize(world.context(), {.seed = 2, .dtype = DType::kF64});
    if (world.rank() == 0) *start = WeightsOf(model);
    const auto optimizer =
        ValueOrThrow(optim::MakeOptimizer("sgd", model.Parameters(), {{"lr", "0.5"}}));
    const auto plugin = MakePlugin(run.plugin, world);
    Booster booster(*plugin);
    Boosted boosted = booster.boost(model, *optimizer, {.criterion = nn::CrossEntropyLoss()});
    data::Loader loader(corpus, Order(*corpus, plugin->data_rank(), plugin->data_size(), kBatch),
                        world.context(),
                        {.batch = kBatch / run.ranks / run.accumulate,
                         .num_batches = 4 * run.accumulate,
                         .threads = run.threads});
    const Accumulation accumulation = booster.accumulate(run.accumulate);
    for (const data::Window& window : loader.Windows(run.accumulate)) {
      const auto open = booster.accumulation_window(window.num_targets);
      for (const data::Batch& batch : window.batches) {
        booster.backward(boosted.criterion(boosted.model(batch.inputs), batch.targets),
                         boosted.optimizer);
      }
      boosted.optimizer.step();
      boosted.optimizer.zero_grad();
    }
    if (world.rank() == 0) end = WeightsOf(model);
  });
  return end;
}

// No booster and no windows: whole batches of one rank.
Weights PlainTrain() {
  const auto corpus = Corpus();
  const ContextPtr context = CpuContext();
  nn::Gpt2 model(Config());
  model.Initialize(context, {.seed = 2, .dtype = DType::kF64});
  const auto optimizer =
      ValueOrThrow(optim::MakeOptimizer("sgd", model.Parameters(), {{"lr", "0.5"}}));
  data::Loader loader(corpus, Order(*corpus, 0, 1, kBatch), context,
                      {.batch = kBatch, .num_batches = 4});
  for (const data::Batch& batch : loader) {
    autograd::Backward(nn::CrossEntropyLoss()(model(batch.inputs), batch.targets));
    optimizer->step();
    optimizer->zero_grad();
  }
  return WeightsOf(model);
}

double Distance(const Weights& a, const Weights& b) {
  double sum = 0;
  for (const auto& [name, values] : a) {
    for (size_t i = 0; i < values.size(); ++i) sum += std::pow(values[i] - b.at(name)[i], 2);
  }
  return std::sqrt(sum);
}

TEST(TokenWindowsTest, EveryTargetOfAWindowWeighsTheSame) {
  const Weights want = PlainTrain();
  for (const Layout& run : {Layout{"single", 1, 1}, Layout{"single", 1, 6, 2},
                            Layout{"ddp", 2, 3, 1}, Layout{"ddp", 3, 4}, Layout{"ddp", 4, 1},
                            Layout{"zero", 2, 2}, Layout{"zero", 3, 2, 1}, Layout{"zero", 4, 3}}) {
    Weights start;
    const Weights got = Train(run, &start);
    EXPECT_LE(Distance(want, got), 1e-12 * Distance(want, start))
        << run.plugin << ", " << run.ranks << " ranks, " << run.accumulate << " micro-batches";
  }
}

TEST(TokenWindowsTest, MicroBatchesHaveUnequalNumbersOfTargets) {
  const auto corpus = Corpus();
  data::Loader loader(corpus, Order(*corpus, 0, 1, kBatch), CpuContext(), {.batch = 2});
  std::set<int64_t> counts;
  for (int i = 0; i < 12; ++i) {
    const data::Window window = loader.NextWindow(1);
    EXPECT_EQ(window.num_targets, nn::CountTargets(window.batches[0].targets));
    counts.insert(window.num_targets);
  }
  EXPECT_GE(counts.size(), 4u) << "or the test above shows nothing";
}

// Two steps on `ranks` ranks from the newest checkpoint in `folder`, and a checkpoint of them. Adds
// the loss of each step. Four micro-batches per step whatever the ranks are.
void TwoSteps(int ranks, const std::string& folder, std::vector<double>& losses) {
  const auto corpus = Corpus();
  RunRanks(ranks, [&](comm::World& world) {
    nn::Gpt2 model(Config());
    model.Initialize(world.context(), {.seed = 2});
    const auto optimizer =
        ValueOrThrow(optim::MakeOptimizer("adamw", model.Parameters(), {{"lr", "0.01"}}));
    DdpPlugin plugin(world.group(), {.max_norm = 0.5}, {.reproducible = true});
    Booster booster(plugin);
    Boosted boosted = booster.boost(model, *optimizer, {.criterion = nn::CrossEntropyLoss()});
    const int64_t accumulate = 4 / ranks;
    data::Loader loader(corpus, Order(*corpus, world.rank(), ranks, kBatch), world.context(),
                        {.batch = kBatch / 4, .num_batches = 2 * accumulate, .threads = ranks - 1});
    int64_t step = 0;
    const absl::StatusOr<Resumed> resumed = booster.resume(folder);
    if (resumed.ok()) {
      step = resumed->position.step;
      loader.set_state({.samples = std::stoll(resumed->position.extra.at("samples"))});
    }
    const Accumulation accumulation = booster.accumulate(accumulate);
    for (const data::Window& window : loader.Windows(accumulate)) {
      const auto open = booster.accumulation_window(window.num_targets);
      for (const data::Batch& batch : window.batches) {
        booster.backward(boosted.criterion(boosted.model(batch.inputs), batch.targets),
                         boosted.optimizer);
      }
      const Tensor loss = Tensor::Full({1}, DType::kF64, accumulation.loss(), world.context());
      if (world.group() != nullptr) world.group()->AllReduce(loss);
      if (world.rank() == 0) losses.push_back(loss.Item() / ranks);
      boosted.optimizer.step();
      boosted.optimizer.zero_grad();
      ++step;
    }
    const std::string samples = std::to_string(loader.state().samples);
    ASSERT_EQ(booster.save_training_state(folder, {.step = step, .extra = {{"samples", samples}}}),
              absl::OkStatus());
  });
}

TEST(TokenWindowsTest, AResumedRunHasTheSameLossBitsUnderAnotherWorld) {
  std::vector<double> want, got;
  const SharedTempDir one, many;
  for (const int ranks : {1, 1, 1}) TwoSteps(ranks, one.path(), want);
  for (const int ranks : {1, 4, 2}) TwoSteps(ranks, many.path(), got);
  ASSERT_EQ(want.size(), 6u);
  EXPECT_EQ(got, want);
  EXPECT_NE(want[4], want[5]);
}

}  // namespace token_windows_test
}  // namespace apogee
