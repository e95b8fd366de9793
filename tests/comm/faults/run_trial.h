// SPDX-License-Identifier: Apache-2.0

// Runs one fault trial: fault_ranks by itself or under mpirun, in its own process group and within
// a hard limit.
//
//   const Outcome outcome = RunTrial(
//       trial, {.fault_ranks = path, .starters = {{"mpi", "mpirun.sh mpirun"}}});
//   if (outcome.hang) ...          // RunTrial has killed all processes that were left
//
// Times are those of the ranks' own processes: from the moment the faulty rank reports its fault to
// the end of the last rank, as /proc shows it every 2 ms. They leave out how long mpirun takes to
// start and to clean up.
#ifndef APOGEE_TESTS_COMM_FAULTS_RUN_TRIAL_H_
#define APOGEE_TESTS_COMM_FAULTS_RUN_TRIAL_H_

#include <map>
#include <string>
#include <vector>

#include "apogee/tests/comm/faults/events.h"
#include "apogee/tests/comm/faults/trial.h"

namespace apogee::comm::faults {

struct RunOptions {
  std::string fault_ranks;
  // By backend: a command that takes the number of processes and the program. Empty: not built.
  std::map<std::string, std::string> starters = {};
  double timeout_seconds = 1;
  // From the trial's start. A trial that takes longer is a hang.
  double limit_seconds = 30;
};

struct Outcome {
  bool hang = false;
  int exit_code = 0;  // of the program or its starter; 128 + its number for a signal
  std::vector<Event> events;
  std::string err;                // stderr of all
  double end_seconds = 0;         // of the last process, from the fault
  std::vector<std::string> left;  // processes, shared memory and temporary files
  // The longest time for which this process, which wakes up every 2 ms, did not run: others may not
  // have run then, either.
  double standstill_seconds = 0;
};

Outcome RunTrial(const Trial& trial, const RunOptions& options);

}  // namespace apogee::comm::faults

#endif  // APOGEE_TESTS_COMM_FAULTS_RUN_TRIAL_H_
