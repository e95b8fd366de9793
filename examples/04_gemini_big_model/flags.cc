// SPDX-License-Identifier: Apache-2.0

#include "flags.h"

#include <CLI/CLI.hpp>
#include <cmath>

#include "apogee/core/status.h"
#include "apogee/examples/common/command_line.h"
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
  app.add_option("--map-svg", f.map_svg,
                 "Draw when each chunk was whole on the device to this file");
  DeclareTraceFlag(app, f.trace);
  DeclareDeviceFlag(app, f.device);
  DeclareCommFlag(app, f.comm);
  DeclareTimeoutFlag(app, f.timeout_seconds);
  DeclareFlightRecordsFlag(app, f.flight_records);

  std::string group = "Memory";
  const auto add = [&](const std::string& name, auto& value, const std::string& help) {
    return app.add_option(name, value, help)->group(group)->capture_default_str();
  };
  add("--ranks", f.ranks,
      "Ranks. They are threads of this process; under mpirun and srun they are the processes, so "
      "leave --ranks out there")
      ->check(count);
  add("--placement", f.placement,
      "auto (from --budget-percent) or static (from the three fractions)");
  add("--budget-percent", f.budget_percent,
      "For auto: model data on each rank's device, as a percentage of what one rank with the whole "
      "model needs")
      ->check(Between(0, 1e4));
  add("--shard-param-frac", f.gemini.placement.shard_param_frac,
      "For static: fraction of the parameters that are sharded between uses");
  add("--offload-optim-frac", f.gemini.placement.offload_optim_frac,
      "For static: fraction of the optimizer data on the host");
  add("--offload-param-frac", f.gemini.placement.offload_param_frac,
      "For static: fraction of the parameter shards on the host");
  add("--chunk-bytes", f.training.bucket_bytes,
      "Size of the chunks in which parameters are gathered and offloaded, in bytes")
      ->check(count);
  add("--threads", f.threads, "CPU threads of all ranks together; default: one per core")
      ->default_str("");

  group = "Model";
  add("--layers", f.model.n_layer, "Transformer blocks")->check(count);
  add("--heads", f.model.n_head, "Attention heads; divides --dim")->check(count);
  add("--dim", f.model.n_embd, "Width")->check(count);
  add("--block", f.model.n_positions, "Bytes of context")->check(count);

  group = "Training";
  add("--steps", f.steps, "Optimizer steps")->check(count);
  add("--batch", f.batch, "Samples per step, of all ranks together")->check(count);
  add("--precision", f.precision,
      "f32, bf16 or fp16 (with f32 masters), f64, or auto: bf16 if the processor has bf16 "
      "multiplication, else f32");
  add("--optimizer", f.optimizer, Join(optim::OptimizerNames()));
  add("--lr", f.lr, "Learning rate")->check(Between(0, HUGE_VAL));
  add("--max-norm", f.training.max_norm, "Clip the gradients' global norm to this; 0: off")
      ->check(Between(0, HUGE_VAL));
  add("--seed", f.seed, "Seed of the weights and the order of the data")->check(Unsigned());
  add("--log-every", f.log_every, "Steps between two lines")->check(count);
  app.footer(
      "Options of the optimizer: --optim.KEY=VALUE, for instance --optim.weight_decay=0.1\n"
      "Exit code: 0 trained, 1 the run failed (data, budget, loss, disk), 2 wrong usage.");
}

}  // namespace

std::optional<int> ParseFlags(int argc, char** argv, Flags& flags) {
  flags.ranks = DefaultRanks(flags.ranks);
  CLI::App app("Trains a GPT whose parameters, gradients and states do not fit the device.",
               "04_gemini_big_model");
  DeclareFlags(app, flags);
  return ParseCommandLine(app, argc, argv, [&](std::vector<std::string>& words) {
    TakeOptions("optim", words, flags.optimizer_options);
    flags.optimizer_options.try_emplace("lr", optim::FormatOption(flags.lr));
    flags.precision = SettlePrecision(flags.precision);
    flags.training.precision = ValueOrThrow(ParsePrecision(flags.precision));
    flags.gemini.placement.placement_policy = ValueOrThrow(ParsePlacementPolicy(flags.placement));
    flags.threads_per_rank = ThreadsPerRank(flags.threads, flags.ranks);
    if (flags.gemini.placement.placement_policy == PlacementPolicy::kAuto) {
      const int64_t per_element = flags.training.precision == Precision::kF64   ? 8 + 8
                                  : flags.training.precision == Precision::kF32 ? 4 + 4
                                                                                : 2 + 4 + 4;
      const auto weight = std::make_shared<autograd::Parameter>(
          "weight", Tensor::Zeros({1024, 1024}, DType::kF32, CpuContext()));
      const auto optimizer =
          ValueOrThrow(optim::MakeOptimizer(flags.optimizer, {weight}, flags.optimizer_options));
      const double state_bytes = static_cast<double>(optimizer->PlannedStateBytes()) /
                                 (1024.0 * 1024.0) *
                                 (flags.training.precision == Precision::kF64 ? 2 : 1);
      flags.gemini.placement.device_budget_bytes = static_cast<int64_t>(
          static_cast<double>(nn::Gpt2(flags.model).num_parameters()) *
          (static_cast<double>(per_element) + state_bytes) * flags.budget_percent / 100);
    }
    const GeminiPlugin plugin(nullptr, flags.training,
                              flags.gemini);  // reports settings that it does not support
    CheckBatch(flags.batch, flags.ranks, "--ranks");
  });
}
