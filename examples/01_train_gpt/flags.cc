// SPDX-License-Identifier: Apache-2.0

#include "flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "apogee/core/text/text.h"
#include "apogee/examples/common/command_line.h"
#include "apogee/examples/common/ranks.h"
#include "apogee/examples/common/trace_file.h"
#include "apogee/optim/registry.h"
#include "apogee/optim/schedule/lr_schedule_registry.h"
#include "apogee/plugins/ddp.h"
#include "apogee/plugins/gemini.h"
#include "apogee/plugins/hybrid_parallel.h"
#include "apogee/plugins/low_level_zero.h"
#include "apogee/plugins/single_rank.h"
#include "apogee/tensor/cpu/cpu_context.h"

namespace {

using apogee::Message;
using apogee::Throw;
using apogee::ValueOrThrow;

void DeclareFlags(CLI::App& app, Flags& f) {
  const CLI::Validator count = Count(1);
  PrepareApp(app);
  app.add_option("--data", f.data,
                 "Text files or folders; default: the King James Bible (Debian's bible-kjv)")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option("--out", f.out,
                 "Folder for metrics.jsonl, train.log and TensorBoard events; default: no files");

  const auto model = [&](const std::string& name, auto& value, const std::string& help) {
    return app.add_option(name, value, help)->group("Model")->capture_default_str();
  };
  model("--layers", f.model.n_layer, "Transformer blocks")->check(count);
  model("--heads", f.model.n_head, "Attention heads")->check(count);
  model("--dim", f.model.n_embd, "Width; a multiple of --heads")->check(count);
  model("--block", f.model.n_positions, "Bytes of context")->check(count);
  model("--dropout", f.model.dropout, "Dropout probability, in [0, 1)")->check(Between(0, 1));

  const auto train = [&](const std::string& name, auto& value, const std::string& help) {
    return app.add_option(name, value, help)->group("Training")->capture_default_str();
  };
  train("--steps", f.steps, "Optimizer steps")->check(count);
  train("--batch", f.batch, "Samples per micro-batch, of all ranks together")->check(count);
  train("--accumulate", f.accumulate, "Micro-batches per optimizer step")->check(count);
  train("--precision", f.precision,
        "f32, bf16 or fp16 (with f32 masters; fp16 not with --plugin single), f64, or auto: bf16 "
        "if the processor has bf16 multiplication, else f32");
  train("--optimizer", f.optimizer, Join(apogee::optim::OptimizerNames()));
  train("--lr", f.lr, "Highest learning rate of the schedule")->check(Between(0, HUGE_VAL));
  train("--schedule", f.schedule, Join(apogee::optim::LrScheduleNames()));
  train("--warmup", f.warmup, "Warm-up steps; default: a tenth of --steps")->default_str("");
  train("--max-norm", f.max_norm, "Clip the gradients' global norm to this; 0: off")
      ->check(Between(0, HUGE_VAL));
  train("--seed", f.seed, "Seed of the weights, the order of the data, dropout and the sample")
      ->check(Unsigned());

  const auto ranks = [&](const std::string& name, auto& value, const std::string& help) {
    return app.add_option(name, value, help)->group("Ranks")->capture_default_str();
  };
  ranks("--ranks", f.ranks,
        "Ranks, which must divide --batch. They are threads of this process; under mpirun and srun "
        "they are the processes, so leave --ranks out there")
      ->check(count);
  ranks("--plugin", f.plugin,
        "single (one rank), ddp (data parallel), zero1 (also shards optimizer states), zero2 (also "
        "gradients), gemini (also parameters) or hybrid (tensor parallel over --tp-size ranks, "
        "data parallel over the replicas); default: single for one rank, else ddp")
      ->default_str("");
  ranks("--tp-size", f.tp_size, "Tensor-parallel size of hybrid; must divide --ranks and --heads")
      ->check(count);
  ranks("--zero-stage", f.zero_stage,
        "ZeRO stage of hybrid, over the replicas: 1 shards optimizer states, 2 also gradients, 3 "
        "also parameters");
  app.add_flag("--cuda-graphs", f.cuda_graphs,
               "On a GPU, run each micro-batch's forward and backward as one CUDA graph; the "
               "losses are the same")
      ->group("Training");
  app.add_flag(
         "--reproducible", f.reproducible,
         "Give the same losses, bit for bit, for any --ranks (see README.md); implies --plugin ddp")
      ->group("Ranks");
  ranks("--threads", f.threads, "CPU threads of all ranks together; default: one per core")
      ->default_str("");

  DeclareCheckpointFlags(app, f.checkpoints);
  DeclareTraceFlag(app, f.trace);
  DeclareDeviceFlag(app, f.device);
  DeclareCommFlag(app, f.comm);
  DeclareTimeoutFlag(app, f.timeout_seconds);
  DeclareFlightRecordsFlag(app, f.flight_records);

  const auto report = [&](const std::string& name, auto& value, const std::string& help) {
    return app.add_option(name, value, help)->group("Report")->capture_default_str();
  };
  report("--log-every", f.log_every, "Steps between two lines that stay on the terminal")
      ->check(count);
  report("--prompt", f.prompt, "Text that the sample continues");
  report("--sample", f.sample, "Bytes to generate at the end")->check(Count(0));
  report("--temperature", f.temperature,
         "Temperature of the sample; a lower one makes likely bytes likelier")
      ->check(Between(0.01, 100));
  app.footer(
      "Options of the optimizer or schedule: --optim.KEY=VALUE, --sched.KEY=VALUE, for "
      "instance\n--optim.betas=0.9,0.95 --optim.weight_decay=0.1 --sched.eta_min=1e-4\n"
      "Exit code: 0 trained, 1 the run failed (data, loss, disk), 2 wrong usage,\n"
      "143 or 130 stopped early by SIGTERM or SIGINT, with a checkpoint.");
}

// Copies --lr, --steps and --warmup into the options of the optimizer and the schedule.
void FillOptions(const CLI::App& app, Flags& flags) {
  flags.optimizer_options.try_emplace("lr", apogee::optim::FormatOption(flags.lr));
  const auto known = ValueOrThrow(apogee::optim::LrScheduleDefaults(flags.schedule));
  if (known.contains("total_steps")) {
    flags.schedule_options.try_emplace("total_steps", std::to_string(flags.steps));
  }
  if (app.count("--warmup") > 0) {
    if (!known.contains("warmup_steps")) {
      Throw("--warmup: the schedule ", flags.schedule, " has no warm-up; leave the flag out");
    }
    flags.schedule_options["warmup_steps"] = std::to_string(flags.warmup);
  } else if (known.contains("warmup_steps")) {
    flags.schedule_options.try_emplace("warmup_steps", std::to_string(flags.steps / 10));
  }
}

// Settles the plugin and the ranks: fills in the defaults that depend on each other.
void SettleRanks(const CLI::App& app, Flags& flags) {
  if (flags.plugin.empty()) {
    flags.plugin = flags.ranks > 1 || flags.reproducible ? "ddp" : "single";
  }
  const std::vector<std::string> plugins = {"ddp", "gemini", "hybrid", "single", "zero1", "zero2"};
  if (std::ranges::find(plugins, flags.plugin) == plugins.end()) {
    Throw("--plugin: ", apogee::UnknownName("plugin", flags.plugin, plugins));
  }
  for (const std::string flag : {"--tp-size", "--zero-stage"}) {
    if (app.count(flag) > 0 && flags.plugin != "hybrid") {
      Throw(flag, " has no effect with --plugin ", flags.plugin, "; use --plugin hybrid");
    }
  }
  if (flags.reproducible && flags.plugin != "ddp") {
    Throw("--reproducible has no effect with --plugin ", flags.plugin, "; use --plugin ddp");
  }
  if (flags.plugin == "single") {
    if (flags.ranks > 1) {
      Throw("--plugin single runs one rank, got --ranks ", flags.ranks, "; use --plugin ddp");
    }
    if (flags.precision == "fp16") {
      Throw("--precision fp16 needs a loss scale, which --plugin ddp has; add that flag");
    }
  }
  if (flags.reproducible && flags.model.dropout > 0) {
    Throw("--reproducible needs --dropout 0, got ", flags.model.dropout,
          ": which mask a sample gets depends on the number of ranks and micro-batches");
  }
  if (flags.ranks % flags.tp_size != 0) {
    Throw("--tp-size ", flags.tp_size, " does not divide --ranks ", flags.ranks);
  }
  std::string reason = "--ranks " + std::to_string(flags.ranks);
  if (flags.tp_size > 1) reason += " in groups of --tp-size " + std::to_string(flags.tp_size);
  CheckBatch(flags.batch, flags.ranks / flags.tp_size, reason);
  flags.threads_per_rank = ThreadsPerRank(flags.threads, flags.ranks);
}

// Makes a small instance of everything, since each reports unsupported settings best.
void CheckSettings(const Flags& flags) {
  const apogee::comm::World world(0, 1, apogee::CpuContext(), nullptr);
  MakePlugin(flags, world);
  ValueOrThrow(apogee::optim::MakeLrSchedule(flags.schedule, flags.schedule_options));
  const auto weight = std::make_shared<apogee::autograd::Parameter>(
      "weight", apogee::Tensor::Zeros({1}, apogee::DType::kF32, apogee::CpuContext()));
  ValueOrThrow(apogee::optim::MakeOptimizer(flags.optimizer, {weight}, flags.optimizer_options));
  if (flags.model.n_embd % flags.model.n_head != 0) {
    Throw("--dim must be a multiple of --heads, got ", flags.model.n_embd, " and ",
          flags.model.n_head);
  }
  if (flags.prompt.empty()) Throw("--prompt must not be empty: the sample continues it");
}

}  // namespace

apogee::RunConfig RunConfigOf(const Flags& flags) {
  apogee::RunConfig::Texts settings = {{"steps", std::to_string(flags.steps)},
                                       {"accumulate", std::to_string(flags.accumulate)},
                                       {"schedule", flags.schedule},
                                       {"max_norm", apogee::optim::FormatOption(flags.max_norm)},
                                       {"reproducible", flags.reproducible ? "true" : "false"},
                                       {"cuda_graphs", flags.cuda_graphs ? "true" : "false"},
                                       {"device", flags.device},
                                       {"threads_per_rank", std::to_string(flags.threads_per_rank)},
                                       {"tp_size", std::to_string(flags.tp_size)},
                                       {"zero_stage", std::to_string(flags.zero_stage)}};
  for (const auto& [key, value] : flags.schedule_options) settings["schedule." + key] = value;
  return DescribeRun(flags.optimizer, flags.checkpoints, std::move(settings));
}

std::unique_ptr<apogee::Plugin> MakePlugin(const Flags& flags, const apogee::comm::World& world) {
  const apogee::TrainingOptions training{
      .precision = apogee::ValueOrThrow(apogee::ParsePrecision(flags.precision)),
      .max_norm = flags.max_norm};
  if (flags.plugin == "ddp") {
    return std::make_unique<apogee::DdpPlugin>(
        world.group(), training, apogee::DdpOptions{.reproducible = flags.reproducible});
  }
  if (flags.plugin == "gemini") {
    return std::make_unique<apogee::GeminiPlugin>(world.group(), training);
  }
  if (flags.plugin == "hybrid") {
    return std::make_unique<apogee::HybridParallelPlugin>(
        world, training,
        apogee::HybridParallelOptions{.tp_size = flags.tp_size, .stage = flags.zero_stage});
  }
  if (flags.plugin == "zero1" || flags.plugin == "zero2") {
    return std::make_unique<apogee::LowLevelZeroPlugin>(
        world.group(), training,
        apogee::LowLevelZeroOptions{.stage = flags.plugin == "zero1" ? 1 : 2});
  }
  return std::make_unique<apogee::SingleRankPlugin>(training);
}

std::optional<int> ParseFlags(int argc, char** argv, Flags& flags) {
  flags.ranks = DefaultRanks(flags.ranks);
  CLI::App app("Trains a GPT on text, byte by byte, and lets it write some.", "01_train_gpt");
  DeclareFlags(app, flags);
  return ParseCommandLine(app, argc, argv, [&](std::vector<std::string>& words) {
    TakeOptions("optim", words, flags.optimizer_options);
    TakeOptions("sched", words, flags.schedule_options);
    flags.precision = SettlePrecision(flags.precision);
    SettleRanks(app, flags);
    FillOptions(app, flags);
    CheckCheckpointFlags(app, flags.checkpoints, flags.out);
    CheckSettings(flags);
  });
}
