// SPDX-License-Identifier: Apache-2.0

#include "apogee/comm/process/gpus.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <sstream>

#include "apogee/comm/cuda/stream_order.h"
#include "apogee/comm/transport/machines.h"
#include "apogee/tensor/cpu/cpu_context.h"

namespace apogee::comm::process {
namespace {

constexpr const char* kInstead =
    "; or use comm mpi (--comm mpi), which stages tensors of GPUs through the host";

// One field per line. Only the error, which comes last, may have several lines.
std::string ToText(const GpuOfRank& gpu) {
  std::ostringstream text;
  text << gpu.machine << '\n'
       << gpu.bus_id << '\n'
       << gpu.device << '\n'
       << gpu.nccl_version << '\n'
       << gpu.error;
  return text.str();
}

GpuOfRank FromText(const std::string& text) {
  std::istringstream lines(text);
  GpuOfRank gpu;
  std::string version;
  std::getline(lines, gpu.machine);
  std::getline(lines, gpu.bus_id);
  std::getline(lines, gpu.device);
  std::getline(lines, version);
  gpu.nccl_version = std::stoi(version);
  std::getline(lines, gpu.error, '\0');
  return gpu;
}

}  // namespace

GpuOfRank DescribeGpu(const absl::StatusOr<std::shared_ptr<const nccl::NcclApi>>& api,
                      Device device) {
  return {.error = apogee::Message(api.status()),
          .machine = ThisMachine(),
          .bus_id = cuda::BusIdOf(device),
          .device = device.ToString(),
          .nccl_version = api.ok() ? (*api)->version() : 0};
}

std::vector<GpuOfRank> ShareGpus(Group& group, const GpuOfRank& own) {
  constexpr int64_t kBytes = 1500;
  std::string text = ToText(own);
  text.resize(kBytes);
  const ContextPtr host = CpuContext({.num_threads = 1});
  const Tensor mine = Tensor::Zeros({kBytes}, DType::kU8, host);
  const Tensor all = Tensor::Zeros({kBytes * group.size()}, DType::kU8, host);
  std::memcpy(mine.raw(), text.data(), text.size());
  group.AllGather(all, mine);
  std::vector<GpuOfRank> gpus;
  for (int r = 0; r < group.size(); ++r) {
    const char* const begin = static_cast<const char*>(all.raw()) + r * kBytes;
    gpus.push_back(FromText(std::string(begin, strnlen(begin, kBytes))));
  }
  return gpus;
}

absl::Status CompareGpus(std::span<const GpuOfRank> gpus) {
  const auto refuse = [](const auto&... parts) {
    return absl::FailedPreconditionError(internal::Concat("launch: comm nccl: ", parts...));
  };
  std::map<std::string, size_t> owners;
  for (size_t r = 0; r < gpus.size(); ++r) {
    const GpuOfRank& gpu = gpus[r];
    if (!gpu.error.empty()) return refuse("rank ", r, ": ", gpu.error, kInstead);
    if (gpu.nccl_version != gpus[0].nccl_version) {
      return refuse("rank ", r, " has NCCL ", nccl::FormatVersion(gpu.nccl_version), ", rank 0 ",
                    nccl::FormatVersion(gpus[0].nccl_version), "; install one version on all ",
                    "machines", kInstead);
    }
    const auto [owner, is_first] = owners.emplace(gpu.machine + " " + gpu.bus_id, r);
    if (is_first) continue;
    return refuse("rank ", owner->second, " (", gpus[owner->second].device, ") and rank ", r, " (",
                  gpu.device, ") are on one GPU, ", gpu.bus_id, " of machine ",
                  gpu.machine.substr(0, gpu.machine.find(' ')),
                  ", and NCCL takes one rank per GPU; start as many processes on a machine as it ",
                  "has GPUs; ranks that are threads of one process share a GPU: start it without ",
                  "mpirun (--comm local)", kInstead);
  }
  return absl::OkStatus();
}

}  // namespace apogee::comm::process
