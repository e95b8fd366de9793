// SPDX-License-Identifier: Apache-2.0

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>
#include <utility>

#include "apogee/booster/metrics/line_file.h"
#include "apogee/checkpoint/files/file_system.h"
#include "apogee/checkpoint/files/folder.h"
#include "apogee/checkpoint/format/open_tensor_file.h"
#include "apogee/plan/machine/measure.h"
#include "apogee/plan/machine/rates.h"
#include "apogee/tools/plan/flags.h"
#include "apogee/tools/plan/units.h"

namespace apogee::tools {
namespace {

std::string RatesPath(const PlanFlags& flags) {
  if (!flags.rates.empty()) return flags.rates;
  const char* const cache = std::getenv("XDG_CACHE_HOME");  // NOLINT(concurrency-mt-unsafe)
  const char* const home = std::getenv("HOME");             // NOLINT(concurrency-mt-unsafe)
  const std::string folder = cache != nullptr && *cache != 0 ? std::string(cache)
                             : home != nullptr               ? std::string(home) + "/.cache"
                                                             : ".";
  return folder + "/apogee/rates.json";
}

absl::StatusOr<std::optional<plan::Machine>> Measured(const PlanFlags& flags,
                                                      const plan::TrainingSetup& setup,
                                                      int num_ranks) {
  const std::string path = RatesPath(flags);
  const std::shared_ptr<checkpoint::FileSystem> files = checkpoint::RealFileSystem();
  plan::Rates rates = plan::RatesOfThisMachine();
  std::error_code error;
  const bool exists = std::filesystem::exists(path, error);
  if (exists) {
    APOGEE_ASSIGN_OR_RETURN(const std::string text,
                            checkpoint::ReadTextFile(*files, path, plan::kMaxRatesBytes));
    APOGEE_ASSIGN_OR_RETURN(plan::Rates kept, plan::ParseRates(text, path));
    if (kept.processor == rates.processor && kept.cores == rates.cores)
      rates = std::move(kept);
    else if (!flags.measure && !flags.rates.empty())
      rates = std::move(kept);
  }
  if (flags.measure) {
    std::cerr << "apogee plan: measuring, about 40 s\n";
    APOGEE_ASSIGN_OR_RETURN(const plan::Rates measured,
                            plan::MeasureRates({.threads = flags.options.threads_per_rank,
                                                .precision = setup.training.precision,
                                                .setup = &setup}));
    plan::Merge(measured, rates);
    std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
    APOGEE_RETURN_IF_ERROR(LineFile::Replace(path, plan::ToJson(rates)));
  } else if (!exists) {
    if (!flags.rates.empty()) return NotFound(path, ": there is no such file; add --measure");
    return std::optional<plan::Machine>();
  }
  absl::StatusOr<plan::Machine> machine =
      plan::MachineOf(rates, num_ranks, flags.options.threads_per_rank, setup.training.precision);
  if (absl::IsNotFound(machine.status()) && flags.rates.empty()) {
    std::cerr << "apogee plan: without times of steps: " << Message(machine.status()) << "\n";
    return std::optional<plan::Machine>();
  }
  APOGEE_RETURN_IF_ERROR(machine.status());
  return std::optional(*std::move(machine));
}

// Its kernels take what the rates say, without a rate of their own for each.
absl::StatusOr<plan::Machine> Declared(const PlanFlags& flags, int num_ranks) {
  if (flags.measure || !flags.rates.empty()) {
    return InvalidArgument(
        "--flops declares a machine, --measure and --rates take a measured one; "
        "leave one of them out");
  }
  if (flags.memory_bandwidth.empty()) {
    return InvalidArgument(
        "--flops needs --memory-bandwidth, such as 3TB/s: most kernels are as "
        "fast as the memory");
  }
  if (num_ranks > 1 && flags.ranks_per_machine > 1 && flags.local_link.empty()) {
    return InvalidArgument("--flops with ", num_ranks,
                           " ranks needs --local-link, such as 450GB/s, "
                           "for ranks on one machine");
  }
  if (num_ranks > flags.ranks_per_machine && flags.link.empty()) {
    return InvalidArgument("--flops with ", num_ranks, " ranks on machines of ",
                           flags.ranks_per_machine, " needs --link, such as 400Gb/s, of a rank");
  }
  plan::Machine machine{.name = "a declared machine", .ranks_per_machine = flags.ranks_per_machine};
  APOGEE_ASSIGN_OR_RETURN(machine.other.seconds_per_call,
                          ParseQuantity("--kernel-time", flags.kernel_time, Quantity::kTime));
  APOGEE_ASSIGN_OR_RETURN(const double flops,
                          ParseQuantity("--flops", flags.flops, Quantity::kFlops));
  machine.other.seconds_per_flop = 1 / flops;
  APOGEE_ASSIGN_OR_RETURN(
      const double bandwidth,
      ParseQuantity("--memory-bandwidth", flags.memory_bandwidth, Quantity::kRate));
  machine.other.seconds_per_byte = 1 / bandwidth;
  const auto set_link = [](plan::Link& link, const char* flag, const std::string& rate,
                           const char* latency_flag, const std::string& latency) -> absl::Status {
    if (rate.empty()) return absl::OkStatus();
    APOGEE_ASSIGN_OR_RETURN(link.bytes_per_second, ParseQuantity(flag, rate, Quantity::kRate));
    APOGEE_ASSIGN_OR_RETURN(link.latency_seconds,
                            ParseQuantity(latency_flag, latency, Quantity::kTime));
    return absl::OkStatus();
  };
  APOGEE_RETURN_IF_ERROR(set_link(machine.within, "--local-link", flags.local_link,
                                  "--local-latency", flags.local_latency));
  APOGEE_RETURN_IF_ERROR(
      set_link(machine.between, "--link", flags.link, "--latency", flags.latency));
  return machine;
}

}  // namespace

absl::StatusOr<std::optional<plan::Machine>> MachineOf(const PlanFlags& flags,
                                                       const plan::TrainingSetup& setup,
                                                       int num_ranks) {
  if (flags.flops.empty()) {
    for (const auto& [flag, value] :
         {std::pair("--memory-bandwidth", flags.memory_bandwidth), std::pair("--link", flags.link),
          std::pair("--local-link", flags.local_link)}) {
      if (value.empty()) continue;
      return InvalidArgument(flag, " is part of a declared machine; give --flops, too");
    }
    return Measured(flags, setup, num_ranks);
  }
  APOGEE_ASSIGN_OR_RETURN(plan::Machine machine, Declared(flags, num_ranks));
  return std::optional(std::move(machine));
}

}  // namespace apogee::tools
