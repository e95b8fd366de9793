// SPDX-License-Identifier: Apache-2.0

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <memory>
#include <string_view>

#include "apogee/comm/tcp/job.h"
#include "apogee/tools/command.h"
#include "apogee/tools/run/run_ranks.h"

namespace apogee::tools {
namespace {

int Run(const RunOptions& options) {
  if (options.command.empty()) {
    std::cerr << "apogee run: name the program: apogee run -n 4 PROGRAM ARGUMENTS...\n";
    return 2;
  }
  const absl::StatusOr<int> code = RunRanks(options);
  if (code.ok()) return *code;
  std::cerr << "apogee run: " + Message(code.status()) + "\n";
  return 2;
}

}  // namespace

int DropRunSeparator(int argc, char** argv) {
  if (argc < 3 || std::string_view(argv[1]) != "run") return argc;
  for (int i = 2; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--") {
      std::copy(argv + i + 1, argv + argc, argv + i);
      return argc - 1;
    }
    if (!word.starts_with('-')) break;  // the program; the rest are its arguments
    if (word == "-n" || word == "--ranks" || word == "--grace") ++i;  // the flag's value
  }
  return argc;
}

void AddRunCommand(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* command = app.add_subcommand(
      "run", "Start a program as several ranks, each a process of this machine, without MPI");
  command->add_option("-n,--ranks", options->num_ranks, "Number of ranks")
      ->required()
      ->check(CLI::Range(1, comm::tcp::Job::kMaxRanks));
  command
      ->add_option("--grace", options->grace_seconds,
                   "After a rank has failed: seconds until the others get SIGTERM, and as many "
                   "again until SIGKILL")
      ->check(CLI::Range(0.0, 86400.0))
      ->capture_default_str();
  command->prefix_command();  // words after PROGRAM are its arguments
  command->footer(
      "apogee run -n 4 PROGRAM ARGUMENTS... The program's output is passed through, its input is "
      "empty. For several machines see docs/launch.md. Exit status: that of the rank that failed "
      "first, or 128 plus the signal's number if a signal ended it; 2 wrong use, or the program "
      "cannot be started.");
  command->callback([options, command, &exit_code] {
    options->command = command->remaining();
    exit_code = Run(*options);
  });
}

}  // namespace apogee::tools
