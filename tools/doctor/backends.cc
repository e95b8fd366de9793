// SPDX-License-Identifier: Apache-2.0

#include "apogee/tools/doctor/backends.h"

#include <iomanip>
#include <optional>
#include <sstream>

#include "apogee/comm/mpi/library.h"
#include "apogee/core/process/temp_folder.h"
#include "apogee/tools/doctor/child.h"

namespace apogee::tools::doctor {
namespace {

// The last `count` lines of the text, without the final line end.
std::string LastLines(const std::string& text, size_t count) {
  const size_t last = text.find_last_not_of('\n');
  if (last == std::string::npos) return "";
  size_t begin = last;
  for (; begin > 0; --begin) {
    if (text[begin - 1] == '\n' && --count == 0) break;
  }
  return text.substr(begin, last + 1 - begin);
}

std::string ValueOf(const std::string& name, const std::string& text) {
  const size_t at = text.find("\n" + name + " ");
  if (at == std::string::npos) return "";
  const size_t begin = at + name.size() + 2;
  return text.substr(begin, text.find('\n', begin) - begin);
}

// Adds a row with the outcome; true if the test passed.
bool AddOutcome(const std::string& backend, const ChildResult& child, double limit_seconds,
                const std::string& advice, Report& report) {
  const std::string checks = ValueOf("checks", child.out);
  if (child.end == ChildResult::kExited && child.code == 0 && !checks.empty()) {
    std::ostringstream text;
    text << "ok in " << std::fixed << std::setprecision(1) << child.seconds << " s: " << checks
         << " checks, all-reduce of 16 MiB at " << ValueOf("all_reduce_mib_per_s", child.out)
         << " MiB/s";
    report.Add(backend, text.str());
    return true;
  }
  std::string text = "FAILED: " + Describe(child, limit_seconds);
  const std::string last = LastLines(child.out, 1);
  if (!last.empty()) text += "; last: " + last;
  report.Add(backend, text);
  report.AddLines(LastLines(child.err, 12));
  report.Advise("self test of " + backend + ": " + advice);
  return false;
}

bool TestThreads(const BackendOptions& options, Report& report) {
  std::ostringstream limit;
  limit << options.limit_seconds;
  const ChildResult child =
      RunChild({options.program, "doctor", "--self-test", "threads", "--time-limit", limit.str()},
               options.limit_seconds);
  return AddOutcome("threads", child, options.limit_seconds,
                    "this test uses only this machine; if it is slow or shared, try a larger "
                    "--time-limit, otherwise report the failure",
                    report);
}

bool TestTcp(const BackendOptions& options, Report& report) {
  std::ostringstream limit;
  limit << options.limit_seconds;
  const ChildResult child = RunChild({options.program, "run", "-n", "2", options.program, "doctor",
                                      "--self-test", "tcp", "--time-limit", limit.str()},
                                     options.limit_seconds);
  return AddOutcome("tcp", child, options.limit_seconds,
                    "two processes communicate over TCP on the loopback interface: check that it "
                    "is up (`ip address show lo`) and that no firewall blocks 127.0.0.1. On a slow "
                    "machine try a larger --time-limit",
                    report);
}

bool TestMpi(const BackendOptions& options, const Launcher& launcher, Report& report) {
  const auto library = comm::mpi::Library();
  if (!library) {
    report.Add("mpi", "not built");
    return true;
  }
  if (launcher.path.empty()) {
    report.Add("mpi", "not tested: no mpirun on PATH");
    report.Advise(
        "there is no mpirun on PATH: install openmpi-bin (scripts/install_deps.sh mpi), or on a "
        "cluster load the module of the MPI that the program was built with; under Slurm: srun -n "
        "2 "
        "apogee doctor --self-test mpi");
    return true;
  }
  const MpiVersion linked = ParseMpi(library->linked);
  if (!Fits(launcher.version, linked)) {
    report.Add("mpi", "FAILED: mpirun is of " + launcher.version.ToString() +
                          ", the program is linked with " + linked.ToString());
    report.Advise(
        "mpirun is of another MPI than the program, so every process would run alone: put "
        "the mpirun of " +
        linked.ToString() + " first on PATH, or build again with the other MPI");
    return false;
  }
  std::ostringstream limit;
  limit << options.limit_seconds;
  // For mpirun's session files: an mpirun that is killed leaves them behind.
  const TempFolder session;
  if (session.path().empty()) {
    report.Add("mpi", "FAILED: no folder can be made in TMPDIR (default: /tmp)");
    report.Advise(
        "mpirun keeps its session in TMPDIR: set it to a writable folder of this machine");
    return false;
  }
  std::vector<std::string> command = {"/usr/bin/env", "TMPDIR=" + session.path(), launcher.path};
  if (launcher.version.family == "Open MPI") {
    // By default mpirun refuses to run as root, and to start more processes than cores.
    for (const char* option : {"--allow-run-as-root", "--oversubscribe", "--bind-to", "none"}) {
      command.push_back(option);
    }
  }
  for (const std::string& argument :
       {std::string("-np"), std::string("2"), options.program, std::string("doctor"),
        std::string("--self-test"), std::string("mpi"), std::string("--time-limit"), limit.str()}) {
    command.push_back(argument);
  }
  const ChildResult child = RunChild(command, options.limit_seconds);
  return AddOutcome(
      "mpi", child, options.limit_seconds,
      "try `mpirun -np 2 hostname` first; where that works, try it with --mca btl self,vader (one "
      "machine) or --mca btl self,tcp --mca btl_tcp_if_include NAME with an interface from above",
      report);
}

}  // namespace

bool TestBackends(const BackendOptions& options, const Launcher& launcher, Report& report) {
  report.Begin("self test on two ranks");
  const bool threads = TestThreads(options, report);
  const bool tcp = TestTcp(options, report);
  const bool mpi = TestMpi(options, launcher, report);
  report.Add("cuda", "not built");
  report.Add("nccl", "not built");
  return threads && tcp && mpi;
}

}  // namespace apogee::tools::doctor
