// SPDX-License-Identifier: Apache-2.0

// The matrix: runs cells, compares each with the one-rank run and reports.
//
//   Matrix({.only = "adamw/*", .sample = 300}, std::cout);
//
//   PASS adamw/ddp/world3/f32/acc3/fed  error 0 (row)  12 collectives, 83712 bytes per step  …
//   FAIL lamb/ddp/world2/f64/acc1/gpt2  error 0.31 > 1e-09 (lm.transformer.wte.weight)  …
//   refused lomo/ddp/world1/f32/acc3/fed: …
//   1 refused
//   1 passed, 1 failed
//
// Under mpirun ranks are processes, and every process calls all of this.
#ifndef APOGEE_TOOLS_MATRIX_MATRIX_H_
#define APOGEE_TOOLS_MATRIX_MATRIX_H_

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "apogee/tools/matrix/cell.h"
#include "apogee/tools/matrix/reference.h"
#include "apogee/tools/matrix/sabotage.h"

namespace apogee::tools {

enum class Verdict { kPass, kFail, kRefused };

struct CellReport {
  Cell cell;
  Verdict verdict = Verdict::kFail;
  // Of the update, of the parameter that comes closest to its bound or exceeds it most.
  double error = 0;
  double bound = 0;
  std::string parameter = {};
  // What went wrong, or why the combination is refused.
  std::string detail = {};
  // In a step without anything special, on one rank.
  int64_t collectives = 0;
  int64_t bytes = 0;
  // Of the rank that has most, masters included; and the model's size, for scale.
  int64_t state_bytes = 0;
  int64_t num_parameters = 0;

  std::string Line() const;
};

// A refusal that is not on the list of allowed ones is a failure. Of several processes rank 0
// compares; the others get its verdict and nothing else. Throws CommError when one is lost.
CellReport RunCell(const Cell& cell, Sabotage sabotage, ReferenceCache& references);

struct MatrixOptions {
  std::string only = {};  // MatchesPattern
  int64_t sample = 0;     // 0: all cells; else a pairwise sample of at most so many
  Sabotage sabotage = Sabotage::kNone;
  std::string device = "cpu";
  std::string comm = "auto";
};

// The cells, before anything runs. The sample is taken first, so that patterns divide it.
std::vector<Cell> ChooseCells(const MatrixOptions& options);
// Of the chosen cells those of larger worlds than there are processes are left out, and counted in
// `out`. Of several processes rank 0's `out` is the one to show.
std::vector<CellReport> RunMatrix(const MatrixOptions& options, std::ostream& out);

}  // namespace apogee::tools

#endif  // APOGEE_TOOLS_MATRIX_MATRIX_H_
