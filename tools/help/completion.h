// SPDX-License-Identifier: Apache-2.0

// Scripts with which a shell completes commands and flags of `apogee`.
//
//   std::cout << ValueOrThrow(CompletionScript(CommandTree(app), "bash"));
#ifndef APOGEE_TOOLS_HELP_COMPLETION_H_
#define APOGEE_TOOLS_HELP_COMPLETION_H_

#include <string>
#include <vector>

#include "apogee/core/status.h"
#include "apogee/tools/help/command_tree.h"

namespace apogee::tools {

// `shell`: bash, zsh or fish; InvalidArgument for others.
absl::StatusOr<std::string> CompletionScript(const std::vector<CommandInfo>& commands,
                                             const std::string& shell);

}  // namespace apogee::tools

#endif  // APOGEE_TOOLS_HELP_COMPLETION_H_
