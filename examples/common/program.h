// SPDX-License-Identifier: Apache-2.0

// The frame of every program's main: an error becomes one message and exit code 1, and so does
// output that cannot be written.
//
//   int main(int argc, char** argv) {
//     return RunProgram("my_program", [&] { return Run(argc, argv); });
//   }
#ifndef APOGEE_EXAMPLES_COMMON_PROGRAM_H_
#define APOGEE_EXAMPLES_COMMON_PROGRAM_H_

#include <functional>
#include <string>

// Returns the result of `body`, or 1 with "<name>: <message>" on stderr if it throws or if standard
// output cannot be written (full disk, closed). Control characters in the message are removed. A
// file that exceeds the limit of `ulimit -f` is an error; it does not end the program by a signal.
int RunProgram(const std::string& name, const std::function<int()>& body);

#endif  // APOGEE_EXAMPLES_COMMON_PROGRAM_H_
