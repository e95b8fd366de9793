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
  app.add_option("--plan-svg", f.plan_svg,
                 "Draw which rank holds which part of each parameter to this file");

  std::string group = "Ranks";
  const auto add = [&](const std::string& name, auto& value, const std::string& help) {
    return app.add_option(name, value, help)->group(group)->capture_default_str();
  };
  add("--ranks", f.ranks,
      "Ranks. They are threads of this process; under mpirun and srun they are the processes, so "
      "leave --ranks out there")
      ->check(count);
  add("--tp-size", f.parallel.tp_size,
      "Tensor-parallel size; must divide --ranks, --heads, --kv-heads and --hidden");
  add("--zero-stage", f.parallel.stage,
      "ZeRO stage over the replicas: 0 shards nothing, 1 optimizer states, 2 also gradients, 3 "
      "also parameters");
  add("--threads", f.threads, "CPU threads of all ranks together; default: one per core")
      ->default_str("");

  DeclareLlamaFlags(app, f.model);

  group = "Training";
  add("--steps", f.steps, "Optimizer steps")->check(count);
  add("--batch", f.batch, "Samples per micro-batch, of all ranks together")->check(count);
  add("--accumulate", f.accumulate, "Micro-batches per optimizer step")->check(count);
  add("--precision", f.precision,
      "f32, bf16 or fp16 (with f32 masters), f64, or auto: bf16 if the processor has bf16 "
      "multiplication, else f32");
  add("--optimizer", f.optimizer, Join(optim::OptimizerNames()));
  add("--lr", f.lr, "Highest learning rate, reached after a tenth of --steps")
      ->check(Between(0, HUGE_VAL));
  add("--max-norm", f.training.max_norm, "Clip the gradients' global norm to this; 0: off")
      ->check(Between(0, HUGE_VAL));
  add("--seed", f.seed, "Seed of the weights, the order of the data and the sample")
      ->check(Unsigned());

  DeclareCheckpointFlags(app, f.checkpoints);
  DeclareTraceFlag(app, f.trace);
  DeclareDeviceFlag(app, f.device);
  DeclareCommFlag(app, f.comm);
  DeclareTimeoutFlag(app, f.timeout_seconds);
  DeclareFlightRecordsFlag(app, f.flight_records);

  group = "Report";
  add("--log-every", f.log_every, "Steps between two lines that stay on the terminal")
      ->check(count);
  add("--prompt", f.prompt, "Text that the sample continues");
  add("--sample", f.sample, "Bytes to generate at the end")->check(Count(0));
  app.footer(
      "Options of the optimizer: --optim.KEY=VALUE, for instance --optim.weight_decay=0.1\n"
      "Exit code: 0 trained, 1 the run failed (data, ranks that do not fit the model, loss, "
      "disk),\n"
      "2 wrong usage, 143 or 130 stopped early by SIGTERM or SIGINT, with a checkpoint.");
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
  if (flags.prompt.empty()) Throw("--prompt must not be empty: the sample continues it");
  // boost reports a --tp-size that does not divide --ranks, together with everything else that does
  // not fit.
  if (flags.ranks % flags.parallel.tp_size != 0) return;
  const int copies = flags.ranks / flags.parallel.tp_size;
  CheckBatch(
      flags.batch, copies,
      "the " + std::to_string(copies) + " replicas of the model that --ranks and --tp-size give");
}

}  // namespace

RunConfig RunConfigOf(const Flags& flags) {
  return DescribeRun(flags.optimizer, flags.checkpoints,
                     {{"steps", std::to_string(flags.steps)},
                      {"accumulate", std::to_string(flags.accumulate)},
                      {"schedule", "cosine"},
                      {"max_norm", optim::FormatOption(flags.training.max_norm)},
                      {"device", flags.device},
                      {"threads_per_rank", std::to_string(flags.threads_per_rank)},
                      {"tp_size", std::to_string(flags.parallel.tp_size)},
                      {"zero_stage", std::to_string(flags.parallel.stage)}});
}

std::optional<int> ParseFlags(int argc, char** argv, Flags& flags) {
  flags.ranks = DefaultRanks(flags.ranks);
  CLI::App app("Trains a Llama on text, byte by byte, with tensor and data parallelism.",
               "03_train_llama_hybrid");
  DeclareFlags(app, flags);
  return ParseCommandLine(app, argc, argv, [&](std::vector<std::string>& words) {
    TakeOptions("optim", words, flags.optimizer_options);
    flags.optimizer_options.try_emplace("lr", optim::FormatOption(flags.lr));
    flags.precision = SettlePrecision(flags.precision);
    flags.training.precision = ValueOrThrow(ParsePrecision(flags.precision));
    flags.threads_per_rank = ThreadsPerRank(flags.threads, flags.ranks);
    CheckCheckpointFlags(app, flags.checkpoints, flags.out);
    CheckSettings(flags);
  });
}
