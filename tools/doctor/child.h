// SPDX-License-Identifier: Apache-2.0

// Runs a program with a time limit and leaves none of its processes behind.
//
//   ChildResult child = RunChild({"mpirun", "--version"}, /*seconds=*/10);
//   if (child.end == ChildResult::kTimedOut) ...
//
// At the limit the program gets SIGTERM, on which mpirun ends its processes. 2 s later the program
// and all its descendants, in any process group or session, get SIGKILL: this process adopts and
// ends them. It must have no other children meanwhile. Linux only.
#ifndef APOGEE_TOOLS_DOCTOR_CHILD_H_
#define APOGEE_TOOLS_DOCTOR_CHILD_H_

#include <string>
#include <vector>

namespace apogee::tools::doctor {

struct ChildResult {
  enum End { kExited, kSignalled, kTimedOut, kNotStarted };
  End end = kNotStarted;
  int code = 0;  // exit code, number of the signal, or errno
  double seconds = 0;
  std::string out, err;  // the last 16 KiB of each
};

// "exited with 1", "was ended by signal 11 (Segmentation fault)", "did not end within 60 s", ...
std::string Describe(const ChildResult& child, double limit_seconds);

// `command`: a path, or a name that is looked up on PATH, then the arguments. Its standard input is
// empty.
ChildResult RunChild(const std::vector<std::string>& command, double limit_seconds);

}  // namespace apogee::tools::doctor

#endif  // APOGEE_TOOLS_DOCTOR_CHILD_H_
