// SPDX-License-Identifier: Apache-2.0

// Man pages of `apogee` and its subcommands, in the language of man(7).
//
//   std::cout << ManPage(command, "0.2.0");   // apogee-plan(1)
#ifndef APOGEE_TOOLS_HELP_MAN_PAGE_H_
#define APOGEE_TOOLS_HELP_MAN_PAGE_H_

#include <string>

#include "apogee/tools/help/command_tree.h"

namespace apogee::tools {

std::string ManPage(const CommandInfo& command, const std::string& version);

}  // namespace apogee::tools

#endif  // APOGEE_TOOLS_HELP_MAN_PAGE_H_
