// SPDX-License-Identifier: Apache-2.0

// Trains the small Mixtral of transformers_moe.py on random tokens and prints one JSON line.
//
//   moe_bench --precision bf16 --threads 2          # one rank
//   moe_bench --ep 2 --rounds 5                     # and 2 ranks of one thread with ep 2, by turns
//
// With --ep the two take turns within each round. `ratio` is the median over the rounds of the
// quotient of their median steps; above 1 the ranks are faster. AdamW and the auxiliary loss are
// part of a step.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/bench/train_steps.h"
#include "apogee/core/blocking_waits.h"
#include "apogee/nn/models/decoder.h"
#include "apogee/nn/models/hf_model.h"
#include "apogee/nn/moe/moe.h"
#include "apogee/plugins/hybrid_parallel.h"

using namespace apogee;
using namespace apogee::bench;

namespace {

constexpr const char* kConfig = R"({"model_type": "mixtral", "vocab_size": 4096,
    "hidden_size": 384, "intermediate_size": 512, "num_hidden_layers": 6,
    "num_attention_heads": 6, "num_key_value_heads": 6, "num_local_experts": 8,
    "num_experts_per_tok": 2, "max_position_embeddings": 256, "router_aux_loss_coef": 0.02,
    "tie_word_embeddings": false})";

// The median step of rank 0.
void Train(const comm::World& world, const TrainingOptions& training, int64_t num_steps,
           double& seconds) {
  const ContextPtr& context = world.context();
  const nn::HfModel hf = ValueOrThrow(nn::MakeHfModel(kConfig, "config", [](const auto&) {}));
  nn::Module& model = *hf.module;
  model.Initialize(context, {.seed = 1});
  optim::AdamW optimizer(model.Parameters(), {.lr = 3e-4});
  HybridParallelPlugin plugin(world, training, {.ep_size = world.size()});
  Booster booster(plugin);
  Boosted boosted = booster.boost(model, optimizer, {.criterion = nn::CrossEntropyLoss()});
  const int64_t rows = kBatch / world.size(), first = world.rank() * rows;
  const Tensor inputs = RandomTokens("inputs", first, rows, context);
  const Tensor targets = RandomTokens("targets", first, rows, context);
  std::vector<double> steps;
  for (int64_t step = 0; step < kWarmup + num_steps; ++step) {
    const Clock::time_point start = Clock::now();
    const Tensor loss = boosted.criterion(boosted.model(inputs), targets);
    booster.backward(autograd::Add(loss, nn::AuxiliaryLoss(boosted.model)), boosted.optimizer);
    boosted.optimizer.step();
    boosted.optimizer.zero_grad();
    if (step >= kWarmup) steps.push_back(SecondsSince(start));
  }
  if (world.rank() == 0) seconds = Median(steps);
}

double MedianStep(int ranks, int threads, const TrainingOptions& training, int64_t steps) {
  double seconds = 0;
  OkOrThrow(comm::launch({.num_ranks = ranks, .threads_per_rank = threads, .timeout_seconds = 600},
                         [&](comm::World& world) { Train(world, training, steps, seconds); }));
  return seconds;
}

}  // namespace

int main(int argc, char** argv) {
  UseBlockingWaits(argv);
  std::string precision = "f32";
  int threads = 2, ep = 1, rounds = 5;
  int64_t steps = 5;
  CLI::App app("Speed of training a mixture of experts.");
  app.add_option("--precision", precision, "f32, bf16, fp16 or f64")->capture_default_str();
  app.add_option("--threads", threads, "Threads of the one rank")->capture_default_str();
  app.add_option("--ep", ep, "Ranks of one thread to compare with; 1: none")
      ->capture_default_str()
      ->check(CLI::IsMember({1, 2, 4, 8}));
  app.add_option("--rounds", rounds, "With --ep: rounds in which the variants take turns")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--steps", steps, "Timed steps per turn")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  try {
    const TrainingOptions training{.precision = ValueOrThrow(ParsePrecision(precision))};
    const double tokens = static_cast<double>(kBatch * kBlock);
    if (ep == 1) {
      std::printf("{\"precision\": \"%s\", \"threads\": %d, \"tokens_per_s\": %.1f}\n",
                  precision.c_str(), threads, tokens / MedianStep(1, threads, training, steps));
      return 0;
    }
    const Turns turns = TakeTurns(
        rounds, [&] { return MedianStep(1, threads, training, steps); },
        [&] { return MedianStep(ep, 1, training, steps); });
    std::printf(
        "{\"precision\": \"%s\", \"ep\": %d, \"threads_tokens_per_s\": %.1f, "
        "\"ranks_tokens_per_s\": %.1f, \"ratio\": %.3f}\n",
        precision.c_str(), ep, tokens / Median(turns.one_s), tokens / Median(turns.other_s),
        Median(turns.ratio));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "moe_bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
