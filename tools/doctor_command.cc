// SPDX-License-Identifier: Apache-2.0

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <climits>
#include <iostream>
#include <memory>

#include "apogee/tools/command.h"
#include "apogee/tools/doctor/backends.h"
#include "apogee/tools/doctor/build_facts.h"
#include "apogee/tools/doctor/environment.h"
#include "apogee/tools/doctor/limits.h"
#include "apogee/tools/doctor/machine.h"
#include "apogee/tools/doctor/self_test.h"
#include "apogee/tools/doctor/threads.h"

namespace apogee::tools {
namespace {

struct DoctorFlags {
  double time_limit = 60;
  std::string self_test;
};

std::string ThisProgram() {
  std::array<char, PATH_MAX> path = {};
  const ssize_t length = readlink("/proc/self/exe", path.data(), path.size());
  APOGEE_CHECK(length > 0, "doctor: cannot read /proc/self/exe; is /proc mounted?");
  return std::string(path.data(), static_cast<size_t>(length));
}

int Examine(const DoctorFlags& flags) {
  const auto started = doctor::StartedBy();
  if (started && started->rank > 0) return 0;  // only process 0 reports
  if (started && started->size > 1) {
    std::cerr << "apogee doctor: " << started->by << " has started " << started->size
              << " processes; start `apogee doctor` by itself: it starts its own test processes\n";
    return 2;
  }
  doctor::Report report(doctor::Redactor::OfThisProcess());
  constexpr double kVersionSeconds = 10;
  const doctor::Launcher launcher =
      doctor::FindLauncher(std::min(flags.time_limit, kVersionSeconds));
  doctor::AddBuild(launcher, report);
  doctor::AddProcessor(report);
  doctor::AddThreads(report);
  doctor::AddMemoryAndDisks(report);
  doctor::AddProcessLimits(report);
  doctor::AddSystem(report);
  doctor::AddEnvironment(environ, report);
  doctor::ForgetLauncher();
  std::cerr << "apogee doctor: testing, at most " << flags.time_limit << " s per backend\n";
  const bool good = doctor::TestBackends(
      {.program = ThisProgram(), .limit_seconds = flags.time_limit}, launcher, report);

  std::cout << (good ? "Every self test passed" : "A self test FAILED") << ", "
            << report.advice().size() << " remarks (lines with !).\n"
            << "To report a problem, paste the text between the lines:\n"
            << "----------------------------------------\n"
            << "```text\n"
            << report.Text() << "```\n"
            << "----------------------------------------\n";
  return good ? 0 : 1;
}

int Run(const DoctorFlags& flags) {
  if (flags.self_test.empty()) return Examine(flags);
  // Half of the limit, so a collective that hangs fails with an error before the test is killed.
  const absl::Status status =
      doctor::RunSelfTest(flags.self_test != "threads", flags.time_limit / 2, std::cout);
  if (status.ok()) return 0;
  std::cerr << "apogee doctor: " + Message(status) + "\n";
  return 1;
}

}  // namespace

void AddDoctorCommand(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<DoctorFlags>();
  CLI::App* command = app.add_subcommand("doctor",
                                         "Examine this machine and test communication between two "
                                         "ranks; run it when something does not work");
  command->add_option("--time-limit", flags->time_limit, "Seconds for each self test")
      ->check(CLI::Range(0.1, 86400.0));
  command
      ->add_option("--self-test", flags->self_test,
                   "Run only this test: threads (in this process), mpi (in two processes that "
                   "mpirun or srun started) or tcp (that apogee run started)")
      ->check(CLI::IsMember({"threads", "tcp", "mpi"}));
  command->footer(
      "Ends with a block to paste into a report. It has no addresses and no names of user, home or "
      "machine; of the environment it shows only variables that change a run. Exit status: 0 all "
      "fine, 1 a self test "
      "failed, 2 wrong use.");
  command->callback([flags, &exit_code] { exit_code = Run(*flags); });
}

}  // namespace apogee::tools
