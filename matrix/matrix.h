// SPDX-License-Identifier: Apache-2.0

// The matrix: runs cells, compares each with the one-rank run, and reports.
//
//   RunMatrix({.only = "adamw/*", .sample = 300}, std::cout);
//   RunMatrix({.only = "adamax/*", .catalog = &catalog}, std::cout);   // with your own optimizer
//
//   PASS adamw/ddp/world3/f32/acc3/fed  error 0 (row)  12 collectives, 83712 bytes per step  …
//   FAIL lamb/ddp/world2/f64/acc1/gpt2  error 0.31 > 1e-09 (lm.transformer.wte.weight)  …
//   refused lomo/ddp/world1/f32/acc3/fed: …
//   1 refused
//   1 passed, 1 failed
//
// Under mpirun ranks are processes, and every process makes every call here.
#ifndef APOGEE_MATRIX_MATRIX_H_
#define APOGEE_MATRIX_MATRIX_H_

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "apogee/matrix/cell.h"

namespace apogee::matrix {

class ReferenceCache;
enum class Sabotage : int;  // sabotage.h

enum class Verdict { kPass, kFail, kRefused };

struct CellReport {
  Cell cell;
  Verdict verdict = Verdict::kFail;
  // The error of the update, its bound, and the parameter: the one whose error is the largest
  // multiple of its bound.
  double error = 0;
  double bound = 0;
  std::string parameter = {};
  // The failure, or the reason for the refusal.
  std::string detail = {};
  // Traffic of one rank in the last step, a plain one.
  int64_t collectives = 0;
  int64_t bytes = 0;
  // Optimizer states with masters, of the rank that has most; and the model's size, for comparison.
  int64_t state_bytes = 0;
  int64_t num_parameters = 0;

  std::string Line() const;
};

// Runs one cell. A refusal that is not on the list of allowed ones is a failure. With several
// processes rank 0 compares; the others get the verdict only. Throws CommError if a process is
// lost.
CellReport RunCell(const Cell& cell, Sabotage sabotage, ReferenceCache& references);

struct MatrixOptions {
  std::string only = {};  // MatchesPattern
  int64_t sample = 0;     // 0: all cells; else the size limit of a pairwise sample
  // Of the cells that `only` and `sample` choose, every `num_shards`-th, beginning with number
  // `shard`: 1 <= shard <= num_shards.
  int64_t shard = 1, num_shards = 1;
  Sabotage sabotage = {};  // none
  std::string device = "cpu";
  comm::Backend comm = comm::Backend::kAuto;
  // The number of cells that run at the same time, each of another optimizer. More than 1 needs
  // ranks that are threads.
  int64_t jobs = 1;
  // Compare the memory of each run with its price (memory_check.h), instead of its results.
  bool memory = false;
  // The optimizers, plugins and models to run, your own among them; must outlive the call and its
  // reports.
  const Catalog* catalog = &LibraryCatalog();
};

// The cells to run; runs nothing. The pattern applies to the sample, so that several patterns can
// divide one sample. Throws Error for a shard that does not exist.
std::vector<Cell> ChooseCells(const MatrixOptions& options);
// Runs the chosen cells. Leaves out cells with more ranks than there are processes, and prints how
// many. With several processes, show rank 0's `out`. With several jobs the lines are printed as the
// cells end; the reports are in the order of ChooseCells. Throws Error for jobs < 1, and for
// several jobs if the program's ranks are processes.
std::vector<CellReport> RunMatrix(const MatrixOptions& options, std::ostream& out);

}  // namespace apogee::matrix

#endif  // APOGEE_MATRIX_MATRIX_H_
