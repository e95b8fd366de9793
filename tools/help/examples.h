// SPDX-License-Identifier: Apache-2.0

// Examples of the subcommands, for --help and the man pages.
//
//   for (const std::string& line : ExamplesOf("plan")) ...   // apogee plan llama2-7b --ranks 8 ...
#ifndef APOGEE_TOOLS_HELP_EXAMPLES_H_
#define APOGEE_TOOLS_HELP_EXAMPLES_H_

#include <string>
#include <vector>

namespace apogee::tools {

// `command`: its words, for instance "data tokenize". Empty if it has none.
std::vector<std::string> ExamplesOf(const std::string& command);

}  // namespace apogee::tools

#endif  // APOGEE_TOOLS_HELP_EXAMPLES_H_
