// SPDX-License-Identifier: Apache-2.0

#include <algorithm>

#include "apogee/core/text/text.h"
#include "apogee/driver/reports.h"

namespace apogee::driver {

std::vector<double> SumOverRanks(const comm::World& world, const std::vector<double>& values) {
  if (world.group() == nullptr) return values;
  const Tensor sums =
      Tensor::FromVector<double>(values, {static_cast<int64_t>(values.size())}, world.context());
  world.group()->AllReduce(sums);
  return sums.ToVector<double>();
}

std::string DescribeRanks(const comm::World& world) {
  const int threads = world.context()->num_threads();
  return (world.size() == 1 ? "" : std::to_string(world.size()) + " ranks of ") +
         std::to_string(threads) + (threads == 1 ? " thread" : " threads");
}

std::string DescribeMesh(const comm::World& world, const HybridParallelOptions& options) {
  const int replicas = world.size() / (options.pp_size * options.tp_size);
  const std::string mesh = "tp " + std::to_string(options.tp_size) + ", dp " +
                           std::to_string(replicas) +
                           (options.ep_size == 1 ? "" : ", ep " + std::to_string(options.ep_size)) +
                           ", ZeRO stage " + std::to_string(options.stage);
  if (options.pp_size == 1) return ": " + mesh;
  return ": pp " + std::to_string(options.pp_size) + ", " + mesh + ", " + Name(options.schedule) +
         " with " + std::to_string(options.num_microbatches) + " micro-batches";
}

std::string DescribeMemory(const comm::World& world, const ProcessMemory& start) {
  std::vector<double> peaks(static_cast<size_t>(world.size()), 0.0);
  const int64_t mine = world.context()->ledger().peak_reserved_bytes();
  peaks[static_cast<size_t>(world.rank())] = static_cast<double>(mine);
  peaks = SumOverRanks(world, peaks);
  double total = 0;
  std::vector<std::string> each;
  for (const double peak : peaks) {
    total += peak;
    each.push_back(FormatBytes(static_cast<int64_t>(peak)));
  }
  std::string text = "peak memory: " + FormatBytes(static_cast<int64_t>(total)) + " by the ledger";
  if (world.size() > 1) {
    text += "s";
    if (std::count(each.begin(), each.end(), each[0]) == world.size()) {
      text += " (" + each[0] + " on each rank)";
    } else {
      for (size_t r = 0; r < each.size(); ++r) {
        text += (r == 0 ? " (rank " : ", rank ") + std::to_string(r) + ": " + each[r];
      }
      text += ")";
    }
  }
  const int64_t process = ValueOrThrow(ReadProcessMemory()).peak_own_bytes() - start.own_bytes();
  return text + ", " + FormatBytes(process) + " by the process beyond its start";
}

}  // namespace apogee::driver
