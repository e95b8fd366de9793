// SPDX-License-Identifier: Apache-2.0

// Writes tests/golden_checkpoints/version-N anew, into a folder that must not exist. Only for a new
// version of the format: what is committed is what earlier builds wrote, and must go on loading.
//
//   build/release/tests/write_golden_checkpoints tests/golden_checkpoints/version-2
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "apogee/checkpoint/checkpoint_folder.h"
#include "apogee/tests/booster/golden_run.h"

namespace {

using namespace apogee;
using namespace apogee::testing;

void Write(const std::string& root) {
  if (!std::filesystem::create_directory(root)) Throw(root, ": is there already");
  for (const GoldenLayout& layout : kGoldenLayouts) {
    for (const std::string& optimizer : kGoldenOptimizers) {
      const std::string folder = root + "/" + layout.name + "-" + optimizer;
      OnGoldenRun(layout, optimizer, [&](GoldenRun& run) {
        for (int64_t step = 0; step < kGoldenSteps; ++step) run.Step();
        OkOrThrow(run.booster.save_training_state(
            folder, {.step = kGoldenSteps, .extra = {{"golden", "yes"}}}));
      });
      std::ofstream(folder + ".txt")
          << TellContents(folder + "/" + checkpoint::CheckpointName(kGoldenSteps));
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: write_golden_checkpoints NEW_FOLDER\n");
    return 2;
  }
  try {
    Write(argv[1]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "write_golden_checkpoints: %s\n", error.what());
    return 1;
  }
  return 0;
}
