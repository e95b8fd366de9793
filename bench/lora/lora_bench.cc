// SPDX-License-Identifier: Apache-2.0

// The time of a step that trains an adapter against one that trains the model, on gpt_bench's GPT
// with AdamW. Prints one JSON line.
//
//   lora_bench --rank 8 --rounds 5
//
// The two take turns. `ratio` is the median of the quotients; below 1 the adapter is faster.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "apogee/bench/train_steps.h"
#include "apogee/nn/lora/lora.h"
#include "apogee/plugins/single_rank.h"
#include "apogee/tensor/cpu/cpu_context.h"

using namespace apogee;
using namespace apogee::bench;

namespace {

// A model in training; rank 0 trains all of it.
class Trained {
 public:
  Trained(int64_t rank, Precision precision, int threads)
      : context_(CpuContext({.num_threads = threads})),
        model_(ModelConfig()),
        plugin_({.precision = precision}),
        booster_(plugin_) {
    model_.Initialize(context_, {.seed = 1});
    if (rank > 0) {
      booster_.enable_lora(model_, {.rank = rank, .targets = {"all-linear"}});
    }
    optimizer_ = std::make_unique<optim::AdamW>(model_.Parameters(), optim::AdamWOptions{});
    boosted_ = std::make_unique<Boosted>(
        booster_.boost(model_, *optimizer_, {.criterion = nn::CrossEntropyLoss()}));
    inputs_ = RandomTokens("inputs", 0, kBatch, context_);
    targets_ = RandomTokens("targets", 0, kBatch, context_);
    Step();
  }
  double Step() {
    const Clock::time_point start = Clock::now();
    booster_.backward(boosted_->criterion(boosted_->model(inputs_), targets_), boosted_->optimizer);
    boosted_->optimizer.step();
    boosted_->optimizer.zero_grad();
    return SecondsSince(start);
  }

 private:
  ContextPtr context_;
  nn::Gpt2 model_;
  SingleRankPlugin plugin_;
  Booster booster_;
  std::unique_ptr<optim::AdamW> optimizer_;
  std::unique_ptr<Boosted> boosted_;
  Tensor inputs_, targets_;
};

}  // namespace

int main(int argc, char** argv) {
  std::string precision = "f32";
  int64_t rank = 8;
  int rounds = 5, threads = 2;
  CLI::App app("The time of a step of an adapter.");
  app.add_option("--precision", precision, "f32 or bf16")->capture_default_str();
  app.add_option("--rank", rank, "Of the adapter")
      ->capture_default_str()
      ->check(CLI::Range(1, static_cast<int>(kDim)));
  app.add_option("--rounds", rounds, "Turns of each")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--threads", threads, "CPU threads")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  try {
    const Precision parsed = ValueOrThrow(ParsePrecision(precision));
    Trained adapter(rank, parsed, threads), whole(0, parsed, threads);
    const Turns turns = TakeTurns(
        rounds, [&] { return adapter.Step(); }, [&] { return whole.Step(); });
    std::printf(
        "{\"precision\": \"%s\", \"rank\": %lld, \"adapter_ms\": %.1f, \"whole_ms\": %.1f, "
        "\"ratio\": %.3f}\n",
        precision.c_str(), static_cast<long long>(rank), Median(turns.one_s) * 1e3,
        Median(turns.other_s) * 1e3, Median(turns.ratio));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "lora_bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
