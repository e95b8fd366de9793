// SPDX-License-Identifier: Apache-2.0

// CheckMemory: whether a dry run prices the memory of a cell's run.
//
//   CellReport report = CheckMemory(cell);      // kFail: report.detail has both numbers
#ifndef APOGEE_MATRIX_MEMORY_CHECK_H_
#define APOGEE_MATRIX_MEMORY_CHECK_H_

#include "apogee/matrix/matrix.h"

namespace apogee::matrix {

// The peak of all memory may differ by this share; parameters, gradients and optimizer states may
// not differ at all.
inline constexpr double kPeakTolerance = 0.02;

// Trains the cell twice, for real and dry. Fails if a rank's parameters, gradients or states have
// other bytes, at the end or at their peak, or if its peak of all memory is further off than
// kPeakTolerance. With pipeline stages the peak of gradients depends on when messages arrive, and
// counts only as a part of the peak of all memory. Both runs must have threads as ranks.
CellReport CheckMemory(const Cell& cell);

}  // namespace apogee::matrix

#endif  // APOGEE_MATRIX_MEMORY_CHECK_H_
