// SPDX-License-Identifier: Apache-2.0

// The ranks of a training program: sums over ranks, and descriptions that rank 0 prints.
//
//   const double loss = SumOverRanks(world, {my_loss})[0] / world.size();
#ifndef APOGEE_EXAMPLES_COMMON_RANKS_H_
#define APOGEE_EXAMPLES_COMMON_RANKS_H_

#include <string>
#include <vector>

#include "apogee/comm/launch.h"
#include "apogee/core/process_memory.h"

namespace CLI {
class App;
}  // namespace CLI

// The element-wise sum over the ranks, the same on each. Collective.
std::vector<double> SumOverRanks(const apogee::comm::World& world,
                                 const std::vector<double>& values);

// --device cpu|cuda|cuda:N, for LaunchOptions::device.
void DeclareDeviceFlag(CLI::App& app, std::string& device);

// --comm auto|local|mpi|tcp|nccl, for LaunchOptions::comm.
void DeclareCommFlag(CLI::App& app, std::string& comm);

// --timeout-seconds S, for LaunchOptions::timeout_seconds.
void DeclareTimeoutFlag(CLI::App& app, double& seconds);

// --flight-records DIR, for LaunchOptions::flight_record_dir.
void DeclareFlightRecordsFlag(CLI::App& app, std::string& directory);

// "2 threads", "4 ranks of 1 thread".
std::string DescribeRanks(const apogee::comm::World& world);

// ": tp 2, dp 2, ZeRO stage 2", or ": pp 2, tp 2, …" for a pipeline; append it to DescribeRanks.
std::string DescribeMesh(const apogee::comm::World& world, int tp_size, int zero_stage,
                         int pp_size = 1);

// The peak memory of the ledgers (of each rank if they differ), and that of the process according
// to the operating system, counted from `start`. Collective.
std::string DescribeMemory(const apogee::comm::World& world, const apogee::ProcessMemory& start);

#endif  // APOGEE_EXAMPLES_COMMON_RANKS_H_
