// SPDX-License-Identifier: Apache-2.0

// Sums over the ranks of a training program, and descriptions of a run for people.
//
//   const double loss = driver::SumOverRanks(world, {my_loss})[0] / world.size();
//   run.Note(driver::DescribeModelData(context->ledger(), plugin));
//   driver::PrintPipelineBubble("run.json");             // pipeline: 10 steps, bubble 12.5 %
#ifndef APOGEE_DRIVER_REPORTS_H_
#define APOGEE_DRIVER_REPORTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "apogee/comm/launch.h"
#include "apogee/core/memory.h"
#include "apogee/core/process_memory.h"
#include "apogee/plugins/gemini.h"
#include "apogee/plugins/hybrid_parallel.h"

namespace apogee::driver {

// The element-wise sum over the ranks, the same on each. Collective.
std::vector<double> SumOverRanks(const comm::World& world, const std::vector<double>& values);

// "2 threads", "4 ranks of 1 thread".
std::string DescribeRanks(const comm::World& world);

// ": tp 2, dp 2, ZeRO stage 2"; for a pipeline ": pp 2, tp 2, …, 1f1b with 4 micro-batches". Append
// it to DescribeRanks.
std::string DescribeMesh(const comm::World& world, const HybridParallelOptions& options);

// The peak memory of the ledgers (of each rank if they differ), and that of the process according
// to the operating system, counted from `start`. Collective.
std::string DescribeMemory(const comm::World& world, const ProcessMemory& start);

// A table of the bytes of a rank's parameters, gradients and optimizer states: the peak on the
// device, and what is on the device and on the host now. Below it, the device's budget if there is
// one, and the peak of other memory. `device`: of the rank's context.
std::string DescribeModelData(const MemoryLedger& device, const GeminiPlugin& plugin);

// Reads a trace, and prints the share of time for which pipeline stages waited, as `apogee
// timeline` does. Prints nothing for an empty path or a trace without a pipeline. Throws Error if
// the file cannot be read.
void PrintPipelineBubble(const std::string& trace_path);

}  // namespace apogee::driver

#endif  // APOGEE_DRIVER_REPORTS_H_
