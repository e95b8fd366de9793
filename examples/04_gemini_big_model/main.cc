// SPDX-License-Identifier: Apache-2.0

// Trains a GPT whose parameters, gradients and optimizer states are four times as large as the
// device may hold. GeminiPlugin keeps shards of them on the device or the host, and gathers
// parameters while they are used. At no time, not even at construction, does a rank hold the whole
// model. Copy this program for that; the loop is that of one rank.
//
//   04_gemini_big_model --map-svg map.svg                 # 2 ranks, a quarter of the need each
//   04_gemini_big_model --ranks 1 --budget-percent 50
//   04_gemini_big_model --placement static --offload-optim-frac 1
#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>

#include "apogee/booster/booster.h"
#include "apogee/booster/metrics/line_file.h"
#include "apogee/comm/launch.h"
#include "apogee/core/blocking_waits.h"
#include "apogee/core/process/standard_descriptors.h"
#include "apogee/core/text/text.h"
#include "apogee/data/loader.h"
#include "apogee/data/text_corpus.h"
#include "apogee/examples/common/program.h"
#include "apogee/examples/common/ranks.h"
#include "apogee/examples/common/trace_file.h"
#include "apogee/nn/losses.h"
#include "apogee/optim/registry.h"
#include "apogee/pictures/chunk_map.h"
#include "apogee/plugins/gemini.h"
#include "flags.h"

using namespace apogee;

namespace {

constexpr MemoryCategory kModelData[] = {MemoryCategory::kParameter, MemoryCategory::kGradient,
                                         MemoryCategory::kOptimizerState};

// Prints where this rank's model data is.
void PrintMemory(const MemoryLedger& device, const GeminiPlugin& plugin, int64_t budget_bytes) {
  std::printf("\nmodel data of rank 0       device peak      device now        host now\n");
  const ContextPtr& host = plugin.homes().host();
  for (const MemoryCategory category : kModelData) {
    std::printf("%-20s %17s %15s %15s\n", MemoryCategoryName(category),
                FormatBytes(device.peak_bytes(category)).c_str(),
                FormatBytes(device.live_bytes(category)).c_str(),
                FormatBytes(host == nullptr ? 0 : host->ledger().live_bytes(category)).c_str());
  }
  std::printf("%-20s %17s %15s %15s\n", "all", FormatBytes(device.peak_model_data_bytes()).c_str(),
              FormatBytes(device.model_data_bytes()).c_str(),
              FormatBytes(host == nullptr ? 0 : host->ledger().model_data_bytes()).c_str());
  if (budget_bytes > 0) {
    std::printf("%-20s %17s\n", "budget", FormatBytes(budget_bytes).c_str());
  }
  std::printf("other memory, at most: %s (activations, workspaces)\n",
              FormatBytes(plugin.chunk_record().peak_other_bytes()).c_str());
}

void Train(const comm::World& world, const Flags& flags, const data::TextCorpus& corpus) {
  const ContextPtr& context = world.context();
  nn::Gpt2 model(flags.model);
  // boost makes the values, one parameter at a time: no rank ever holds the whole model.
  model.InitializeLazily(context, {.seed = flags.seed});
  const int64_t num_parameters = model.num_parameters();
  const auto optimizer = ValueOrThrow(
      optim::MakeOptimizer(flags.optimizer, model.Parameters(), flags.optimizer_options));

  GeminiPlugin plugin(world.group(), flags.training, flags.gemini);
  Booster booster(plugin);
  booster.TraceTo(world.trace(), world.rank());
  Boosted boosted = booster.boost(model, *optimizer, {.criterion = nn::CrossEntropyLoss()});

  const int64_t block = flags.model.n_positions, batch = flags.batch / world.size();
  const auto dataset = std::make_shared<data::TextDataset>(corpus.train(), block);
  const auto order = std::make_shared<data::ShuffleSampler>(dataset->num_samples(), flags.seed);
  data::Loader loader(
      dataset, std::make_shared<data::DistributedSampler>(order, world.rank(), world.size(), batch),
      context, {.batch = batch, .num_batches = flags.steps});

  const bool speaks = world.rank() == 0;
  if (speaks) {
    std::printf("GPT, %s parameters, %s, %s, placement %s\n",
                FormatThousands(num_parameters).c_str(), flags.precision.c_str(),
                DescribeRanks(world).c_str(), flags.placement.c_str());
  }
  const auto start = std::chrono::steady_clock::now();
  int64_t step = 0;
  for (auto& samples : loader) {
    Tensor loss = boosted.criterion(boosted.model(samples.inputs), samples.targets);
    booster.backward(loss, boosted.optimizer);
    boosted.optimizer.step();
    boosted.optimizer.zero_grad();
    const double mean = SumOverRanks(world, {loss.Item()})[0] / world.size();
    APOGEE_CHECK(std::isfinite(mean), "step ", step + 1, ": the loss is not finite; lower --lr");
    ++step;
    if (!speaks || (step % flags.log_every != 0 && step != 1 && step != flags.steps)) continue;
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    std::printf("step %4lld  loss %.4f  %.0f tok/s\n", static_cast<long long>(step), mean,
                static_cast<double>(step * flags.batch * block) / seconds);
    std::fflush(stdout);
  }
  if (!speaks) return;
  PrintMemory(context->ledger(), plugin, flags.gemini.placement.device_budget_bytes);
  if (flags.map_svg.empty()) return;
  const std::string svg = ChunkMapSvg(
      plugin, "Chunks of rank 0, GPT with " + FormatThousands(num_parameters) + " parameters");
  OkOrThrow(ValueOrThrow(LineFile::Create(flags.map_svg))->Append(svg));
}

// The program inside RunProgram.
int Run(int argc, char** argv) {
  Flags flags;
  if (const std::optional<int> stop = ParseFlags(argc, argv, flags)) return *stop;
  TraceFile trace(flags.trace);
  const auto corpus =
      ValueOrThrow(data::TextCorpus::Load(flags.data, {.block = flags.model.n_positions}));
  OkOrThrow(comm::launch({.num_ranks = flags.ranks,
                          .threads_per_rank = flags.threads_per_rank,
                          .device = flags.device,
                          .comm = flags.comm,
                          .timeout_seconds = flags.timeout_seconds,
                          .flight_record_dir = flags.flight_records,
                          .trace = trace.get()},
                         [&](comm::World& world) { Train(world, flags, corpus); }));
  trace.Write();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  KeepStandardDescriptors();
  UseBlockingWaits(argv);
  return RunProgram("04_gemini_big_model", [&] { return Run(argc, argv); });
}
