// SPDX-License-Identifier: Apache-2.0

#include "apogee/driver/plugin_flags.h"

#include <utility>
#include <vector>

#include "apogee/comm/launch.h"
#include "apogee/core/text/text.h"
#include "apogee/driver/reports.h"
#include "apogee/tensor/cpu/cpu_context.h"

namespace apogee::driver {
namespace {

struct FlagOfOption {
  const char *plugin, *option, *flag;
};
constexpr FlagOfOption kFlags[] = {{"ddp", "reproducible", "--reproducible"},
                                   {"hybrid", "tp_size", "--tp-size"},
                                   {"hybrid", "stage", "--zero-stage"}};

}  // namespace

void PluginFlags::Declare(CommandLine& line) {
  line.Group("Plugin");
  std::string own;  // plugins of the program
  const PluginRegistry library;
  for (const std::string& known : registry.names()) {
    if (!library.contains(known)) own += ", " + known;
  }
  line.AddText("--plugin", name,
               "single (one rank), ddp (data parallel), zero1 (also shards optimizer states), "
               "zero2 (also gradients), gemini (also parameters), hybrid (tensor parallel over "
               "--tp-size ranks, data parallel over the replicas)" +
                   own + "; default: single for one rank, else ddp");
  line.AddOptions("plugin", options);
  line.AddCount("--tp-size", tp_size,
                "Tensor-parallel size of hybrid; must divide --ranks and the model's heads");
  line.AddCount("--zero-stage", zero_stage,
                "ZeRO stage of hybrid, over the replicas: 1 shards optimizer states, 2 also "
                "gradients, 3 also parameters",
                0);
  line.AddSwitch("--reproducible", reproducible,
                 "Give the same losses, bit for bit, for any --ranks; implies --plugin ddp");
}

void PluginFlags::Settle(const CommandLine& line, const RunFlags& flags) {
  if (name.empty()) name = flags.ranks > 1 || reproducible ? "ddp" : "single";
  if (!registry.contains(name)) Throw("--plugin: ", UnknownName("plugin", name, registry.names()));
  // The checks below, and the run's description, are about the values of the flags.
  for (const auto& [plugin, option, flag] : kFlags) {
    if (name == plugin && options.contains(option)) {
      Throw("--plugin.", option, " has a flag of its own: use ", flag);
    }
  }
  for (const std::string flag : {"--tp-size", "--zero-stage"}) {
    if (line.given(flag) && name != "hybrid") {
      Throw(flag, " has no effect with --plugin ", name, "; use --plugin hybrid");
    }
  }
  if (reproducible && name != "ddp") {
    Throw("--reproducible has no effect with --plugin ", name, "; use --plugin ddp");
  }
  if (name == "single") {
    if (flags.ranks > 1) {
      Throw("--plugin single runs one rank, got --ranks ", flags.ranks, "; use --plugin ddp");
    }
    if (flags.training.precision == Precision::kFp16) {
      Throw("--precision fp16 needs a loss scale, which --plugin ddp has; add that flag");
    }
  }
  if (flags.ranks % tp_size != 0) {
    Throw("--tp-size ", tp_size, " does not divide --ranks ", flags.ranks);
  }
  std::string reason = "--ranks " + std::to_string(flags.ranks);
  if (tp_size > 1) reason += " in groups of --tp-size " + std::to_string(tp_size);
  flags.CheckBatch(flags.ranks / tp_size, reason);

  if (reproducible) options["reproducible"] = "true";
  if (name == "hybrid") {
    options["tp_size"] = std::to_string(tp_size);
    options["stage"] = std::to_string(zero_stage);
  }
  // A plugin of one rank reports unsupported options best.
  Make(comm::World(0, 1, CpuContext(), nullptr), flags);
}

std::unique_ptr<Plugin> PluginFlags::Make(const comm::World& world, const RunFlags& flags) const {
  return ValueOrThrow(registry.Make(name, world, flags.training, options));
}

RunConfig::Texts PluginFlags::Settings(RunConfig::Texts own) const {
  own["reproducible"] = reproducible ? "true" : "false";
  own["tp_size"] = std::to_string(tp_size);
  own["zero_stage"] = std::to_string(zero_stage);
  return own;
}

std::string PluginFlags::Layout(const comm::World& world) const {
  if (name != "hybrid") return "";
  HybridParallelOptions hybrid;
  OkOrThrow(optim::SetOptions(options, "--plugin hybrid", hybrid));
  return DescribeMesh(world, hybrid);
}

}  // namespace apogee::driver
