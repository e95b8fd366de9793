#include "apogee/tools/matrix/matrix.h"

#include <limits>
#include <sstream>

#include "apogee/tools/matrix/boosted_run.h"

namespace apogee::tools {
namespace {

// An update inside backward leaves no gradient to add to.
bool MayBeRefused(const Cell& cell) {
  return (cell.optimizer == "lomo" || cell.optimizer == "adalomo") && cell.accumulate > 1;
}

// Of the parameter whose error is the largest part of its bound. NaN counts as infinite.
void Compare(const Weights& got, const Reference& reference, CellReport& report) {
  double worst = -1;
  for (const auto& [name, want] : reference.plain.end) {
    const double error = UpdateError(reference.plain.start.at(name), want, got.at(name));
    const double bound = reference.bounds.at(name);
    const double part = error == 0 ? 0 : error / bound;
    if (part <= worst) continue;
    report.error = error;
    report.bound = bound;
    report.parameter = name;
    worst = part == part ? part : std::numeric_limits<double>::infinity();
  }
  report.verdict = worst <= 1 ? Verdict::kPass : Verdict::kFail;
}

}  // namespace

std::string CellReport::Line() const {
  std::ostringstream line;
  line.precision(3);
  if (verdict == Verdict::kRefused) {
    line << "refused " << cell.name() << ": " << detail;
    return line.str();
  }
  line << (verdict == Verdict::kPass ? "PASS " : "FAIL ") << cell.name() << "  ";
  if (!detail.empty()) {
    line << detail;
    return line.str();
  }
  line << "error " << error << (verdict == Verdict::kPass ? " <= " : " > ") << bound << " ("
       << parameter << ")  " << collectives << " collectives, " << bytes << " bytes per step  "
       << state_bytes << " state bytes";
  return line.str();
}

CellReport RunCell(const Cell& cell, Sabotage sabotage, ReferenceCache& references) {
  CellReport report{.cell = cell};
  try {
    const Reference& reference = references.Get(cell);
    BoostedResult got = BoostedRun(cell, sabotage);
    if (!got.status.ok()) {
      report.detail = (got.refused ? "refused: " : "") + Message(got.status);
      if (got.refused && MayBeRefused(cell)) {
        report.verdict = Verdict::kRefused;
        report.detail = Message(got.status);
      }
      return report;
    }
    report.collectives = got.collectives;
    report.bytes = got.bytes;
    report.state_bytes = got.state_bytes;
    report.num_parameters = got.num_parameters;
    if (got.num_skipped != reference.plain.num_skipped) {
      report.detail = internal::Concat("skipped ", got.num_skipped, " steps, the one-rank run ",
                                       reference.plain.num_skipped);
      return report;
    }
    for (auto& [name, masters] : got.masters) got.end[name] = std::move(masters);
    Compare(got.end, reference, report);
  } catch (const std::exception& error) {
    report.detail = error.what();
  }
  return report;
}

std::vector<Cell> ChooseCells(const MatrixOptions& options) {
  std::vector<Cell> cells = AllCells();
  if (options.sample > 0) cells = PairwiseSample(cells, options.sample);
  std::erase_if(cells,
                [&](const Cell& cell) { return !MatchesPattern(cell.name(), options.only); });
  return cells;
}

std::vector<CellReport> RunMatrix(const MatrixOptions& options, std::ostream& out) {
  ReferenceCache references;
  std::vector<CellReport> reports;
  int64_t counts[3] = {};
  for (const Cell& cell : ChooseCells(options)) {
    reports.push_back(RunCell(cell, options.sabotage, references));
    ++counts[static_cast<size_t>(reports.back().verdict)];
    out << reports.back().Line() << std::endl;
  }
  if (const int64_t refused = counts[static_cast<size_t>(Verdict::kRefused)]; refused > 0) {
    out << refused << " refused\n";
  }
  out << counts[static_cast<size_t>(Verdict::kPass)] << " passed, "
      << counts[static_cast<size_t>(Verdict::kFail)] << " failed" << std::endl;
  return reports;
}

}  // namespace apogee::tools
