// SPDX-License-Identifier: Apache-2.0

// What the programs' command lines have in common.
//
//   CLI::App app("Trains a model.", "my_program");
//   PrepareApp(app);
//   app.add_option("--steps", flags.steps, "Optimizer steps")->check(Count(1));
//   const auto exit_code = ParseCommandLine(app, argc, argv, [&](std::vector<std::string>& words) {
//     TakeOptions("optim", words, flags.optimizer_options);
//     ... check what flags mean together; throw Error ...
//   });
//   if (exit_code) return *exit_code;
#ifndef APOGEE_EXAMPLES_COMMON_COMMAND_LINE_H_
#define APOGEE_EXAMPLES_COMMON_COMMAND_LINE_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "apogee/optim/options.h"

namespace CLI {
class App;
class Validator;
}  // namespace CLI

// A whole number in [low, 1e9].
CLI::Validator Count(int64_t low);
// A whole number in [0, 2^64), for flags of unsigned type, which would wrap others around.
CLI::Validator Unsigned();
// A number in [low, high).
CLI::Validator Between(double low, double high);
// "adam, adamw".
std::string Join(const std::vector<std::string>& names);

// The last of several equal flags counts, so that scripts can append to a line of defaults; --help.
void PrepareApp(CLI::App& app);

// Parses, lets `settle` take the words that are no flags and check the rest, and refuses words that
// are left. Nothing when the program may go on, else its exit code: 0 after --help, 2 after an
// error, of which one sentence has gone to stderr.
std::optional<int> ParseCommandLine(CLI::App& app, int argc, char** argv,
                                    const std::function<void(std::vector<std::string>&)>& settle);

// Moves "--<prefix>.key=value" words from `words` into `options`. Throws Error for others of them.
void TakeOptions(const std::string& prefix, std::vector<std::string>& words,
                 apogee::optim::OptionMap& options);

// `precision`, but for "auto": bf16 on processors that multiply bf16 (every one with AMX, and some
// others), else f32.
std::string SettlePrecision(const std::string& precision);

// Throws Error, with the batches that would do, unless `batch` divides among `parts`, which
// `reason` names.
void CheckBatch(int64_t batch, int64_t parts, const std::string& reason);

// The default of --ranks: as many as mpirun or srun started processes, `otherwise` without them.
int DefaultRanks(int otherwise);

// Threads of each rank: `threads` shared out, at least one; 0 stands for one per core. Throws Error
// for a negative number.
int ThreadsPerRank(int threads, int ranks);

#endif  // APOGEE_EXAMPLES_COMMON_COMMAND_LINE_H_
