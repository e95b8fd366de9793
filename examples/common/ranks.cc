// SPDX-License-Identifier: Apache-2.0

#include "apogee/examples/common/ranks.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "apogee/core/text/text.h"
#include "apogee/examples/common/command_line.h"
#include "apogee/tensor/make_context.h"

using namespace apogee;

std::vector<double> SumOverRanks(const comm::World& world, const std::vector<double>& values) {
  if (world.group() == nullptr) return values;
  const Tensor sums =
      Tensor::FromVector<double>(values, {static_cast<int64_t>(values.size())}, world.context());
  world.group()->AllReduce(sums);
  return sums.ToVector<double>();
}

void DeclareDeviceFlag(CLI::App& app, std::string& device) {
  app.add_option("--device", device, "cpu, cuda, or one GPU by its number: cuda:0")
      ->check([](const std::string& name) { return Message(ParseDevice(name).status()); })
      ->capture_default_str();
}

void DeclareCommFlag(CLI::App& app, std::string& comm) {
  app.add_option("--comm", comm,
                 "Backend for collectives: local (ranks are threads), mpi, tcp or nccl (ranks are "
                 "processes), auto")
      ->check(CLI::IsMember({"auto", "local", "mpi", "tcp", "nccl"}))
      ->capture_default_str();
}

void DeclareTimeoutFlag(CLI::App& app, double& seconds) {
  app.add_option("--timeout-seconds", seconds,
                 "Seconds that a collective waits for a rank before the run fails on all ranks")
      ->check(Between(0.001, 1e6))
      ->capture_default_str();
}

void DeclareFlightRecordsFlag(CLI::App& app, std::string& directory) {
  app.add_option("--flight-records", directory,
                 "Folder for each rank's last collective calls, written if the run fails, for "
                 "`apogee hang-report`");
}

std::string DescribeRanks(const comm::World& world) {
  const int threads = world.context()->num_threads();
  return (world.size() == 1 ? "" : std::to_string(world.size()) + " ranks of ") +
         std::to_string(threads) + (threads == 1 ? " thread" : " threads");
}

std::string DescribeMesh(const comm::World& world, int tp_size, int zero_stage, int pp_size) {
  return ": " + (pp_size == 1 ? "" : "pp " + std::to_string(pp_size) + ", ") + "tp " +
         std::to_string(tp_size) + ", dp " + std::to_string(world.size() / (pp_size * tp_size)) +
         ", ZeRO stage " + std::to_string(zero_stage);
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
