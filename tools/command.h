// SPDX-License-Identifier: Apache-2.0

// The subcommands of `apogee`. Each lives in a file of its own that adds itself to the parser: what
// it does runs after parsing and sets the exit code (0 good, 1 a check failed, 2 wrong use or bad
// input).
#ifndef APOGEE_TOOLS_COMMAND_H_
#define APOGEE_TOOLS_COMMAND_H_

namespace CLI {
class App;
}  // namespace CLI

namespace apogee::tools {

void AddDiffCommand(CLI::App& app, int& exit_code);
void AddDoctorCommand(CLI::App& app, int& exit_code);
void AddHangReportCommand(CLI::App& app, int& exit_code);
void AddInspectCommand(CLI::App& app, int& exit_code);
void AddMatrixCommand(CLI::App& app, int& exit_code);
void AddReshardCommand(CLI::App& app, int& exit_code);
void AddRunCommand(CLI::App& app, int& exit_code);
void AddTimelineCommand(CLI::App& app, int& exit_code);
void AddVerifyCommand(CLI::App& app, int& exit_code);

// Of `apogee run -n 2 -- PROGRAM ARGUMENTS...`, drops the first `--`, where the parser would end
// the subcommand, and returns the number of words left. Other words stay as they are.
int DropRunSeparator(int argc, char** argv);

}  // namespace apogee::tools

#endif  // APOGEE_TOOLS_COMMAND_H_
