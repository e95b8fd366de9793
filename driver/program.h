// SPDX-License-Identifier: Apache-2.0

// The main function of a training program on text: flags, launch, errors, exit code.
//
//   int main(int argc, char** argv) {
//     driver::RunFlags flags;
//     return driver::Run(argc, argv, flags,
//                        {.name = "my_program",
//                         .about = "Trains a model.",
//                         .declare = [&](driver::CommandLine& line) { flags.Declare(line); },
//                         .train = [&](const driver::Rank& rank) { return Train(rank, flags); }});
//   }
//
// Train runs on every rank; driver/text_run.h shows it.
#ifndef APOGEE_DRIVER_PROGRAM_H_
#define APOGEE_DRIVER_PROGRAM_H_

#include <functional>
#include <string>

#include "apogee/comm/launch.h"
#include "apogee/core/process_memory.h"
#include "apogee/driver/command_line.h"
#include "apogee/driver/corpus.h"
#include "apogee/driver/run_flags.h"

namespace apogee::driver {

class CountedGroups;
struct RunPlan;

// The arguments of a rank.
struct Rank {
  const comm::World& world;
  const Corpus& corpus;
  const ProcessMemory& start;             // of the process before launch
  const CountedGroups* groups = nullptr;  // those of the world; null: traffic is not counted
  const RunPlan* plan = nullptr;          // of the run's memory; null in the dry run that makes it
};

// The parts that a program writes itself.
struct Program {
  std::string name, about;  // for messages and --help
  // Declares the flags: RunFlags::Declare and the program's own.
  std::function<void(CommandLine&)> declare;
  // Checks the program's own flags, after RunFlags::Settle. Throws Error. May be null.
  std::function<void(const CommandLine&)> settle = nullptr;
  // Returns the data; null: LoadCorpus of the flags. Throws Error. May change the flags.
  std::function<Corpus()> load = nullptr;
  // Runs on every rank. Returns the exit code; the program's is rank 0's.
  std::function<int(const Rank&)> train;
  // Runs once after all ranks have ended well and the trace is written. May be null.
  std::function<void()> finish = nullptr;
};

// Reads the flags and the text, and runs `train` on every rank. Returns the exit code for main: 0
// after --help, 2 after wrong usage, 1 after an error, with one sentence on stderr. Call it first
// in main: it restarts the program once, to set how OpenMP's threads wait (core/blocking_waits.h).
int Run(int argc, char** argv, RunFlags& flags, const Program& program);

}  // namespace apogee::driver

#endif  // APOGEE_DRIVER_PROGRAM_H_
