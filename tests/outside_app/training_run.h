// SPDX-License-Identifier: Apache-2.0

// TrainingRun: a boosted loop of a few steps in f64, on one rank or several that are threads.
//
//   const RunResult one = RunTraining({.plugin = "single"}, 1, file);
//   const RunResult four = RunTraining({.plugin = "zero2"}, 4, file);
//   WorstDifference(one, four).error <= 1e-9
#ifndef OUTSIDE_APP_TRAINING_RUN_H_
#define OUTSIDE_APP_TRAINING_RUN_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace outside {

struct TrainingCase {
  std::string plugin;                  // of plugins.h
  std::string optimizer = "adan";      // "adan", "own_muon" or one of the library's
  std::string loss = "cross_entropy";  // "label_smoothing", "brier"
  int64_t accumulate = 1;
  double dropout = 0;
  double max_norm = 0;
  bool uneven = false;  // ranks have batches of unequal sizes
  bool padded = false;  // targets are ignored, not as many in every sample

  // "muon/zero2/acc2/dropout": the settings that differ from the default.
  std::string name() const;
};

struct RunResult {
  // By parameter: the values of the whole tensor.
  std::map<std::string, std::vector<double>> first, last;
  // Of every step, the mean over ranks.
  std::vector<double> losses;
};

// Throws Error when training fails.
RunResult RunTraining(const TrainingCase& training, int num_ranks, const std::string& tokens_file);

// The largest error of an element of the update, as a part of its tensor's largest update, or of a
// loss, as a part of the loss. Infinite where a number is none.
struct Difference {
  double error = 0;
  std::string where;
};
Difference WorstDifference(const RunResult& want, const RunResult& got);

}  // namespace outside

#endif  // OUTSIDE_APP_TRAINING_RUN_H_
