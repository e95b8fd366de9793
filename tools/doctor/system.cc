// SPDX-License-Identifier: Apache-2.0

#include <ifaddrs.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <vector>

#include "apogee/core/text/text.h"
#include "apogee/tools/doctor/limits.h"
#include "apogee/tools/doctor/machine.h"

namespace apogee::tools::doctor {
namespace {

std::string OsName() {
  std::ifstream file("/etc/os-release");
  const std::string key = "PRETTY_NAME=";
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    std::string name = line.substr(key.size());
    std::erase(name, '"');
    return name;
  }
  return "unknown";
}

bool Exists(const char* path) { return access(path, F_OK) == 0; }

std::string Inside(const utsname& system) {
  std::vector<std::string> found;
  if (Exists("/.dockerenv")) found.push_back("docker");
  if (Exists("/run/.containerenv")) found.push_back("podman");
  if (Exists("/.singularity.d")) found.push_back("apptainer");
  if (std::getenv("KUBERNETES_SERVICE_HOST") != nullptr) found.push_back("kubernetes");
  if (const char* container = std::getenv("container")) {
    found.push_back("container=" + std::string(container));
  }
  if (std::strstr(system.release, "microsoft") != nullptr) found.push_back("WSL");
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("flags")) continue;
    if (line.find(" hypervisor") != std::string::npos) found.push_back("virtual machine");
    break;
  }
  return found.empty() ? "no sign of a container or virtual machine" : JoinTexts(found, ", ");
}

struct Interface {
  std::string name;
  int mtu = 0;
  bool loopback = false;
};

std::vector<Interface> InterfacesUp() {
  std::vector<Interface> up;
  const int socket = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  struct if_nameindex* all = if_nameindex();
  for (auto* each = all; socket >= 0 && each != nullptr && each->if_index != 0; ++each) {
    ifreq request = {};
    std::strncpy(request.ifr_name, each->if_name, IFNAMSIZ - 1);
    if (ioctl(socket, SIOCGIFFLAGS, &request) != 0) continue;
    const int flags = request.ifr_flags;
    if ((flags & IFF_UP) == 0 || (flags & IFF_RUNNING) == 0) continue;
    Interface found{each->if_name, 0, (flags & IFF_LOOPBACK) != 0};
    if (ioctl(socket, SIOCGIFMTU, &request) == 0) found.mtu = request.ifr_mtu;
    up.push_back(found);
  }
  if (all != nullptr) if_freenameindex(all);
  if (socket >= 0) close(socket);
  return up;
}

}  // namespace

void AddSystem(Report& report) {
  report.Begin("system");
  utsname system = {};
  uname(&system);
  report.Add("system", OsName());
  report.Add("kernel", std::string(system.sysname) + " " + system.release + " " + system.machine);
  report.Add("inside", Inside(system));
  report.Add("user",
             geteuid() == 0 ? "root (mpirun of Open MPI wants --allow-run-as-root)" : "not root");
  const std::string ptrace = FirstLine("/proc/sys/kernel/yama/ptrace_scope");
  report.Add("ptrace_scope", ptrace.empty() ? "none" : ptrace);
  bool loopback = false;
  std::string others;
  int num_others = 0;
  for (const Interface& interface : InterfacesUp()) {
    report.Add("interface " + interface.name, "up, MTU " + std::to_string(interface.mtu));
    loopback = loopback || interface.loopback;
    if (interface.loopback) continue;
    ++num_others;
    others += (others.empty() ? "" : ", ") + interface.name;
  }
  if (!loopback) {
    report.Advise(
        "no loopback interface is up: mpirun uses it to reach its processes; ip link set "
        "lo up");
  }
  if (num_others > 1) {
    report.Advise("several network interfaces are up (" + others +
                  "): over several machines name the one that joins them, mpirun --mca "
                  "btl_tcp_if_include NAME --mca oob_tcp_if_include NAME");
  }
}

}  // namespace apogee::tools::doctor
