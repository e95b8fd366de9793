// SPDX-License-Identifier: Apache-2.0

#include "flags.h"

#include <CLI/CLI.hpp>
#include <cmath>

#include "apogee/core/status.h"
#include "apogee/examples/common/command_line.h"
#include "apogee/examples/common/llama_flags.h"
#include "apogee/examples/common/ranks.h"
#include "apogee/examples/common/trace_file.h"
#include "apogee/optim/registry.h"
#include "apogee/tensor/cpu/cpu_context.h"

using namespace apogee;

namespace {

void DeclareFlags(CLI::App& app, Flags& f) {
  const CLI::Validator count = Count(1);
  PrepareApp(app);
  app.add_option("--data", f.data,
                 "Text files or directories; default: the King James Bible (Debian's bible-kjv)")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option("--out", f.out,
                 "Directory for metrics.jsonl, train.log and TensorBoard; default: none");
  std::string group = "Ranks";
  const auto add = [&](const std::string& name, auto& value, const std::string& help) {
    return app.add_option(name, value, help)->group(group)->capture_default_str();
  };
  add("--ranks", f.ranks,
      "Ranks; what --tp and --pp leave are copies. Threads of this process, or, under mpirun and "
      "srun, the processes: leave it out there")
      ->check(count);
  add("--tp", f.parallel.tp_size, "Ranks that share every layer of a stage");
  add("--pp", f.parallel.pp_size, "Stages of the pipeline, each some of the model's layers");
  add("--zero", f.parallel.zero_stage,
      "Over the copies: 0 shards nothing, 1 optimizer states, 2 gradients, too");
  add("--schedule", f.parallel.schedule, "Of the pipeline: 1f1b, interleaved or zbv");
  add("--chunks", f.parallel.num_model_chunks,
      "Parts of the model that each stage has; 0: 1 for 1f1b, else 2");
  add("--microbatches", f.microbatches, "Parts of each copy's batch, at least as many as stages")
      ->check(count);
  add("--threads", f.threads, "CPU threads, shared out over the ranks; default: one per core")
      ->default_str("");

  DeclareLlamaFlags(app, f.model);

  group = "Training";
  add("--steps", f.steps, "Optimizer steps")->check(count);
  add("--batch", f.batch, "Samples per step, of all ranks together")->check(count);
  add("--precision", f.parallel.precision,
      "f32, bf16 or fp16 (with f32 masters), f64, or auto: bf16 where the processor multiplies it, "
      "else f32");
  add("--optimizer", f.optimizer, Join(optim::OptimizerNames()));
  add("--lr", f.lr, "Learning rate, after a tenth of --steps as warm-up")
      ->check(Between(0, HUGE_VAL));
  add("--max-norm", f.parallel.max_norm, "Clip the gradients' global norm to this; 0: off")
      ->check(Between(0, HUGE_VAL));
  add("--seed", f.seed, "Of the weights and the order of the data")->check(Unsigned());
  add("--log-every", f.log_every, "Steps between two lasting lines")->check(count);
  DeclareTraceFlag(app, f.trace);
  DeclareDeviceFlag(app, f.device);
  DeclareCommFlag(app, f.comm);
  DeclareTimeoutFlag(app, f.timeout_seconds);
  DeclareFlightRecordsFlag(app, f.flight_records);
  app.footer(
      "Options of an optimizer: --optim.KEY=VALUE, for instance --optim.weight_decay=0.1\n"
      "Exit code: 0 trained, 1 the run failed (data, ranks that do not fit the model, loss, "
      "disk),\n"
      "2 wrong usage.");
}

// Makes a small one of everything: each says best what it does not take.
void CheckSettings(const Flags& flags) {
  const ContextPtr context = CpuContext();
  const comm::World world(0, 1, context, nullptr);
  const HybridParallelPlugin plugin(world, flags.parallel);
  const nn::Llama model(flags.model);
  const auto weight =
      std::make_shared<autograd::Parameter>("weight", Tensor::Zeros({1}, DType::kF32, context));
  ValueOrThrow(optim::MakeOptimizer(flags.optimizer, {weight}, flags.optimizer_options));
  // Sizes that do not divide are boost's to tell, with all else that does not fit.
  const int model_ranks = flags.parallel.tp_size * flags.parallel.pp_size;
  if (flags.ranks % model_ranks != 0) return;
  const int copies = flags.ranks / model_ranks;
  CheckBatch(
      flags.batch, copies,
      "the " + std::to_string(copies) + " copies of the model that --ranks, --tp and --pp make");
}

}  // namespace

std::optional<int> ParseFlags(int argc, char** argv, Flags& flags) {
  flags.ranks = DefaultRanks(flags.ranks);
  CLI::App app("Trains a Llama on text over pipeline stages, shared layers and copies.",
               "05_train_3d");
  DeclareFlags(app, flags);
  return ParseCommandLine(app, argc, argv, [&](std::vector<std::string>& words) {
    TakeOptions("optim", words, flags.optimizer_options);
    flags.optimizer_options.try_emplace("lr", optim::FormatOption(flags.lr));
    flags.parallel.precision = SettlePrecision(flags.parallel.precision);
    flags.threads_per_rank = ThreadsPerRank(flags.threads, flags.ranks);
    // Without a pipeline a batch is one micro-batch, which trains the same.
    if (flags.parallel.pp_size > 1) flags.parallel.num_microbatches = flags.microbatches;
    CheckSettings(flags);
  });
}
