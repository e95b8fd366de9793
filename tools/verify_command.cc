// SPDX-License-Identifier: Apache-2.0

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <string>

#include "apogee/tensor/make_context.h"
#include "apogee/tools/command.h"
#include "apogee/verify/verify.h"

namespace apogee::tools {

void AddVerifyCommand(CLI::App& app, int& exit_code) {
  struct VerifyFlags {
    std::string path;
    std::string dtype = "f32";
    int threads = 1;
    std::string device = "cpu";
  };
  auto flags = std::make_shared<VerifyFlags>();
  CLI::App* command =
      app.add_subcommand("verify", "Replay recorded trajectories of reference implementations");
  command
      ->add_option(
          "path", flags->path,
          "One case (a .safetensors file, or the folder of a recorded Hugging Face model), or a "
          "folder that is searched for cases with its subfolders")
      ->required();
  command
      ->add_option("--dtype", flags->dtype, "f32, or f64 to compare with the float64 runs as well")
      ->check(CLI::IsMember({"f32", "f64"}));
  command->add_option("--threads", flags->threads, "CPU threads")->check(CLI::Range(1, 1024));
  command->add_option("--device", flags->device, "Device of the replays: cpu, cuda or cuda:N")
      ->check([](const std::string& name) { return Message(ParseDevice(name).status()); });
  command->callback([flags, &exit_code] {
    exit_code = verify::Verify(flags->path,
                               {.dtype = DTypeFromName(flags->dtype),
                                .num_threads = flags->threads,
                                .device = flags->device},
                               std::cout, std::cerr);
  });
}

}  // namespace apogee::tools
