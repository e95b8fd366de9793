// SPDX-License-Identifier: Apache-2.0

#include "training_run.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>

#include "adan.h"
#include "apogee/apogee.h"
#include "language_model.h"
#include "losses.h"
#include "muon.h"
#include "plugins.h"
#include "tokens.h"

namespace outside {
namespace {

namespace autograd = apogee::autograd;
namespace comm = apogee::comm;
namespace data = apogee::data;
namespace optim = apogee::optim;
using apogee::Tensor;

constexpr int64_t kSteps = 6;
constexpr int64_t kBatch = 16;  // samples per step of all ranks

// Samples per step of each rank.
std::vector<int64_t> Shares(int num_ranks, bool uneven) {
  if (uneven && num_ranks == 2) return {9, 7};
  if (uneven && num_ranks == 4) return {5, 3, 6, 2};
  return std::vector<int64_t>(static_cast<size_t>(num_ranks), kBatch / num_ranks);
}

std::unique_ptr<optim::Optimizer> MakeOptimizer(const std::string& name,
                                                const apogee::nn::Module& model) {
  optim::OptimizerRegistry registry;
  registry.Add<Adan>("adan", AdanOptions{.weight_decay = 0.02});
  registry.Add<Muon>("own_muon", MuonOptions{});
  if (name != "own_muon") {
    return apogee::ValueOrThrow(registry.Make(name, model.Parameters(), {{"lr", "1e-2"}}));
  }
  optim::TextParamGroup matrices{.params = {}, .options = {{"lr", "0.02"}}};
  optim::TextParamGroup rest{.params = {}, .options = {{"lr", "0.05"}, {"orthogonalize", "0"}}};
  for (const autograd::ParameterPtr& p : model.Parameters()) {
    const bool matrix = p->shape().rank() == 2 && p->name() != "embed.weight";
    (matrix ? matrices : rest).params.push_back(p);
  }
  return apogee::ValueOrThrow(registry.Make(name, std::vector{matrices, rest}));
}

apogee::Criterion MakeCriterion(const std::string& loss) {
  if (loss == "label_smoothing") return LabelSmoothing{};
  if (loss == "brier") return BrierLoss{};
  return apogee::nn::CrossEntropyLoss();
}

// This rank's batches, one after the other for every micro-step.
data::Loader MakeLoader(const TrainingCase& training, const std::string& file,
                        const apogee::Plugin& plugin, const apogee::ContextPtr& context) {
  const auto dataset =
      std::make_shared<MmapTokens>(file, MmapTokens::Options{.padded = training.padded});
  const std::vector<int64_t> shares = Shares(plugin.data_size(), training.uneven);
  const auto rank = static_cast<size_t>(plugin.data_rank());
  const int64_t batch = shares[rank] / training.accumulate;
  std::shared_ptr<const data::Sampler> order;
  if (training.uneven) {
    const int64_t before =
        std::accumulate(shares.begin(), shares.begin() + plugin.data_rank(), int64_t{0});
    order = std::make_shared<UnevenSampler>(
        std::make_shared<data::ShuffleSampler>(dataset->num_samples(), 5), before, shares[rank],
        kBatch);
  } else if (training.padded) {
    // Micro-batches of all ranks together are those of one rank.
    order = std::make_shared<data::DistributedSampler>(
        std::make_shared<data::SequentialSampler>(dataset->num_samples()), plugin.data_rank(),
        plugin.data_size(), batch);
  } else {
    order = std::make_shared<data::DistributedSampler>(
        std::make_shared<data::ShuffleSampler>(dataset->num_samples(), 5), plugin.data_rank(),
        plugin.data_size(), batch * training.accumulate);
  }
  return data::Loader(dataset, order, context,
                      {.batch = batch, .num_batches = kSteps * training.accumulate});
}

double MeanOverRanks(const comm::World& world, double value) {
  if (world.group() == nullptr) return value;
  const Tensor sum = Tensor::FromVector<double>({value}, {1}, world.context());
  world.group()->AllReduce(sum);
  return sum.Item() / world.size();
}

// The loop: as docs/start.md has it, with accumulation and, where the plugin has one, a pipeline.
std::vector<double> Train(const TrainingCase& training, const comm::World& world,
                          const NamedPlugin& plugin, apogee::Booster& booster,
                          const apogee::Boosted& boosted, data::Loader& loader) {
  std::vector<double> losses;
  const apogee::Accumulation window = booster.accumulate(training.accumulate);
  for (const data::Batch& batch : loader) {
    if (plugin.has_pipeline()) {
      booster.execute_pipeline(batch, boosted.model, boosted.criterion, &boosted.optimizer);
    } else {
      booster.backward(boosted.criterion(boosted.model(batch.inputs), batch.targets),
                       boosted.optimizer);
    }
    if (!window.is_complete()) continue;
    boosted.optimizer.step();
    boosted.optimizer.zero_grad();
    losses.push_back(MeanOverRanks(world, window.loss()));
  }
  return losses;
}

double Largest(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(a[i] - b[i]);
    if (!(difference <= largest)) largest = difference;
  }
  return largest;
}

}  // namespace

std::string TrainingCase::name() const {
  std::string text = optimizer + "/" + plugin;
  if (loss != "cross_entropy") text += "/" + loss;
  if (accumulate > 1) text += "/acc" + std::to_string(accumulate);
  if (dropout > 0) text += "/dropout";
  if (max_norm > 0) text += "/clip";
  if (uneven) text += "/uneven";
  if (padded) text += "/padded";
  return text;
}

RunResult RunTraining(const TrainingCase& training, int num_ranks, const std::string& tokens_file) {
  RunResult result;
  const auto rank = [&](comm::World& world) {
    const ModelConfig config{.dropout = training.dropout};
    LanguageModel model(config);
    model.Initialize(world.context(), {.seed = 3});
    const std::unique_ptr<optim::Optimizer> optimizer = MakeOptimizer(training.optimizer, model);
    NamedPlugin plugin(
        training.plugin, world,
        {.precision = apogee::Precision::kF64, .max_norm = training.max_norm, .model = config});
    RunResult mine;
    for (const auto& p : model.Parameters()) mine.first[p->name()] = p->data().ToVector<double>();
    apogee::Booster booster(plugin.plugin());
    const apogee::Boosted boosted =
        booster.boost(model, *optimizer, {.criterion = MakeCriterion(training.loss)});
    data::Loader loader = MakeLoader(training, tokens_file, plugin.plugin(), world.context());
    mine.losses = Train(training, world, plugin, booster, boosted, loader);
    for (const auto& p : model.Parameters()) {
      mine.last[p->name()] = plugin.plugin().WholeValue(*p).ToVector<double>();
    }
    if (world.rank() == 0) result = std::move(mine);
  };
  apogee::OkOrThrow(
      comm::launch({.num_ranks = num_ranks, .threads_per_rank = 1, .timeout_seconds = 30}, rank));
  return result;
}

Difference WorstDifference(const RunResult& want, const RunResult& got) {
  Difference worst;
  const auto keep = [&](double error, const std::string& where) {
    if (error <= worst.error) return;
    worst = {error == error ? error : std::numeric_limits<double>::infinity(), where};
  };
  for (const auto& [name, last] : want.last) {
    const double update = Largest(last, want.first.at(name));
    const double error = Largest(last, got.last.at(name));
    if (error != 0) keep(error / update, name);
  }
  for (size_t i = 0; i < want.losses.size(); ++i) {
    keep(std::abs(want.losses[i] - got.losses[i]) / want.losses[i],
         "loss of step " + std::to_string(i));
  }
  return worst;
}

}  // namespace outside
