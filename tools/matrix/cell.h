// SPDX-License-Identifier: Apache-2.0

// Cell: one combination of the matrix, and which combinations there are.
//
//   for (const Cell& cell : PairwiseSample(AllCells(), 400))
//     if (MatchesPattern(cell.name(), "adamw/*world3*")) ...
//
// Names: "adamw/ddp/world3/f32/acc3/fed", with "acc3ns" where all micro-steps but the last run
// under no_sync, and before the workload "/clip" where gradients are clipped, "/ignored" where
// targets are ignored.
#ifndef APOGEE_TOOLS_MATRIX_CELL_H_
#define APOGEE_TOOLS_MATRIX_CELL_H_

#include <cstdint>
#include <string>
#include <vector>

namespace apogee::tools {

struct Cell {
  std::string optimizer;
  std::string plugin;
  int world = 1;
  std::string precision;
  int64_t accumulate = 1;
  bool no_sync = false;
  bool clip = false;
  // Targets are ignored, unevenly over ranks and micro-batches (SampleRange::ignoring_window): the
  // loss is the mean over those that count of each micro-batch of all ranks.
  bool ignored = false;
  std::string workload;
  // Where both runs are, and what carries the boosted one's collectives: LaunchOptions.
  std::string device = "cpu";
  std::string comm = "auto";

  std::string name() const;
};

// Every optimizer of the registry under every plugin and layout that claims it. In a fixed order.
// Hybrid plugins have so many layouts that each meets only some precisions, windows and workloads,
// though always the same.
std::vector<Cell> AllCells();

// Cells that together have every pair of values of two axes that occurs in `cells`, if `limit`
// allows; chosen greedily, the same every time.
std::vector<Cell> PairwiseSample(const std::vector<Cell>& cells, int64_t limit);

// How many pairs of axis values occur in `cells`.
int64_t NumPairs(const std::vector<Cell>& cells);

// A shell pattern over the whole name, or a part of it. Empty: every name.
bool MatchesPattern(const std::string& name, const std::string& pattern);

}  // namespace apogee::tools

#endif  // APOGEE_TOOLS_MATRIX_CELL_H_
