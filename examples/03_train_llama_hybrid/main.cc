// SPDX-License-Identifier: Apache-2.0

// Trains a Llama on text with HybridParallelPlugin: tensor parallelism over --tp-size ranks, data
// parallelism over the replicas, and ZeRO over the replicas. Copy this program for that; model,
// optimizer and loop are those of one rank.
//
//   03_train_llama_hybrid --plan-svg plan.svg                     # 4 ranks: tp 2, dp 2, ZeRO 2
//   03_train_llama_hybrid --ranks 1 --tp-size 1 --zero-stage 0    # the same training on one rank
#include <string>

#include "apogee/apogee.h"
#include "apogee/booster/metrics/line_file.h"
#include "apogee/driver/model_flags.h"
#include "apogee/driver/reports.h"
#include "apogee/driver/text_run.h"

using namespace apogee;

namespace {

struct Flags : driver::RunFlags {
  // Grouped queries: six heads share two key-value heads.
  nn::LlamaConfig model = {.vocab_size = 256,
                           .hidden_size = 192,
                           .intermediate_size = 512,
                           .num_hidden_layers = 4,
                           .num_attention_heads = 6,
                           .num_key_value_heads = 2};
  HybridParallelOptions parallel = {.tp_size = 2, .stage = 2};
  std::string plan_svg;  // empty: no picture
};

void Declare(driver::CommandLine& line, Flags& flags) {
  flags.steps = 600;
  flags.ranks = 4;
  flags.lr = 2e-3;
  flags.training.precision = driver::FastPrecision();
  flags.Declare(line);
  driver::DeclareLlamaFlags(line, flags.model);
  line.Group("Parallelism");
  line.AddCount("--tp-size", flags.parallel.tp_size,
                "Tensor-parallel size; must divide --ranks, --heads, --kv-heads and --hidden");
  line.AddCount("--zero-stage", flags.parallel.stage,
                "ZeRO stage over the replicas: 0 shards nothing, 1 optimizer states, 2 also "
                "gradients, 3 also parameters",
                0);
  line.AddText("--plan-svg", flags.plan_svg,
               "Draw which rank holds which part of each parameter to this file; with --report: to "
               "OUT/shard_map.svg");
}

// Checks the flags together. boost reports a --tp-size that does not divide --ranks, together with
// everything else that does not fit.
void Settle(Flags& flags) {
  flags.model.max_position_embeddings = flags.block;
  const nn::Llama model(flags.model);
  const comm::World one(0, 1, CpuContext(), nullptr);
  const HybridParallelPlugin plugin(one, flags.training, flags.parallel);
  flags.CheckReplicas(flags.parallel.tp_size, "--ranks and --tp-size");
  if (flags.report && flags.plan_svg.empty()) flags.plan_svg = flags.out + "/shard_map.svg";
}

void DrawPlan(const Boosted& boosted, const comm::World& world, const Flags& flags) {
  if (flags.plan_svg.empty()) return;
  const std::string svg =
      ShardMapSvg(boosted.optimizer, world.group(),
                  {.model = std::string("llama, ") + Name(flags.training.precision),
                   .tp_size = flags.parallel.tp_size,
                   .zero_stage = flags.parallel.stage});
  if (world.rank() == 0) OkOrThrow(ValueOrThrow(LineFile::Create(flags.plan_svg))->Append(svg));
}

// Every rank runs this; returns the program's exit code.
int Train(const driver::Rank& rank, const Flags& flags) {
  // The ordinary training setup. Every rank makes the whole model; boost keeps this rank's shard.
  nn::LlamaConfig config = flags.model;
  config.vocab_size = rank.corpus.tokenizer->vocab_size();
  nn::Llama model(config);
  model.Initialize(rank.world.context(), {.seed = flags.seed});
  const int64_t num_parameters = model.num_parameters();
  const auto optimizer = flags.MakeOptimizer(model.Parameters());
  optim::LrScheduler scheduler(*optimizer, flags.MakeSchedule());

  const int tp_size = flags.parallel.tp_size, stage = flags.parallel.stage;
  HybridParallelPlugin plugin(rank.world, flags.training, flags.parallel);
  Booster booster(plugin);
  driver::TextRun run(
      rank, flags, booster, plugin,
      {{"tp_size", std::to_string(tp_size)}, {"zero_stage", std::to_string(stage)}});
  Boosted boosted = booster.boost(model, *optimizer,
                                  {.criterion = nn::CrossEntropyLoss(), .scheduler = &scheduler});
  // Ranks of one tensor-parallel group read the same samples; the replicas divide each batch.
  const std::string layout = driver::DescribeMesh(rank.world, flags.parallel);
  if (!run.Start(boosted, scheduler, {"Llama", num_parameters, layout})) return 0;
  DrawPlan(boosted, rank.world, flags);

  const Accumulation window = booster.accumulate(flags.accumulate);
  for (auto& samples : run.samples()) {
    // In training the logits are sharded by vocabulary; boosted.criterion can handle that.
    booster.backward(boosted.criterion(boosted.model(samples.inputs), samples.targets),
                     boosted.optimizer);
    if (!window.is_complete()) continue;
    run.BeforeStep(window.loss());
    boosted.optimizer.step();
    boosted.optimizer.zero_grad();
    scheduler.step();
    if (run.AfterStep()) return run.exit_code();
  }
  run.Validate();
  run.ReportMemory();
  run.WriteSample();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  return driver::Run(argc, argv, flags,
                     {.name = "03_train_llama_hybrid",
                      .about = "Trains a Llama with tensor parallelism.",
                      .declare = [&](driver::CommandLine& line) { Declare(line, flags); },
                      .settle = [&](const driver::CommandLine&) { Settle(flags); },
                      .train = [&](const driver::Rank& rank) { return Train(rank, flags); }});
}
