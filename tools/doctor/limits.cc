// SPDX-License-Identifier: Apache-2.0

#include "apogee/tools/doctor/limits.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "apogee/core/text/text.h"

namespace apogee::tools::doctor {
namespace {

// Version 1 reports "no limit" as a number that no machine has.
constexpr int64_t kUnlimited = int64_t{1} << 60;

template <typename T>
void Lower(std::optional<T>& limit, T value) {
  limit = limit ? std::min(*limit, value) : value;
}

std::optional<int64_t> ReadNumber(const std::string& path) {
  std::ifstream file(path);
  int64_t value = 0;
  if (file >> value && value >= 0 && value < kUnlimited) return value;
  return std::nullopt;  // "max", -1 or no file
}

void ReadFolder(const std::string& folder, CgroupLimits& limits) {
  std::ifstream file(folder + "/cpu.max");  // "200000 100000" or "max 100000"
  double quota = 0, period = 0;
  if (file >> quota >> period && period > 0) Lower(limits.cores, quota / period);
  const auto quota_us = ReadNumber(folder + "/cpu.cfs_quota_us");
  const auto period_us = ReadNumber(folder + "/cpu.cfs_period_us");
  if (quota_us && period_us && *period_us > 0) {
    Lower(limits.cores, static_cast<double>(*quota_us) / static_cast<double>(*period_us));
  }
  for (const char* name : {"/memory.max", "/memory.limit_in_bytes"}) {
    if (const auto bytes = ReadNumber(folder + name)) Lower(limits.memory_bytes, *bytes);
  }
  if (const auto count = ReadNumber(folder + "/pids.max")) Lower(limits.processes, *count);
}

std::string Amount(rlim_t value, bool bytes) {
  if (value == RLIM_INFINITY) return "unlimited";
  return bytes ? FormatBytes(static_cast<int64_t>(std::min<rlim_t>(value, kUnlimited)))
               : std::to_string(value);
}

}  // namespace

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

CgroupLimits ReadCgroupLimits(const std::string& root) {
  CgroupLimits limits;
  std::ifstream file(root + "/proc/self/cgroup");
  // "0::/user/run" (version 2) or "4:memory:/user/run" (version 1, a tree per controller).
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controller = line.substr(first + 1, second - first - 1);
    std::string path = line.substr(second + 1);
    const std::string tree = root + "/sys/fs/cgroup" + (controller.empty() ? "" : "/" + controller);
    // In a container the path may not exist. Then the root of the tree is this process's own group.
    while (!path.empty() && path != "/") {
      ReadFolder(tree + path, limits);
      path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
    }
    ReadFolder(tree, limits);
  }
  return limits;
}

void AddProcessLimits(Report& report) {
  report.Begin("limits of the process");
  const auto limit = [](auto resource) {
    rlimit value = {RLIM_INFINITY, RLIM_INFINITY};
    getrlimit(resource, &value);
    return value.rlim_cur;
  };
  const rlim_t files = limit(RLIMIT_NOFILE), space = limit(RLIMIT_AS);
  report.Add("open files", Amount(files, false));
  report.Add("address space", Amount(space, true));
  report.Add("locked memory", Amount(limit(RLIMIT_MEMLOCK), true));
  report.Add("processes", Amount(limit(RLIMIT_NPROC), false));
  report.Add("stack", Amount(limit(RLIMIT_STACK), true));
  report.Add("file size", Amount(limit(RLIMIT_FSIZE), true));
  if (files < 1024) {
    report.Advise("a process may open " + Amount(files, false) +
                  " files only: connections between ranks and parts of checkpoints need one each; "
                  "ulimit -n 4096");
  }
  if (space != RLIM_INFINITY) {
    report.Advise("the address space is limited to " + Amount(space, true) +
                  ", which includes what is reserved and never used: allocations may fail with "
                  "memory left; ulimit -v unlimited, and limit memory by cgroup instead");
  }
  if (limit(RLIMIT_FSIZE) != RLIM_INFINITY) {
    report.Advise("files are limited to " + Amount(limit(RLIMIT_FSIZE), true) +
                  ": a checkpoint that is larger fails; ulimit -f unlimited");
  }
  const rlim_t locked = limit(RLIMIT_MEMLOCK);
  if (!FirstLine("/sys/class/infiniband_verbs/abi_version").empty() && locked != RLIM_INFINITY) {
    report.Advise("locked memory is limited to " + Amount(locked, true) +
                  ", but InfiniBand locks what it sends: ulimit -l unlimited (limits.conf, or "
                  "LimitMEMLOCK of the batch system's daemon)");
  }
}

}  // namespace apogee::tools::doctor
