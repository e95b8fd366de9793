// SPDX-License-Identifier: Apache-2.0

#include <CLI/CLI.hpp>

#include "apogee/tools/command.h"
#include "apogee/tools/data/commands.h"

namespace apogee::tools {

void AddDataCommand(CLI::App& app, int& exit_code) {
  CLI::App* data = app.add_subcommand("data", "Tokenise texts; inspect and convert token files");
  data->require_subcommand(1);
  AddConvertTokensCommand(*data, exit_code);
  AddInspectTokensCommand(*data, exit_code);
  AddTokenizeCommand(*data, exit_code);
  AddTrainTokenizerCommand(*data, exit_code);
  AddVerifyTokensCommand(*data, exit_code);
}

}  // namespace apogee::tools
