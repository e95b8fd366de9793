// SPDX-License-Identifier: Apache-2.0

// What head_chunks and recompute_activations of a GPT-2 cost and save: each against the plain
// model, taking turns in one process. Prints the peaks of activation bytes and of all bytes in a
// training step (AdamW, one rank), and the times of a step.
//
//   head_bench --gpt2 --chunks 4 --rounds 5           # the 124 M model, 8 sequences of 256 tokens
//   head_bench                                        # a small one
//   head_bench --gpt2 --variant head --chunks 16      # one variant against plain
//   head_bench --gpt2 --variant head --alone --rounds 1          # without a partner; "plain": none
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>

#include "apogee/bench/train_steps.h"
#include "apogee/plugins/single_rank.h"
#include "apogee/tensor/cpu/cpu_context.h"

using namespace apogee;

namespace {

struct Flags {
  bool gpt2 = false, alone = false;
  std::string variant = "all", precision = "f32";
  int64_t chunks = 4, batch = 8, tokens = 256;
  int threads = 2, rounds = 5;
};

nn::Gpt2Config ConfigOf(const Flags& flags, bool head, bool recompute) {
  nn::Gpt2Config config = bench::ModelConfig();
  if (flags.gpt2) config = {};
  config.n_positions = std::max(config.n_positions, flags.tokens);
  config.dropout = 0;
  config.head_chunks = head ? flags.chunks : 0;
  config.recompute_activations = recompute;
  return config;
}

// A model in training.
class Trained {
 public:
  Trained(const Flags& flags, bool head, bool recompute)
      : context_(CpuContext({.num_threads = flags.threads})),
        model_(ConfigOf(flags, head, recompute)) {
    model_.Initialize(context_, {.seed = 1});
    optimizer_ =
        std::make_unique<optim::AdamW>(model_.Parameters(), optim::AdamWOptions{.lr = 3e-4});
    plugin_ = std::make_unique<SingleRankPlugin>(
        TrainingOptions{.precision = ValueOrThrow(ParsePrecision(flags.precision))});
    booster_ = std::make_unique<Booster>(*plugin_);
    boosted_ = std::make_unique<Boosted>(
        booster_->boost(model_, *optimizer_, {.criterion = nn::CrossEntropyLoss()}));
    inputs_ = Random(flags, "inputs");
    targets_ = Random(flags, "targets");
  }

  // Returns the seconds of a step.
  double Step() {
    context_->ledger().ResetPeaks();
    const auto start = bench::Clock::now();
    const Tensor loss = boosted_->criterion(boosted_->model(inputs_), targets_);
    booster_->backward(loss, boosted_->optimizer);
    boosted_->optimizer.step();
    boosted_->optimizer.zero_grad();
    loss_ = loss.Item();
    return bench::SecondsSince(start);
  }

  void Print(const char* name) const {
    const MemoryLedger& ledger = context_->ledger();
    std::printf("%-10s activations %8.1f MB, all %8.1f MB, loss %.6f\n", name,
                static_cast<double>(ledger.peak_bytes(MemoryCategory::kActivation)) / 1e6,
                static_cast<double>(ledger.peak_total_bytes()) / 1e6, loss_);
  }

 private:
  Tensor Random(const Flags& flags, const std::string& name) const {
    std::vector<int64_t> ids(static_cast<size_t>(flags.batch * flags.tokens));
    const PhiloxKey key = MakeKey(1, name);
    const auto vocab = static_cast<uint64_t>(model_.config().vocab_size);
    for (size_t i = 0; i < ids.size(); ++i) {
      ids[i] = static_cast<int64_t>(Philox(key, i)[0] % vocab);
    }
    return Tensor::FromVector<int64_t>(ids, {flags.batch, flags.tokens}, context_);
  }

  ContextPtr context_;
  nn::Gpt2 model_;
  std::unique_ptr<optim::AdamW> optimizer_;
  std::unique_ptr<SingleRankPlugin> plugin_;
  std::unique_ptr<Booster> booster_;
  std::unique_ptr<Boosted> boosted_;
  Tensor inputs_, targets_;
  double loss_ = 0;
};

void Compare(const Flags& flags, const char* name, bool head, bool recompute) {
  Trained plain(flags, false, false), other(flags, head, recompute);
  for (Trained* each : {&plain, &other}) each->Step();
  const bench::Turns turns = bench::TakeTurns(
      flags.rounds, [&] { return other.Step(); }, [&] { return plain.Step(); });
  plain.Print("plain");
  other.Print(name);
  std::printf("%-10s step %.3f s, plain %.3f s, ratio %.4f [%.4f, %.4f]\n", name,
              bench::Median(turns.one_s), bench::Median(turns.other_s), bench::Median(turns.ratio),
              *std::ranges::min_element(turns.ratio), *std::ranges::max_element(turns.ratio));
}

void RunBench(const Flags& flags) {
  struct Variant {
    const char* name;
    bool head, recompute;
  };
  const Variant variants[] = {
      {"head", true, false}, {"recompute", false, true}, {"both", true, true}};
  Variant chosen{"plain", false, false};
  for (const Variant& each : variants) {
    if (flags.variant != "all" && flags.variant != each.name) continue;
    chosen = each;
    if (!flags.alone) Compare(flags, each.name, each.head, each.recompute);
  }
  if (!flags.alone && flags.variant != "plain") return;
  Trained one(flags, chosen.head, chosen.recompute);
  for (int round = 0; round < flags.rounds; ++round) one.Step();
  one.Print(chosen.name);
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  CLI::App app("head_bench: chunked heads and recomputed activations");
  app.add_flag("--gpt2", flags.gpt2, "GPT-2 of 124 M parameters, in place of the small GPT");
  CLI::Option* variant = app.add_option("--variant", flags.variant, "Default: all");
  variant->check(CLI::IsMember({"all", "plain", "head", "recompute", "both"}));
  app.add_flag("--alone", flags.alone, "Steps of --variant only, without a comparison")
      ->needs(variant);
  app.add_option("--precision", flags.precision, "f32, bf16");
  app.add_option("--chunks", flags.chunks, "head_chunks")->check(CLI::PositiveNumber);
  app.add_option("--batch", flags.batch, "Sequences")->check(CLI::PositiveNumber);
  app.add_option("--tokens", flags.tokens, "Tokens of a sequence")->check(CLI::PositiveNumber);
  app.add_option("--threads", flags.threads, "CPU threads")->check(CLI::PositiveNumber);
  app.add_option("--rounds", flags.rounds, "Steps of each")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  try {
    RunBench(flags);
  } catch (const Error& error) {
    std::fprintf(stderr, "head_bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
