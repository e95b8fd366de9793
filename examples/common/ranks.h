// SPDX-License-Identifier: Apache-2.0

// Ranks of a training program: which samples are whose, sums over ranks, and what rank 0 says for
// all of them.
//
//   const DataPart part = DataPartOf(plugin, world);
//   data::DistributedSampler sampler(order, part.rank, part.size, batch);
//   const double loss = SumOverRanks(world, {my_loss})[0] / world.size();
#ifndef APOGEE_EXAMPLES_COMMON_RANKS_H_
#define APOGEE_EXAMPLES_COMMON_RANKS_H_

#include <string>
#include <vector>

#include "apogee/comm/launch.h"
#include "apogee/core/process_memory.h"
#include "apogee/plugins/plugin.h"

namespace CLI {
class App;
}  // namespace CLI

// Part `rank` of `size` of each batch.
struct DataPart {
  int rank = 0;
  int size = 1;
};

// What this rank trains on: a part of its own, but under HybridParallelPlugin the ranks that share
// the layers have one together. Throws Error for a world that the plugin's tp_size does not divide.
DataPart DataPartOf(const apogee::Plugin& plugin, const apogee::comm::World& world);

// Element-wise over the ranks, the same result on each. Collective.
std::vector<double> SumOverRanks(const apogee::comm::World& world,
                                 const std::vector<double>& values);

// --device cpu|cuda|cuda:N, for LaunchOptions::device.
void DeclareDeviceFlag(CLI::App& app, std::string& device);

// --comm auto|local|mpi|nccl, for LaunchOptions::comm.
void DeclareCommFlag(CLI::App& app, std::string& comm);

// --timeout-seconds S, for LaunchOptions::timeout_seconds.
void DeclareTimeoutFlag(CLI::App& app, double& seconds);

// --flight-records DIR, for LaunchOptions::flight_record_dir.
void DeclareFlightRecordsFlag(CLI::App& app, std::string& directory);

// "2 threads", "4 ranks of 1 thread".
std::string DescribeRanks(const apogee::comm::World& world);

// ": tp 2, dp 2, ZeRO stage 2", with "pp 2, " before it for a pipeline; to go behind that.
std::string DescribeMesh(const apogee::comm::World& world, int tp_size, int zero_stage,
                         int pp_size = 1);

// The ledgers' peaks, one by one where the ranks' differ, against what the operating system has
// counted since `start`. Collective.
std::string DescribeMemory(const apogee::comm::World& world, const apogee::ProcessMemory& start);

#endif  // APOGEE_EXAMPLES_COMMON_RANKS_H_
