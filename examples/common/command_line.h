// SPDX-License-Identifier: Apache-2.0

// The common parts of the programs' command lines.
//
//   CLI::App app("Trains a model.", "my_program");
//   PrepareApp(app);
//   app.add_option("--steps", flags.steps, "Optimizer steps")->check(Count(1));
//   const auto exit_code = ParseCommandLine(app, argc, argv, [&](std::vector<std::string>& words) {
//     TakeOptions("optim", words, flags.optimizer_options);
//     ... check the flags together; throw Error ...
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

// Accepts an integer in [low, 1e9].
CLI::Validator Count(int64_t low);
// Accepts an integer in [0, 2^64). For flags of unsigned type, which would wrap around otherwise.
CLI::Validator Unsigned();
// Accepts a number in [low, high).
CLI::Validator Between(double low, double high);
// "adam, adamw".
std::string Join(const std::vector<std::string>& names);

// Adds --help. If a flag is given several times the last one counts, so scripts can append to a
// line of defaults.
void PrepareApp(CLI::App& app);

// Parses the flags, then calls `settle` with the remaining words. It removes the words that it
// knows and checks the flags. Words left after that are an error. Returns nothing if the program
// may continue; otherwise its exit code: 0 after --help, 2 after an error, with one sentence on
// stderr.
std::optional<int> ParseCommandLine(CLI::App& app, int argc, char** argv,
                                    const std::function<void(std::vector<std::string>&)>& settle);

// Moves "--<prefix>.key=value" words from `words` into `options`. Throws Error for malformed ones.
void TakeOptions(const std::string& prefix, std::vector<std::string>& words,
                 apogee::optim::OptionMap& options);

// Replaces "auto" by bf16 on processors with bf16 multiplication (every one with AMX, and some
// others), else by f32; returns any other precision unchanged.
std::string SettlePrecision(const std::string& precision);

// Throws Error, naming batch sizes that would work, unless `parts` divides `batch`. `reason`
// describes the parts.
void CheckBatch(int64_t batch, int64_t parts, const std::string& reason);

// The default of --ranks: the number of processes that mpirun or srun started; without them
// `otherwise`.
int DefaultRanks(int otherwise);

// Threads per rank: `threads` divided by the ranks, at least one; 0 stands for one per core. Throws
// Error for a negative number.
int ThreadsPerRank(int threads, int ranks);

#endif  // APOGEE_EXAMPLES_COMMON_COMMAND_LINE_H_
