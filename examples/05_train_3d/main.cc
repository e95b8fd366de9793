// SPDX-License-Identifier: Apache-2.0

// Trains a Llama on text over three axes: --pp pipeline stages, which work on different
// micro-batches at the same time; tensor parallelism over --tp ranks in each stage; and
// data-parallel replicas, over which ZeRO shards the optimizer states. Copy this program for a
// pipeline: booster.execute_pipeline takes the place of the loop's forward and backward.
//
//   05_train_3d --trace run.json                      # 8 ranks: pp 2, tp 2, dp 2, ZeRO 1
//   05_train_3d --pp 4 --tp 1 --schedule zbv --layers 8
//   05_train_3d --ranks 1 --tp 1 --pp 1               # the same training on one rank
#include <string>

#include "apogee/apogee.h"
#include "apogee/driver/model_flags.h"
#include "apogee/driver/reports.h"
#include "apogee/driver/text_run.h"

using namespace apogee;

namespace {

struct Flags : driver::RunFlags {
  nn::LlamaConfig model = {.vocab_size = 256,
                           .hidden_size = 128,
                           .intermediate_size = 344,
                           .num_hidden_layers = 6,
                           .num_attention_heads = 4,
                           .num_key_value_heads = 2};
  HybridParallelOptions parallel = {.tp_size = 2, .pp_size = 2, .stage = 1};
  int microbatches = 4;  // becomes parallel.num_microbatches if there is a pipeline
};

void Declare(driver::CommandLine& line, Flags& flags) {
  flags.block = 64;
  flags.steps = 200;
  flags.ranks = 8;
  flags.batch = 16;
  flags.lr = 2e-3;
  flags.training.max_norm = 0;
  flags.log_every = 20;
  flags.Declare(line, {.accumulate = false, .schedule = false, .sample = false});
  driver::DeclareLlamaFlags(line, flags.model);
  line.Group("Parallelism");
  line.AddCount("--tp", flags.parallel.tp_size, "Tensor-parallel size: ranks per stage");
  line.AddCount("--pp", flags.parallel.pp_size,
                "Pipeline stages, each with some of the model's layers");
  line.AddCount("--zero", flags.parallel.stage,
                "ZeRO stage over the replicas: 0 shards nothing, 1 optimizer states, 2 also "
                "gradients",
                0);
  line.AddChoice("--schedule", flags.parallel.schedule, pipeline::ParsePipelineSchedule,
                 "Pipeline schedule: 1f1b, interleaved or zbv");
  line.AddCount("--chunks", flags.parallel.num_model_chunks,
                "Chunks of the model per stage; 0: one for 1f1b, else two", 0);
  line.AddCount("--microbatches", flags.microbatches,
                "Micro-batches of each replica's batch, at least as many as stages");
}

// Checks the flags together. boost reports sizes that do not divide --ranks, together with
// everything else that does not fit.
void Settle(Flags& flags) {
  flags.model.max_position_embeddings = flags.block;
  // Without a pipeline a batch is one micro-batch; training is the same.
  if (flags.parallel.pp_size > 1) flags.parallel.num_microbatches = flags.microbatches;
  const nn::Llama model(flags.model);
  const comm::World one(0, 1, CpuContext(), nullptr);
  const HybridParallelPlugin plugin(one, flags.training, flags.parallel);
  flags.CheckReplicas(flags.parallel.tp_size * flags.parallel.pp_size, "--ranks, --tp and --pp");
}

// Every rank runs this; returns the program's exit code.
int Train(const driver::Rank& rank, const Flags& flags) {
  // Each rank makes only the values that it uses: no rank ever has the whole model.
  nn::LlamaConfig config = flags.model;
  config.vocab_size = rank.corpus.tokenizer->vocab_size();
  nn::Llama model(config);
  model.InitializeLazily(rank.world.context(), {.seed = flags.seed});
  const int64_t num_parameters = model.num_parameters();
  const auto optimizer = flags.MakeOptimizer(model.Parameters());
  optim::LrScheduler scheduler(*optimizer, flags.MakeSchedule());

  const HybridParallelOptions& parallel = flags.parallel;
  HybridParallelPlugin plugin(rank.world, flags.training, parallel);
  Booster booster(plugin);
  driver::TextRun run(rank, flags, booster, plugin);
  Boosted boosted = booster.boost(model, *optimizer,
                                  {.criterion = nn::CrossEntropyLoss(), .scheduler = &scheduler});
  // All ranks of one replica (its stages and tensor-parallel groups) read the same samples.
  const std::string layout = driver::DescribeMesh(rank.world, parallel);
  if (!run.Start(boosted, scheduler, {"Llama", num_parameters, layout})) return 0;

  for (auto& samples : run.samples()) {
    // Forward and backward of all micro-batches, and the mean loss of this replica's batch.
    const PipelineResult result =
        booster.execute_pipeline(samples, boosted.model, boosted.criterion, &boosted.optimizer);
    run.BeforeStep(result.loss.Item());
    boosted.optimizer.step();
    boosted.optimizer.zero_grad();
    scheduler.step();
    if (run.AfterStep()) return run.exit_code();
  }
  run.ReportMemory();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  return driver::Run(argc, argv, flags,
                     {.name = "05_train_3d",
                      .about = "Trains a Llama with pipeline stages, tensor and data parallelism.",
                      .declare = [&](driver::CommandLine& line) { Declare(line, flags); },
                      .settle = [&](const driver::CommandLine&) { Settle(flags); },
                      .train = [&](const driver::Rank& rank) { return Train(rank, flags); },
                      .finish = [&] { driver::PrintPipelineBubble(flags.trace); }});
}
