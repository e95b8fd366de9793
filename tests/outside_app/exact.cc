// SPDX-License-Identifier: Apache-2.0

// Trains on 4 ranks, in every way that there is, and compares the update with that of 1 rank on the
// whole batches: in f64 they must agree to 1e-9 of the update.
//
//   exact            all cases, one line each, then "N passed, M failed"
//   exact zero2      those with "zero2" in their name
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tokens.h"
#include "training_run.h"

namespace outside {
namespace {

constexpr double kBound = 1e-9;
constexpr int kRanks = 4;

std::vector<TrainingCase> Cases() {
  std::vector<TrainingCase> cases = {{.plugin = "single", .optimizer = "own_muon", .accumulate = 4},
                                     {.plugin = "single", .accumulate = 2, .max_norm = 0.5},
                                     {.plugin = "local_sgd", .optimizer = "sgd"},
                                     {.plugin = "ddp", .loss = "label_smoothing", .max_norm = 0.5},
                                     {.plugin = "tp2z1", .loss = "label_smoothing"},
                                     {.plugin = "zero1", .loss = "brier", .accumulate = 2},
                                     {.plugin = "tp2z0", .loss = "brier"},
                                     {.plugin = "zero2", .loss = "brier", .uneven = true},
                                     {.plugin = "tp2z1", .loss = "label_smoothing", .uneven = true},
                                     {.plugin = "gemini", .optimizer = "lamb", .max_norm = 0.5},
                                     {.plugin = "tp2z2", .optimizer = "lion", .accumulate = 2}};
  for (const char* plugin : {"ddp", "zero1", "zero2", "gemini", "offload", "tp2z0", "tp2z1",
                             "tp2z2", "tp2z3", "pp2t1", "pp2t2"}) {
    cases.push_back({.plugin = plugin, .optimizer = "own_muon"});
    cases.push_back({.plugin = plugin, .accumulate = 2, .max_norm = 0.5});
  }
  for (const char* plugin : {"ddp", "zero2", "gemini", "tp2z0", "tp2z3"}) {
    cases.push_back({.plugin = plugin, .optimizer = "own_muon", .dropout = 0.1});
    cases.push_back({.plugin = plugin, .accumulate = 2, .dropout = 0.1});
  }
  for (const char* plugin : {"ddp", "zero2", "gemini", "tp2z1", "pp2t1", "pp2t2"}) {
    cases.push_back({.plugin = plugin, .uneven = true});
    cases.push_back({.plugin = plugin, .padded = true});
    cases.push_back({.plugin = plugin, .optimizer = "own_muon", .accumulate = 2, .padded = true});
  }
  return cases;
}

// What the case's ranks must do together.
TrainingCase OneRankCase(TrainingCase training) {
  training.plugin = "single";
  training.uneven = false;
  // The mean over the targets of each micro-batch, however many, and not over those of the window.
  if (!training.padded) training.accumulate = 1;
  return training;
}

class Comparison {
 public:
  explicit Comparison(std::string tokens_file) : file_(std::move(tokens_file)) {}

  // Prints a line.
  bool Passes(const TrainingCase& training) {
    std::string what;
    bool passes = false;
    try {
      const int num_ranks = training.plugin == "single" ? 1 : kRanks;
      const Difference difference =
          WorstDifference(OneRank(training), RunTraining(training, num_ranks, file_));
      passes = difference.error <= kBound;
      char text[200];
      std::snprintf(text, sizeof(text), "error %.2g %s", difference.error,
                    difference.where.c_str());
      what = text;
    } catch (const std::exception& error) {
      what = error.what();
    }
    std::printf("%s %s  %s\n", passes ? "PASS" : "FAIL", training.name().c_str(), what.c_str());
    std::fflush(stdout);
    return passes;
  }

 private:
  // Each once.
  const RunResult& OneRank(const TrainingCase& training) {
    const TrainingCase one = OneRankCase(training);
    const auto found = references_.find(one.name());
    if (found != references_.end()) return found->second;
    return references_.emplace(one.name(), RunTraining(one, 1, file_)).first->second;
  }

  std::string file_;
  std::map<std::string, RunResult> references_;
};

int Main(const std::string& only) {
  const std::filesystem::path file =
      std::filesystem::temp_directory_path() / ("outside_app_" + std::to_string(getpid()));
  WriteTokens(file, 4000, 61);
  Comparison comparison(file);
  int passed = 0, failed = 0;
  for (const TrainingCase& training : Cases()) {
    if (training.name().find(only) == std::string::npos) continue;
    ++(comparison.Passes(training) ? passed : failed);
  }
  std::filesystem::remove(file);
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 && passed > 0 ? 0 : 1;
}

}  // namespace
}  // namespace outside

int main(int argc, char** argv) { return outside::Main(argc > 1 ? argv[1] : ""); }
