// SPDX-License-Identifier: Apache-2.0

// The frame of every program's main: errors become one message and exit code 1, and so does output
// that could not be written.
//
//   int main(int argc, char** argv) {
//     return RunProgram("my_program", [&] { return Run(argc, argv); });
//   }
#ifndef APOGEE_EXAMPLES_COMMON_PROGRAM_H_
#define APOGEE_EXAMPLES_COMMON_PROGRAM_H_

#include <functional>
#include <string>

// What `body` returns; 1 where it throws, or where the standard output cannot be written (a full
// disk; closed), with "<name>: <message>" on stderr. Text of files in the message loses its control
// characters. A file that grows over the limit of `ulimit -f` is an error, not the end by a signal.
int RunProgram(const std::string& name, const std::function<int()>& body);

#endif  // APOGEE_EXAMPLES_COMMON_PROGRAM_H_
