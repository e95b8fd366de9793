// SPDX-License-Identifier: Apache-2.0

// Files made of a matrix' reports: every cell as JSON, or tables by optimizer and plugin.
//
//   std::ofstream file("matrix.json");
//   WriteJson(RunMatrix({}, std::cout), file);
#ifndef APOGEE_MATRIX_REPORT_H_
#define APOGEE_MATRIX_REPORT_H_

#include <ostream>
#include <vector>

#include "apogee/matrix/matrix.h"

namespace apogee::matrix {

// {"cells": [{"name": …, "verdict": "pass", …}], "passed": …, "failed": …, "refused": …}
void WriteJson(const std::vector<CellReport>& reports, std::ostream& out);

// A table with a row per optimizer and a column per plugin for each: how cells ended and the
// largest error in f64 and f32; the largest collectives and bytes of a step; state bytes per
// parameter. Then the refusals with their reasons.
void WriteMarkdown(const std::vector<CellReport>& reports, std::ostream& out);

}  // namespace apogee::matrix

#endif  // APOGEE_MATRIX_REPORT_H_
