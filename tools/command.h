// SPDX-License-Identifier: Apache-2.0

// The subcommands of `apogee`. Each has a source file of its own and adds itself to the parser. Its
// callback runs after parsing and sets the exit code: 0 success, 1 a check failed, 2 wrong use or
// bad input.
#ifndef APOGEE_TOOLS_COMMAND_H_
#define APOGEE_TOOLS_COMMAND_H_

namespace CLI {
class App;
}  // namespace CLI

namespace apogee::tools {

void AddCompletionCommand(CLI::App& app, int& exit_code);
void AddDataCommand(CLI::App& app, int& exit_code);
void AddDiffCommand(CLI::App& app, int& exit_code);
void AddDoctorCommand(CLI::App& app, int& exit_code);
void AddEvaluateCommand(CLI::App& app, int& exit_code);
void AddGenerateCommand(CLI::App& app, int& exit_code);
void AddHangReportCommand(CLI::App& app, int& exit_code);
void AddInspectCommand(CLI::App& app, int& exit_code);
void AddManCommand(CLI::App& app, int& exit_code);
void AddMatrixCommand(CLI::App& app, int& exit_code);
void AddNewCommand(CLI::App& app, int& exit_code);
void AddOptionsCommand(CLI::App& app, int& exit_code);
void AddPlanCommand(CLI::App& app, int& exit_code);
void AddReportCommand(CLI::App& app, int& exit_code);
void AddReshardCommand(CLI::App& app, int& exit_code);
void AddRunCommand(CLI::App& app, int& exit_code);
void AddTimelineCommand(CLI::App& app, int& exit_code);
void AddVerifyCommand(CLI::App& app, int& exit_code);

// Removes the first `--` of `apogee run -n 2 -- PROGRAM ARGUMENTS...` from argv, since the parser
// would end the subcommand there. Returns the number of words left. Other words stay as they are.
int DropRunSeparator(int argc, char** argv);

}  // namespace apogee::tools

#endif  // APOGEE_TOOLS_COMMAND_H_
