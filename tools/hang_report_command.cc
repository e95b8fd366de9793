// SPDX-License-Identifier: Apache-2.0

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "apogee/core/text/printable.h"
#include "apogee/tools/command.h"
#include "apogee/tools/hang_report/hang_report.h"
#include "apogee/tools/tensor_store.h"

namespace apogee::tools {
namespace {

int Run(const std::string& directory) {
  const absl::StatusOr<FlightFiles> files = ReadFlightFiles(directory);
  if (!files.ok()) {
    std::cerr << "apogee hang-report: " << Printable(Message(files.status())) << "\n";
    return absl::IsDataLoss(files.status()) ? 1 : 2;
  }
  const HangReport report = FindCulprit(*files);
  std::cout << Printable(report.sentence) << "\n\n";
  for (const std::string& line : report.by_rank) std::cout << Printable(line) << "\n";
  return 0;
}

}  // namespace

void AddHangReportCommand(CLI::App& app, int& exit_code) {
  auto directory = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand(
      "hang-report", "Name the rank that a failed launch waited for, and the collective");
  command
      ->add_option(
          "folder", *directory,
          "The flight_record_dir of the launch (LaunchOptions), or --flight-records of an example")
      ->required();
  command->footer(
      "Prints one sentence, then the last call of each rank. Ranks that were killed may have no "
      "record. Exit status: 0 done, 1 a record is damaged, 2 wrong use or another error.");
  command->callback([directory, &exit_code] { exit_code = Run(*directory); });
}

}  // namespace apogee::tools
