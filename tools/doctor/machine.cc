// SPDX-License-Identifier: Apache-2.0

#include "apogee/tools/doctor/machine.h"

#include <sched.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <iomanip>
#include <sstream>

#include "apogee/core/process/thread_team.h"
#include "apogee/core/process_memory.h"
#include "apogee/core/text/text.h"
#include "apogee/tools/doctor/limits.h"

namespace apogee::tools::doctor {
namespace {

// Finds "name : value" in /proc/cpuinfo, or "name: value" in /proc/meminfo, and returns the value.
std::string ValueIn(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(':');
    if (!line.starts_with(name) || colon == std::string::npos) continue;
    if (line.find_first_not_of(" \t", name.size()) != colon) continue;
    const size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

int CoresOfAffinity() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 0;
}

std::optional<int64_t> FreeBytes(const std::string& folder) {
  struct statvfs info = {};
  if (statvfs(folder.c_str(), &info) != 0) return std::nullopt;
  return static_cast<int64_t>(info.f_bavail) * static_cast<int64_t>(info.f_frsize);
}

std::string Free(const std::string& folder) {
  const auto bytes = FreeBytes(folder);
  return bytes ? FormatBytes(*bytes) + " free" : "not there";
}

}  // namespace

std::string SharedMemoryAdvice(int64_t free_bytes, int cores) {
  // Open MPI makes a segment of 4 MiB for each process; ask for twice that, for its other segments.
  const int64_t wanted = std::max<int64_t>(16, 8 * cores) << 20;
  if (free_bytes >= wanted) return "";
  return "/dev/shm has " + FormatBytes(free_bytes) +
         " free: Open MPI needs some 8 MiB for each of its " + "processes there, " +
         FormatBytes(wanted) + " for one per core; give the container " +
         "--shm-size=1g, or remove what is left over in /dev/shm";
}

void AddProcessor(Report& report) {
  report.Begin("processor");
  const std::string model = ValueIn("/proc/cpuinfo", "model name");
  report.Add("model", model.empty() ? "unknown" : model);
  const int affinity = CoresOfAffinity();
  // The number of threads that launch divides among ranks.
  const int launch = ShareOfCores(1);
  const CgroupLimits limits = ReadCgroupLimits();
  report.Add("cores online", std::to_string(sysconf(_SC_NPROCESSORS_ONLN)));
  report.Add("cores of affinity", std::to_string(affinity));
  std::ostringstream quota;
  if (limits.cores) quota << *limits.cores << " cores";
  report.Add("cgroup limit", limits.cores ? quota.str() : "none");
  report.Add("threads of launch", std::to_string(launch) + " in all; 2 ranks get " +
                                      std::to_string(ShareOfCores(2)) + " each");
  const double usable =
      std::min(static_cast<double>(affinity), limits.cores.value_or(static_cast<double>(affinity)));
  if (affinity > 0 && usable < launch) {
    std::ostringstream advice;
    advice << "launch would start " << launch << " threads, but this process may use " << usable
           << " cores (affinity, cgroup): give --threads " << std::max(1.0, std::floor(usable))
           << ", or set LaunchOptions::threads_per_rank";
    report.Advise(advice.str());
  }
  std::array<double, 3> load = {};
  if (getloadavg(load.data(), 3) == 3) {
    std::ostringstream text;
    text << std::fixed << std::setprecision(1) << load[0] << ", " << load[1] << ", " << load[2];
    report.Add("load", text.str());
  }
}

void AddMemoryAndDisks(Report& report) {
  report.Begin("memory and disks");
  const int64_t total = std::atoll(ValueIn("/proc/meminfo", "MemTotal").c_str()) << 10;
  report.Add("memory", FormatBytes(total));
  if (const auto available = AvailableMemoryBytes(); available.ok()) {
    report.Add("available", FormatBytes(*available));
    if (*available < int64_t{1} << 30) {
      report.Advise("only " + FormatBytes(*available) +
                    " of memory is available: end other programs, or take a smaller model, more "
                    "ranks on more machines, or offload (docs/launch.md)");
    }
  }
  const CgroupLimits limits = ReadCgroupLimits();
  report.Add("cgroup limit", limits.memory_bytes ? FormatBytes(*limits.memory_bytes) : "none");
  report.Add("huge pages", FirstLine("/sys/kernel/mm/transparent_hugepage/enabled"));
  report.Add("/dev/shm", Free("/dev/shm"));
  const int cores = std::max(1, CoresOfAffinity());
  if (const auto shared = FreeBytes("/dev/shm")) {
    if (const std::string advice = SharedMemoryAdvice(*shared, cores); !advice.empty()) {
      report.Advise(advice);
    }
  } else {
    report.Advise("there is no /dev/shm: MPI cannot share memory; mount -t tmpfs tmpfs /dev/shm");
  }
  report.Add("this folder", Free("."));
  report.Add("/tmp", Free("/tmp"));
  if (access("/tmp", W_OK) != 0) {
    report.Advise(
        "/tmp cannot be written: mpirun keeps its session there; set TMPDIR to a folder "
        "of this machine");
  }
  for (const char* folder : {".", "/tmp"}) {
    const auto bytes = FreeBytes(folder);
    if (bytes && *bytes < 256 << 20) {
      report.Advise(std::string(folder) + " has " + FormatBytes(*bytes) +
                    " free: a checkpoint takes the weights and optimizer states; make room");
    }
  }
}

}  // namespace apogee::tools::doctor
