// SPDX-License-Identifier: Apache-2.0

// RunAgain: this program once more, with one argument, in a process whose crash or hang is seen.
//
//   const Ended ended = RunAgain("raw_criterion/tp2z0", /*seconds=*/60);
//   if (!ended.ok()) std::puts(ended.Description().c_str());
#ifndef OUTSIDE_APP_CHILD_PROCESS_H_
#define OUTSIDE_APP_CHILD_PROCESS_H_

#include <string>

namespace outside {

struct Ended {
  bool timed_out = false;
  int status = 0;      // as of waitpid
  std::string output;  // of stdout and stderr

  bool ok() const { return !timed_out && status == 0; }
  // "ended by signal 11 (Segmentation fault)", "still ran after the time it had", the output.
  std::string Description() const;
};

// Kills the process after that time. Throws std::runtime_error where none can be started.
Ended RunAgain(const std::string& argument, double seconds);

}  // namespace outside

#endif  // OUTSIDE_APP_CHILD_PROCESS_H_
