// SPDX-License-Identifier: Apache-2.0

#include "apogee/matrix/memory_check.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "apogee/core/text/text.h"
#include "apogee/matrix/boosted_run.h"
#include "apogee/matrix/plugins.h"

namespace apogee::matrix {
namespace {

constexpr MemoryCategory kExact[] = {MemoryCategory::kParameter, MemoryCategory::kGradient,
                                     MemoryCategory::kOptimizerState};

// The first difference that is not allowed; empty if there is none. `waits`: gradients wait for
// messages to other stages, so their peak depends on the threads' timing.
std::string Difference(int rank, bool waits, const MemoryFigures& priced,
                       const MemoryFigures& measured) {
  for (const MemoryCategory category : kExact) {
    const auto c = static_cast<size_t>(category);
    for (const bool peak : {false, true}) {
      if (peak && waits && category == MemoryCategory::kGradient) continue;
      const int64_t planned = peak ? priced.peak_bytes[c] : priced.live_bytes[c];
      const int64_t real = peak ? measured.peak_bytes[c] : measured.live_bytes[c];
      if (planned == real) continue;
      return internal::Concat("rank ", rank, ": ", planned, " bytes of ",
                              MemoryCategoryName(category), peak ? " at the peak" : " at the end",
                              " are priced, the run has ", real);
    }
  }
  return "";
}

}  // namespace

CellReport CheckMemory(const Cell& cell) {
  CellReport report{.cell = cell};
  const auto measured = MeasuredMemory(cell);
  const auto priced = PricedMemory(cell);
  if (!measured.ok() || !priced.ok()) {
    // A run that is refused must be refused dry, too.
    if (!measured.ok() && !priced.ok()) report.verdict = Verdict::kRefused;
    report.detail = Message(priced.ok() ? measured.status() : priced.status());
    return report;
  }
  const bool waits = cell.catalog->FindPlugin(cell.plugin).pp > 1;
  double worst = 0;
  int64_t peak_bytes = 0;
  for (size_t r = 0; r < measured->size(); ++r) {
    const MemoryFigures& real = (*measured)[r];
    const MemoryFigures& planned = (*priced)[r];
    report.detail = Difference(static_cast<int>(r), waits, planned, real);
    if (!report.detail.empty()) return report;
    const double error =
        static_cast<double>(planned.peak_total_bytes) / static_cast<double>(real.peak_total_bytes) -
        1;
    if (std::abs(error) > std::abs(worst)) worst = error;
    peak_bytes = std::max(peak_bytes, real.peak_total_bytes);
  }
  report.verdict = std::abs(worst) <= kPeakTolerance ? Verdict::kPass : Verdict::kFail;
  report.detail = internal::Concat("peak ", peak_bytes, " bytes, priced ", FormatChange(worst, 2));
  return report;
}

}  // namespace apogee::matrix
