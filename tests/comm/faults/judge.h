// SPDX-License-Identifier: Apache-2.0

// Checks the messages of a fault trial's ranks: every survivor must name the rank that misbehaved,
// the call, and its number.
//
//   for (const std::string& wrong : Judge(trial, outcome)) ...
#ifndef APOGEE_TESTS_COMM_FAULTS_JUDGE_H_
#define APOGEE_TESTS_COMM_FAULTS_JUDGE_H_

#include <string>
#include <vector>

#include "apogee/tests/comm/faults/run_trial.h"

namespace apogee::comm::faults {

// Returns the faults in messages, exit code and leftovers. Does not judge the time.
std::vector<std::string> Judge(const Trial& trial, const Outcome& outcome);

}  // namespace apogee::comm::faults

#endif  // APOGEE_TESTS_COMM_FAULTS_JUDGE_H_
