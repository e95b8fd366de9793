// SPDX-License-Identifier: Apache-2.0

// The memory of fine-tuning a Llama in 4 bits: random weights, made lazily and held in nf4 under
// Gemini, and an adapter. Prints one JSON line; peaks are of all ranks together.
//
//   qlora_bench --size 1.1b --ranks 2 --steps 20
//
// `peak_mib` is what the ledgers count, the allocators' caches included; `process_mib` is what the
// operating system sees, without pages of files.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <map>
#include <mutex>

#include "apogee/bench/train_steps.h"
#include "apogee/core/blocking_waits.h"
#include "apogee/core/process_memory.h"
#include "apogee/nn/models/llama.h"
#include "apogee/plugins/gemini.h"

using namespace apogee;
using namespace apogee::bench;

namespace {

struct Options {
  std::string size = "1.1b", quantize = "nf4", precision = "bf16";
  int ranks = 2, threads = 1;
  int64_t steps = 20, tokens = 128, rank = 8;
};

// "1.1b" has the shapes of TinyLlama, "7b" those of Llama 2.
nn::LlamaConfig ConfigOf(const std::string& size) {
  nn::LlamaConfig config{.vocab_size = 32000,
                         .hidden_size = 2048,
                         .intermediate_size = 5632,
                         .num_hidden_layers = 22,
                         .num_attention_heads = 32,
                         .num_key_value_heads = 4,
                         .recompute = true};
  if (size == "7b") config = {.recompute = true};
  if (size == "tiny") {
    config.vocab_size = 500;
    config.hidden_size = 256;
    config.intermediate_size = 512;
    config.num_hidden_layers = 2;
  }
  return config;
}

struct Result {
  std::mutex mutex;
  int64_t peak_bytes = 0;
  int64_t parameters = 0;
  double seconds = 0, loss = 0, boost_seconds = 0;
};

void Train(const comm::World& world, const Options& options, Result& result) {
  const nn::LlamaConfig config = ConfigOf(options.size);
  nn::Llama model(config);
  const Clock::time_point start = Clock::now();
  GeminiPlugin plugin(world.group(),
                      {.precision = ValueOrThrow(ParsePrecision(options.precision))});
  Booster booster(plugin);
  model.InitializeLazily(world.context(), {.seed = 1});
  booster.enable_lora(model, {.rank = options.rank,
                              .alpha = 16,
                              .quantize = ValueOrThrow(nn::ParseQuantize(options.quantize))});
  optim::AdamW optimizer(model.Parameters(), {.lr = 1e-4});
  const Boosted boosted = booster.boost(model, optimizer, {.criterion = nn::CrossEntropyLoss()});
  const double boost_seconds = SecondsSince(start);
  const Clock::time_point first = Clock::now();
  double loss = 0;
  for (int64_t step = 0; step < options.steps; ++step) {
    std::vector<int64_t> ids;
    for (int64_t i = 0; i < options.tokens + 1; ++i) {
      ids.push_back((i * i * 31 + 7 * i + step + 13 * world.rank()) % config.vocab_size);
    }
    const Tensor all = Tensor::FromVector(ids, {1, options.tokens + 1}, world.context());
    const Tensor part =
        boosted.criterion(boosted.model(all.Slice(1, 0, options.tokens).Contiguous()),
                          all.Slice(1, 1, options.tokens).Contiguous());
    loss = part.Item();
    booster.backward(part, boosted.optimizer);
    boosted.optimizer.step();
    boosted.optimizer.zero_grad();
  }
  const std::scoped_lock lock(result.mutex);
  result.peak_bytes += world.context()->ledger().peak_reserved_bytes();
  result.parameters = model.num_parameters();
  result.boost_seconds = boost_seconds;
  result.seconds = SecondsSince(first) / static_cast<double>(options.steps);
  result.loss = loss;
}

}  // namespace

int main(int argc, char** argv) {
  UseBlockingWaits(argv);
  Options options;
  CLI::App app("The memory of fine-tuning a Llama in 4 bits.");
  app.add_option("--size", options.size)
      ->capture_default_str()
      ->check(CLI::IsMember({"tiny", "1.1b", "7b"}));
  app.add_option("--quantize", options.quantize, "none, nf4 or int8")->capture_default_str();
  app.add_option("--precision", options.precision, "f32 or bf16")->capture_default_str();
  app.add_option("--ranks", options.ranks)->capture_default_str()->check(CLI::PositiveNumber);
  app.add_option("--threads", options.threads, "CPU threads per rank")->capture_default_str();
  app.add_option("--steps", options.steps)->capture_default_str()->check(CLI::PositiveNumber);
  app.add_option("--tokens", options.tokens, "Of each rank's sequence")->capture_default_str();
  app.add_option("--rank", options.rank, "Of the adapter")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    Result result;
    OkOrThrow(comm::launch({.num_ranks = options.ranks, .threads_per_rank = options.threads},
                           [&](comm::World& world) { Train(world, options, result); }));
    const int64_t process = ValueOrThrow(ReadProcessMemory()).peak_own_bytes();
    std::printf(
        "{\"size\": \"%s\", \"parameters\": %lld, \"base\": \"%s\", \"ranks\": %d, \"peak_mib\": "
        "%lld, \"process_mib\": %lld, \"boost_s\": %.1f, \"step_s\": %.2f, \"loss\": %.4f}\n",
        options.size.c_str(), static_cast<long long>(result.parameters), options.quantize.c_str(),
        options.ranks, static_cast<long long>(result.peak_bytes >> 20),
        static_cast<long long>(process >> 20), result.boost_seconds, result.seconds, result.loss);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "qlora_bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
