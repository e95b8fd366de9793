// SPDX-License-Identifier: Apache-2.0

// Speed on a GPU, one JSON line per number; scripts/gpu_check.sh puts PyTorch's numbers next to
// them.
//
//   gpu_bench smoke                          # whether a kernel and a product work at all
//   gpu_bench kernels --only norm            # every kernel, against bytes, FLOPs and cuBLASLt
//   gpu_bench kernels --list                 # the same rows without measuring; needs no GPU
//   gpu_bench steps --params 500000000       # every optimizer's step, relative to copies
//   gpu_bench gpt --batch 16 --steps 20      # GPT-2 124M, tokens per second, and by kernel
//   gpu_bench gpt --graphed                  # with forward and backward as a CUDA graph
//
// Every command also works with --device cpu, to try the program, not to compare; --quick makes it
// small. bench/gpu/measure.h says how times are measured.
#include <CLI/CLI.hpp>
#include <iostream>

#include "apogee/bench/gpu/commands.h"
#include "apogee/core/status.h"
#include "apogee/tensor/make_context.h"

using namespace apogee;

int main(int argc, char** argv) {
  CLI::App app("Speed on a GPU; one JSON line per number");
  bench::Flags flags;
  app.add_option("--device", flags.device, "cpu, cuda or cuda:N")->capture_default_str();
  app.add_option("--repeats", flags.measure.repeats, "Samples of each side; the median counts")
      ->check(CLI::PositiveNumber);
  int64_t warm_ms = 300;
  app.add_option("--warm-ms", warm_ms, "Work before the first sample")->capture_default_str();
  app.add_flag("--quick", flags.quick, "Small sizes, few samples");
  const CLI::App* smoke = app.add_subcommand("smoke", "A kernel and a product")->fallthrough();
  CLI::App* kernels = app.add_subcommand("kernels", "Every kernel")->fallthrough();
  kernels->add_flag("--list", flags.list, "Print the rows and their formulas");
  kernels->add_option("--only", flags.only, "Only rows whose name has this text");
  CLI::App* steps = app.add_subcommand("steps", "Optimizer steps against copies")->fallthrough();
  for (CLI::App* command : {kernels, steps}) {
    command->add_option("--params", flags.params)
        ->capture_default_str()
        ->check(CLI::PositiveNumber);
  }
  CLI::App* gpt = app.add_subcommand("gpt", "Training a GPT-2")->fallthrough();
  for (CLI::App* command : {kernels, gpt}) {
    command->add_option("--batch", flags.batch)->capture_default_str()->check(CLI::PositiveNumber);
    command->add_option("--block", flags.block)->capture_default_str()->check(CLI::PositiveNumber);
  }
  gpt->add_option("--steps", flags.steps)->capture_default_str()->check(CLI::PositiveNumber);
  gpt->add_option("--precision", flags.precision)->check(CLI::IsMember({"f32", "bf16", "fp16"}));
  gpt->add_option("--size", flags.size)->check(CLI::IsMember({"124m", "tiny"}));
  gpt->add_flag("--graphed", flags.graphed, "Forward and backward as a CUDA graph");
  app.require_subcommand(1);
  CLI11_PARSE(app, argc, argv);
  flags.measure.warm_seconds = 1e-3 * static_cast<double>(warm_ms);
  if (flags.quick) flags.MakeQuick();
  try {
    if (flags.list) {
      bench::ListKernels(flags);
      return 0;
    }
    const ContextPtr context =
        ValueOrThrow(MakeContext(ValueOrThrow(ParseDevice(flags.device)).For(0)));
    if (smoke->parsed()) bench::Smoke(context);
    if (kernels->parsed()) bench::Kernels(flags, context);
    if (steps->parsed()) bench::Steps(flags, context);
    if (gpt->parsed()) bench::Gpt(flags, context);
  } catch (const std::exception& error) {
    std::cerr << "gpu_bench: " << error.what() << "\n";
    return 1;
  }
  return 0;
}
