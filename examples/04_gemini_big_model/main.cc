// SPDX-License-Identifier: Apache-2.0

// Trains a GPT whose parameters, gradients and optimizer states are four times as large as the
// device may hold. GeminiPlugin keeps shards of them on the device or the host, and gathers
// parameters while they are used. At no time, not even at construction, does a rank hold the whole
// model. Copy this program for that; the loop is that of one rank.
//
//   04_gemini_big_model --map-svg map.svg                 # 2 ranks, a quarter of the need each
//   04_gemini_big_model --ranks 1 --budget-percent 50
//   04_gemini_big_model --placement static --offload-optim-frac 1
#include <string>

#include "apogee/apogee.h"
#include "apogee/booster/metrics/line_file.h"
#include "apogee/core/text/text.h"
#include "apogee/driver/reports.h"
#include "apogee/driver/text_run.h"

using namespace apogee;

namespace {

struct Flags : driver::RunFlags {
  nn::Gpt2Config model = {.vocab_size = 256, .n_embd = 256, .n_layer = 8, .n_head = 8};
  PlacementOptions placement = {.placement_policy = PlacementPolicy::kAuto};
  double budget_percent = 25;
  std::string map_svg;  // empty: no picture
};

void Declare(driver::CommandLine& line, Flags& flags) {
  flags.steps = 60;
  flags.ranks = 2;
  flags.training.precision = driver::FastPrecision();
  flags.schedule = "constant";
  flags.training.bucket_bytes = 1 << 20;
  flags.log_every = 10;
  flags.Declare(line, {.sample = false});
  line.Group("Model");
  line.AddCount("--layers", flags.model.n_layer, "Transformer blocks");
  line.AddCount("--heads", flags.model.n_head, "Attention heads; divides --dim");
  line.AddCount("--dim", flags.model.n_embd, "Width");
  line.Group("Memory");
  PlacementOptions& p = flags.placement;
  line.AddChoice("--placement", p.placement_policy, ParsePlacementPolicy,
                 "auto (from --budget-percent) or static (from the three fractions)");
  line.AddNumber("--budget-percent", flags.budget_percent,
                 "For auto: a device's model data, in percent of what one rank alone needs", 0,
                 1e4);
  line.AddNumber("--shard-param-frac", p.shard_param_frac,
                 "For static: fraction of the parameters that are sharded between uses");
  line.AddNumber("--offload-optim-frac", p.offload_optim_frac,
                 "For static: fraction of the optimizer data on the host");
  line.AddNumber("--offload-param-frac", p.offload_param_frac,
                 "For static: fraction of the parameter shards on the host");
  line.AddCount("--chunk-bytes", flags.training.bucket_bytes,
                "Size of the chunks in which parameters are gathered and offloaded, in bytes");
  line.AddText("--map-svg", flags.map_svg,
               "Draw when each chunk was whole on the device to this file; with --report: to "
               "OUT/chunk_map.svg");
}

// The device budget of auto placement is a part of what the model needs.
PlacementOptions PlacementFor(const Flags& flags, int64_t num_parameters) {
  PlacementOptions placement = flags.placement;
  if (placement.placement_policy != PlacementPolicy::kAuto) return placement;
  placement.device_budget_bytes = static_cast<int64_t>(
      static_cast<double>(flags.ModelDataBytes(num_parameters)) * flags.budget_percent / 100);
  return placement;
}

void Settle(Flags& flags) {
  flags.model.n_positions = flags.block;
  const GeminiPlugin plugin(
      nullptr, flags.training,
      {.placement = PlacementFor(flags, nn::Gpt2(flags.model).num_parameters())});
  flags.CheckBatch(flags.ranks, "--ranks");
  if (flags.report && flags.map_svg.empty()) flags.map_svg = flags.out + "/chunk_map.svg";
}

// Every rank runs this; returns the program's exit code.
int Train(const driver::Rank& rank, const Flags& flags) {
  nn::Gpt2Config config = flags.model;
  config.vocab_size = rank.corpus.tokenizer->vocab_size();
  nn::Gpt2 model(config);
  // boost makes the values, one parameter at a time: no rank ever holds the whole model.
  model.InitializeLazily(rank.world.context(), {.seed = flags.seed});
  const int64_t num_parameters = model.num_parameters();
  const auto optimizer = flags.MakeOptimizer(model.Parameters());
  optim::LrScheduler scheduler(*optimizer, flags.MakeSchedule());

  GeminiPlugin plugin(rank.world.group(), flags.training,
                      {.placement = PlacementFor(flags, num_parameters)});
  Booster booster(plugin);
  driver::TextRun run(rank, flags, booster, plugin);
  Boosted boosted = booster.boost(model, *optimizer,
                                  {.criterion = nn::CrossEntropyLoss(), .scheduler = &scheduler});
  const std::string layout = std::string(", placement ") + Name(flags.placement.placement_policy);
  if (!run.Start(boosted, scheduler, {"GPT-2", num_parameters, layout})) return 0;

  const Accumulation window = booster.accumulate(flags.accumulate);
  for (auto& samples : run.samples()) {
    booster.backward(boosted.criterion(boosted.model(samples.inputs), samples.targets),
                     boosted.optimizer);
    if (!window.is_complete()) continue;
    run.BeforeStep(window.loss());
    boosted.optimizer.step();
    boosted.optimizer.zero_grad();
    scheduler.step();
    if (run.AfterStep()) return run.exit_code();
  }
  run.Note(driver::DescribeModelData(rank.world.context()->ledger(), plugin));
  run.ReportMemory();
  if (rank.world.rank() != 0 || flags.map_svg.empty()) return 0;
  const std::string svg = ChunkMapSvg(
      plugin, "Chunks of rank 0, GPT with " + FormatThousands(num_parameters) + " parameters");
  OkOrThrow(ValueOrThrow(LineFile::Create(flags.map_svg))->Append(svg));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  return driver::Run(argc, argv, flags,
                     {.name = "04_gemini_big_model",
                      .about = "Trains a GPT that does not fit the device.",
                      .declare = [&](driver::CommandLine& line) { Declare(line, flags); },
                      .settle = [&](const driver::CommandLine&) { Settle(flags); },
                      .train = [&](const driver::Rank& rank) { return Train(rank, flags); }});
}
