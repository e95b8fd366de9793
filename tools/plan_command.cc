// SPDX-License-Identifier: Apache-2.0

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "apogee/core/process/thread_team.h"
#include "apogee/plan/plan.h"
#include "apogee/plan/scaling.h"
#include "apogee/tools/command.h"
#include "apogee/tools/plan/flags.h"
#include "apogee/tools/plan/units.h"
#include "apogee/tools/report_error.h"

namespace apogee::tools {
namespace {

absl::Status SetReliability(const PlanFlags& flags, plan::ReliabilityOptions& options) {
  const auto set = [](const char* flag, const std::string& text, double& value) -> absl::Status {
    if (text.empty()) return absl::OkStatus();
    APOGEE_ASSIGN_OR_RETURN(value, ParseQuantity(flag, text, Quantity::kTime));
    return absl::OkStatus();
  };
  APOGEE_RETURN_IF_ERROR(set("--rank-mttf", flags.rank_mttf, options.rank_mttf_seconds));
  APOGEE_RETURN_IF_ERROR(set("--save-time", flags.save_time, options.save_seconds));
  return set("--restart-time", flags.restart_time, options.restart_seconds);
}

absl::Status ShowScaling(const PlanFlags& flags, const plan::TrainingSetup& setup,
                         const plan::PlanOptions& options) {
  std::string json;
  for (const plan::Scaling scaling : {plan::Scaling::kStrong, plan::Scaling::kWeak}) {
    APOGEE_ASSIGN_OR_RETURN(const std::vector<plan::ScalingPoint> points,
                            plan::Scale(setup, options, flags.scale, scaling));
    const bool is_strong = scaling == plan::Scaling::kStrong;
    if (flags.json) {
      json += (is_strong ? "{\"strong\": " : ", \"weak\": ") + plan::JsonOf(points);
    } else {
      std::cout << (is_strong ? plan::Describe(setup) + "\n" : "\n")
                << plan::TableOf(points, scaling);
    }
  }
  if (flags.json) std::cout << json << "}\n";
  if (!flags.json) std::cout << "Simulated with the rates of " << options.machine->name << ".\n";
  return absl::OkStatus();
}

absl::Status Show(const PlanFlags& flags) {
  plan::PlanOptions options = flags.options;
  if (!flags.memory.empty()) {
    APOGEE_ASSIGN_OR_RETURN(const double bytes,
                            ParseQuantity("--memory", flags.memory, Quantity::kBytes));
    if (bytes < 1 || bytes > 1e18) {
      return InvalidArgument("--memory is \"", flags.memory, "\"; it must be at most 1e18 bytes");
    }
    options.device_bytes = static_cast<int64_t>(bytes);
  }
  APOGEE_RETURN_IF_ERROR(SetReliability(flags, options.reliability));
  APOGEE_ASSIGN_OR_RETURN(const plan::TrainingSetup setup, SetupOf(flags));
  const int most = flags.scale.empty() ? options.num_ranks : std::ranges::max(flags.scale);
  APOGEE_ASSIGN_OR_RETURN(options.machine, MachineOf(flags, setup, most));
  if (!flags.scale.empty()) return ShowScaling(flags, setup, options);
  APOGEE_ASSIGN_OR_RETURN(const plan::PlanReport report, plan::Plan(setup, options));
  std::cout << (flags.json ? plan::JsonOf(report) : plan::TableOf(report));
  return absl::OkStatus();
}

constexpr const char* kDeclared = "A declared machine, for the times of steps";

int Run(const PlanFlags& flags) {
  const absl::Status status = Show(flags);
  return status.ok() ? 0 : ReportError("plan", status);
}

}  // namespace

void AddPlanCommand(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<PlanFlags>();
  flags->setup.tokens = 0;
  CLI::App* command = app.add_subcommand(
      "plan", "Show which plugins fit a model, and the memory, traffic and step time of each");
  std::string known;
  for (const std::string& name : plan::KnownModels()) known += (known.empty() ? "" : ", ") + name;
  command
      ->add_option("model", flags->model,
                   "A config.json of a Hugging Face folder, the folder, or one of " + known)
      ->required();
  command->add_option("--set", flags->fields, "Fields of the config to replace, as KEY=VALUE");
  command->add_option("--ranks", flags->options.num_ranks, "Number of ranks")
      ->check(CLI::Range(1, plan::kMaxRanks));
  command->add_option("--memory", flags->memory, "Memory for each rank, such as 80GiB");
  command->add_option("--precision", flags->precision, "f32, bf16, fp16 or f64")
      ->check([](const std::string& text) { return Message(ParsePrecision(text).status()); });
  const auto count = [&](const char* flag, int64_t& value, const char* help) {
    command->add_option(flag, value, help)->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  };
  count("--batch", flags->setup.batch, "Samples of a step, of all ranks together");
  count("--tokens", flags->setup.tokens,
        "Tokens of a sample; default: as many as the model takes, at most 2048");
  count("--accumulate", flags->setup.accumulate, "Micro-batches of a step");
  command->add_option("--optimizer", flags->setup.optimizer, "Optimizer, as for the programs");
  command->add_option("--optim", flags->optimizer_options, "Its options, as KEY=VALUE");
  command->add_option("--max-norm", flags->setup.training.max_norm, "Clip gradients to this norm")
      ->check(CLI::NonNegativeNumber);
  command
      ->add_option("--lora-rank", flags->lora_rank,
                   "Train an adapter of this rank in place of the model (LoRA)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  command->add_option("--lora-target", flags->lora_targets,
                      "Its layers: ends of their names; default: all linear ones but the output");
  command
      ->add_option("--quantize", flags->quantize,
                   "With --lora-rank: hold the base in 4 bits (nf4) or 8 (int8)")
      ->check([](const std::string& text) { return Message(nn::ParseQuantize(text).status()); });
  command->add_flag("--recompute", flags->setup.recompute,
                    "Recompute the activations of layers in backward");
  command->add_flag("--recompute-activations", flags->model_options.recompute_activations,
                    "Recompute only the results of norms and activation functions");
  command
      ->add_option("--head-chunks", flags->model_options.head_chunks,
                   "Compute logits and loss over so many chunks of tokens; 0: all at once")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 30));
  command->add_option("--threads", flags->options.threads_per_rank, "CPU threads of a rank")
      ->check(CLI::Range(1, kMaxThreads));
  command->add_option("--only", flags->options.only,
                      "Only plugins and meshes with this text in their name");
  command->add_flag("--measure", flags->measure,
                    "Measure this machine's kernels and collectives (about 40 s) and keep them in "
                    "the file of --rates");
  command->add_option("--rates", flags->rates,
                      "The file of measured rates; default: apogee/rates.json in "
                      "$XDG_CACHE_HOME or ~/.cache");
  command
      ->add_option("--flops", flags->flops,
                   "Declare a machine instead: FLOP/s that products reach on a rank, such as "
                   "400T")
      ->group(kDeclared);
  const auto declare = [&](const char* flag, std::string& value, const char* help) {
    command->add_option(flag, value, help)->group(kDeclared);
  };
  declare("--memory-bandwidth", flags->memory_bandwidth, "Of a rank's memory, such as 3TB/s");
  declare("--kernel-time", flags->kernel_time, "The shortest time of a kernel; default 3us");
  command
      ->add_option("--ranks-per-machine", flags->ranks_per_machine, "Ranks on a machine; default 8")
      ->check(CLI::Range(1, plan::kMaxRanks))
      ->group(kDeclared);
  declare("--link", flags->link, "Of a rank to other machines, one direction, such as 400Gb/s");
  declare("--latency", flags->latency, "Of a message between machines; default 5us");
  declare("--local-link", flags->local_link, "Of a rank within its machine, such as 450GB/s");
  declare("--local-latency", flags->local_latency, "Within a machine; default 3us");
  command
      ->add_option("--scale", flags->scale,
                   "Tables of strong and weak scaling over these numbers of ranks, such as "
                   "64,1024,16384")
      ->delimiter(',')
      ->check(CLI::Range(1, plan::kMaxRanks))
      ->excludes("--ranks");
  const auto fail = [&](const char* flag, std::string& value, const char* help) {
    command->add_option(flag, value, help)->group("Failures, from 64 ranks");
  };
  fail("--rank-mttf", flags->rank_mttf,
       "Mean time between failures of a rank; default: Meta's, 7.9 h at 1,024 ranks");
  fail("--save-time", flags->save_time,
       "How long a save stops training; default: parameters and states of a rank at 1 GB/s");
  fail("--restart-time", flags->restart_time, "From a failure to the next step; default 5min");
  command->add_flag("--check", flags->options.check,
                    "Also train the steps for real here, with threads as ranks, and compare");
  command->add_flag("--json", flags->json, "Print JSON");
  command->footer(
      "Each row is a dry run of two training steps: the code of a real run, without the loops of "
      "kernels and without memory for large tensors. The figures are those of ranks on CPUs. Exit "
      "status: 0 done, 1 a damaged config, 2 wrong use or another error.");
  command->callback([flags, &exit_code] { exit_code = Run(*flags); });
}

}  // namespace apogee::tools
