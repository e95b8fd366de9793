// SPDX-License-Identifier: Apache-2.0

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "apogee/core/text/printable.h"
#include "apogee/report/report.h"
#include "apogee/tools/command.h"
#include "apogee/tools/report_error.h"

namespace apogee::tools {
namespace {

struct ReportFlags {
  std::vector<std::string> folders;
  std::string out;
};

int Run(const ReportFlags& flags) {
  const absl::Status status = report::WriteReport(flags.folders, flags.out);
  if (!status.ok()) return ReportError("report", status);
  std::cout << "wrote " << Printable(flags.out) << "\n";
  return 0;
}

}  // namespace

void AddReportCommand(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<ReportFlags>();
  CLI::App* command =
      app.add_subcommand("report", "Write one HTML page about the output of one or several runs");
  command->add_option("folders", flags->folders, "The folders that programs wrote with --out")
      ->required();
  command->add_option("--out", flags->out, "The file to write; it must end in .html")->required();
  command->footer(
      "The page works offline and compares the runs in the same charts. Exit status: 0 written, 1 "
      "a "
      "file of a run is damaged, 2 wrong use or another error.");
  command->callback([flags, &exit_code] { exit_code = Run(*flags); });
}

}  // namespace apogee::tools
