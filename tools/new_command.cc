// SPDX-License-Identifier: Apache-2.0

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <string>

#include "apogee/checkpoint/files/file_system.h"
#include "apogee/tools/command.h"
#include "apogee/tools/new/new_project.h"
#include "apogee/tools/report_error.h"

namespace apogee::tools {

void AddNewCommand(CLI::App& app, int& exit_code) {
  auto folder = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand(
      "new", "Write a project of your own that trains at once: model, loop, test, CMake files");
  command->add_option("folder", *folder, "The folder to create; its name is the program's")
      ->required();
  command->callback([folder, &exit_code] {
    const absl::Status status = NewProject(*checkpoint::RealFileSystem(), *folder);
    if (!status.ok()) {
      exit_code = ReportError("new", status);
      return;
    }
    std::cout << "wrote " << *folder << "; README.md there has the commands:\n"
              << "  cd " << *folder << "\n"
              << "  cmake -S . -B build && cmake --build build && ctest --test-dir build\n";
  });
}

}  // namespace apogee::tools
