// SPDX-License-Identifier: Apache-2.0

// The `apogee` command.
#include <CLI/CLI.hpp>
#include <exception>
#include <iostream>
#include <string>

#include "apogee/core/process/standard_descriptors.h"
#include "apogee/core/process/standard_output.h"
#include "apogee/tools/command.h"
#include "apogee/tools/help/command_tree.h"

namespace {

// The exit code of the process: 2 if the command's output could not be written.
int Finish(int exit_code) {
  const absl::Status printed = apogee::FlushStandardOutput();
  if (printed.ok()) return exit_code;
  std::cerr << "apogee: " << apogee::Message(printed) << "\n";
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  apogee::KeepStandardDescriptors();
  // Not for `apogee run`: the program that it starts would inherit the setting.
  if (argc < 2 || std::string(argv[1]) != "run") apogee::ReportFileSizeLimit();
  CLI::App app("Tools of the apogee training library");
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string("apogee ") + APOGEE_VERSION);
  apogee::tools::ShowExamples(app);  // before the subcommands, which take it over
  int exit_code = 0;
  apogee::tools::AddCompletionCommand(app, exit_code);
  apogee::tools::AddDataCommand(app, exit_code);
  apogee::tools::AddDiffCommand(app, exit_code);
  apogee::tools::AddDoctorCommand(app, exit_code);
  apogee::tools::AddEvaluateCommand(app, exit_code);
  apogee::tools::AddGenerateCommand(app, exit_code);
  apogee::tools::AddHangReportCommand(app, exit_code);
  apogee::tools::AddInspectCommand(app, exit_code);
  apogee::tools::AddManCommand(app, exit_code);
  apogee::tools::AddMatrixCommand(app, exit_code);
  apogee::tools::AddNewCommand(app, exit_code);
  apogee::tools::AddOptionsCommand(app, exit_code);
  apogee::tools::AddPlanCommand(app, exit_code);
  apogee::tools::AddReportCommand(app, exit_code);
  apogee::tools::AddReshardCommand(app, exit_code);
  apogee::tools::AddRunCommand(app, exit_code);
  apogee::tools::AddTimelineCommand(app, exit_code);
  apogee::tools::AddVerifyCommand(app, exit_code);
  try {
    app.parse(apogee::tools::DropRunSeparator(argc, argv), argv);
  } catch (const CLI::ParseError& error) {
    return Finish(app.exit(error) == 0 ? 0 : 2);
  } catch (const std::exception& error) {
    std::cerr << "apogee: " << error.what() << "\n";
    return 2;
  }
  return Finish(exit_code);
}
