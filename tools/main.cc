// The `apogee` command.
#include <exception>
#include <iostream>

#include "apogee/tools/command.h"

int main(int argc, char** argv) {
  CLI::App app("Tools of the apogee training library");
  app.require_subcommand(1);
  int exit_code = 0;
  apogee::tools::AddDiffCommand(app, exit_code);
  apogee::tools::AddDoctorCommand(app, exit_code);
  apogee::tools::AddHangReportCommand(app, exit_code);
  apogee::tools::AddInspectCommand(app, exit_code);
  apogee::tools::AddMatrixCommand(app, exit_code);
  apogee::tools::AddReshardCommand(app, exit_code);
  apogee::tools::AddRunCommand(app, exit_code);
  apogee::tools::AddTimelineCommand(app, exit_code);
  apogee::tools::AddVerifyCommand(app, exit_code);
  try {
    app.parse(apogee::tools::DropRunSeparator(argc, argv), argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const std::exception& error) {
    std::cerr << "apogee: " << error.what() << "\n";
    return 2;
  }
  return exit_code;
}
