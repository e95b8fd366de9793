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
                 "Text files or folders; default: the King James Bible (Debian's bible-kjv)")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option("--out", f.out,
                 "Folder for metrics.jsonl, train.log and TensorBoard events; default: no files");
  std::string group = "Ranks";
  const auto add = [&](const std::string& name, auto& value, const std::string& help) {
    return app.add_option(name, value, help)->group(group)->capture_default_str();
  };
  add("--ranks", f.ranks,
      "Ranks; --tp times --pp of them are one replica of the model. They are threads of this "
      "process; under mpirun and srun they are the processes, so leave --ranks out there")
      ->check(count);
  add("--tp", f.parallel.tp_size, "Tensor-parallel size: ranks per stage");
  add("--pp", f.parallel.pp_size, "Pipeline stages, each with some of the model's layers");
  add("--zero", f.parallel.stage,
      "ZeRO stage over the replicas: 0 shards nothing, 1 optimizer states, 2 also gradients");
  add("--schedule", f.schedule, "Pipeline schedule: 1f1b, interleaved or zbv");
  add("--chunks", f.parallel.num_model_chunks,
      "Chunks of the model per stage; 0: one for 1f1b, else two");
  add("--microbatches", f.microbatches,
      "Micro-batches of each replica's batch, at least as many as stages")
      ->check(count);
  add("--threads", f.threads, "CPU threads of all ranks together; default: one per core")
      ->default_str("");

  DeclareLlamaFlags(app, f.model);

  group = "Training";
  add("--steps", f.steps, "Optimizer steps")->check(count);
  add("--batch", f.batch, "Samples per step, of all ranks together")->check(count);
  add("--precision", f.precision,
      "f32, bf16 or fp16 (with f32 masters), f64, or auto: bf16 if the processor has bf16 "
      "multiplication, else f32");
  add("--optimizer", f.optimizer, Join(optim::OptimizerNames()));
  add("--lr", f.lr, "Highest learning rate, reached after a tenth of --steps")
      ->check(Between(0, HUGE_VAL));
  add("--max-norm", f.training.max_norm, "Clip the gradients' global norm to this; 0: off")
      ->check(Between(0, HUGE_VAL));
  add("--seed", f.seed, "Seed of the weights and the order of the data")->check(Unsigned());
  add("--log-every", f.log_every, "Steps between two lines that stay on the terminal")
      ->check(count);
  DeclareTraceFlag(app, f.trace);
  DeclareDeviceFlag(app, f.device);
  DeclareCommFlag(app, f.comm);
  DeclareTimeoutFlag(app, f.timeout_seconds);
  DeclareFlightRecordsFlag(app, f.flight_records);
  app.footer(
      "Options of the optimizer: --optim.KEY=VALUE, for instance --optim.weight_decay=0.1\n"
      "Exit code: 0 trained, 1 the run failed (data, ranks that do not fit the model, loss, "
      "disk),\n"
      "2 wrong usage.");
}

// Makes a small instance of everything, since each reports unsupported settings best.
void CheckSettings(const Flags& flags) {
  const ContextPtr context = CpuContext();
  const comm::World world(0, 1, context, nullptr);
  const HybridParallelPlugin plugin(world, flags.training, flags.parallel);
  const nn::Llama model(flags.model);
  const auto weight =
      std::make_shared<autograd::Parameter>("weight", Tensor::Zeros({1}, DType::kF32, context));
  ValueOrThrow(optim::MakeOptimizer(flags.optimizer, {weight}, flags.optimizer_options));
  // boost reports sizes that do not divide --ranks, together with everything else that does not
  // fit.
  const int model_ranks = flags.parallel.tp_size * flags.parallel.pp_size;
  if (flags.ranks % model_ranks != 0) return;
  const int copies = flags.ranks / model_ranks;
  CheckBatch(
      flags.batch, copies,
      "the " + std::to_string(copies) + " replicas of the model that --ranks, --tp and --pp give");
}

}  // namespace

std::optional<int> ParseFlags(int argc, char** argv, Flags& flags) {
  flags.ranks = DefaultRanks(flags.ranks);
  CLI::App app("Trains a Llama on text with pipeline stages, tensor and data parallelism.",
               "05_train_3d");
  DeclareFlags(app, flags);
  return ParseCommandLine(app, argc, argv, [&](std::vector<std::string>& words) {
    TakeOptions("optim", words, flags.optimizer_options);
    flags.optimizer_options.try_emplace("lr", optim::FormatOption(flags.lr));
    flags.precision = SettlePrecision(flags.precision);
    flags.training.precision = ValueOrThrow(ParsePrecision(flags.precision));
    flags.parallel.schedule = ValueOrThrow(pipeline::ParsePipelineSchedule(flags.schedule));
    flags.threads_per_rank = ThreadsPerRank(flags.threads, flags.ranks);
    // Without a pipeline a batch is one micro-batch; training is the same.
    if (flags.parallel.pp_size > 1) flags.parallel.num_microbatches = flags.microbatches;
    CheckSettings(flags);
  });
}
