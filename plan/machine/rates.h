// SPDX-License-Identifier: Apache-2.0

// Rates: what a machine was measured to do, and the file that keeps it.
//
//   APOGEE_ASSIGN_OR_RETURN(const plan::Rates rates, plan::ParseRates(text, path));
//   APOGEE_ASSIGN_OR_RETURN(const plan::Machine machine, plan::MachineOf(rates, 2, 1, kF32));
//
// A set holds for a number of ranks that compute at the same time, because cores share caches and
// memory.
#ifndef APOGEE_PLAN_MACHINE_RATES_H_
#define APOGEE_PLAN_MACHINE_RATES_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "apogee/core/status.h"
#include "apogee/plan/machine/machine.h"
#include "apogee/plugins/training_options.h"

namespace apogee::plan {

// More than any file of rates has.
inline constexpr int64_t kMaxRatesBytes = 4 << 20;

struct RateSet {
  int ranks = 1, threads = 1;
  std::string precision = {};  // of the training runs that were measured
  std::map<std::string, KernelRate> kernels = {};
  KernelRate other = {};
  std::map<std::string, ThreadsRate> collectives = {};
  double crowding = 1;  // Machine::crowding
};

struct Rates {
  std::string processor = {};
  int cores = 1;
  std::vector<RateSet> sets = {};
};

// This computer, without sets.
Rates RatesOfThisMachine();
// Replaces the sets of the same ranks, threads and precision.
void Merge(const Rates& measured, Rates& into);

std::string ToJson(const Rates& rates);
// DataLoss for a text that is no rates file; `path` is for messages.
absl::StatusOr<Rates> ParseRates(const std::string& text, const std::string& path);

// The machine for ranks that are threads of one computer. NotFound if there is no set for this
// number of threads and this precision; says how to measure it.
absl::StatusOr<Machine> MachineOf(const Rates& rates, int num_ranks, int threads,
                                  Precision precision);

}  // namespace apogee::plan

#endif  // APOGEE_PLAN_MACHINE_RATES_H_
