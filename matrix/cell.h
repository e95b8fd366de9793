// SPDX-License-Identifier: Apache-2.0

// Cell: one combination of the matrix; and the list of combinations.
//
//   for (const Cell& cell : PairwiseSample(AllCells(), 400))
//     if (MatchesPattern(cell.name(), "adamw/*world3*")) ...
//
// A name is "adamw/ddp/world3/f32/acc3/fed". "acc3ns" means that all micro-steps but the last run
// under no_sync. Before the workload comes "/clip" if gradients are clipped, and "/ignored" if
// targets are ignored.
#ifndef APOGEE_MATRIX_CELL_H_
#define APOGEE_MATRIX_CELL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "apogee/comm/launch.h"
#include "apogee/matrix/catalog.h"

namespace apogee::matrix {

struct Cell {
  std::string optimizer;
  std::string plugin;
  int world = 1;
  std::string precision;
  int64_t accumulate = 1;
  bool no_sync = false;
  bool clip = false;
  // Some targets are ignored, unevenly over ranks and micro-batches (SampleRange::ignoring_window).
  // The loss is then the mean over the other targets in each micro-batch of all ranks.
  bool ignored = false;
  std::string workload;
  // The device of both runs, and the boosted run's backend for collectives (LaunchOptions).
  std::string device = "cpu";
  comm::Backend comm = comm::Backend::kAuto;
  // Has the optimizer, the plugin and the workload; must outlive the cell.
  const Catalog* catalog = &LibraryCatalog();

  // Whether a micro-batch of the one-rank run has the samples of all ranks' micro-batches.
  bool shares_micro_batches() const;
  // The micro-batches of a step, of all ranks together; 1 if their number makes no difference.
  int64_t num_shared_micro_batches() const;
  std::string name() const;
};

// Every optimizer of the catalog with every plugin and layout that supports it, in a fixed order.
// Hybrid plugins have very many layouts: each of those gets only some precisions, windows and
// workloads, the same in every run.
std::vector<Cell> AllCells(const Catalog& catalog = LibraryCatalog());

// A sample of at most `limit` cells that together have every pair of values of two axes that occurs
// in `cells`, if `limit` allows. Chosen greedily, the same every time.
std::vector<Cell> PairwiseSample(const std::vector<Cell>& cells, int64_t limit);

// The number of pairs of axis values that occur in `cells`.
int64_t NumPairs(const std::vector<Cell>& cells);

// True if `pattern` is a part of the name, matches the whole name as a shell pattern, or is empty.
bool MatchesPattern(const std::string& name, const std::string& pattern);

}  // namespace apogee::matrix

#endif  // APOGEE_MATRIX_CELL_H_
