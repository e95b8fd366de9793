// SPDX-License-Identifier: Apache-2.0

#include "apogee/matrix/matrix.h"

#include <future>
#include <limits>
#include <map>
#include <mutex>
#include <sstream>
#include <utility>

#include "apogee/comm/some_ranks.h"
#include "apogee/matrix/boosted_run.h"
#include "apogee/matrix/memory_check.h"
#include "apogee/matrix/reference.h"

namespace apogee::matrix {
namespace {

// The seconds that the other processes wait for rank 0's one-rank runs.
constexpr double kJudgementSeconds = 600;

// An optimizer that updates inside backward keeps no gradient to accumulate into.
bool MayBeRefused(const Cell& cell) {
  return (cell.optimizer == "lomo" || cell.optimizer == "adalomo") && cell.accumulate > 1;
}

// Reports the parameter whose error is the largest fraction of its bound. NaN counts as infinite.
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

CellReport Judge(const Cell& cell, BoostedResult got, ReferenceCache& references) {
  CellReport report{.cell = cell};
  try {
    if (!got.status.ok()) {
      report.detail = (got.refused ? "refused: " : "") + Message(got.status);
      if (got.refused && MayBeRefused(cell)) {
        report.verdict = Verdict::kRefused;
        report.detail = Message(got.status);
      }
      return report;
    }
    const Reference& reference = references.Get(cell);
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
    if (report.verdict == Verdict::kFail && report.error <= kLargestBound &&
        report.error <= kSearchFactor * report.bound) {
      references.LookFurther(cell, [&](const Reference& wider) {
        Compare(got.end, wider, report);
        return report.verdict == Verdict::kPass;
      });
    }
  } catch (const std::exception& error) {
    report.detail = error.what();
  }
  return report;
}

// Runs the cells in `options.jobs` threads. A thread takes all cells of an optimizer, because these
// share references.
std::vector<CellReport> RunCells(const std::vector<Cell>& cells, const MatrixOptions& options,
                                 std::ostream& out) {
  std::map<std::string, std::vector<size_t>> by_optimizer;
  for (size_t i = 0; i < cells.size(); ++i) by_optimizer[cells[i].optimizer].push_back(i);
  std::vector<CellReport> reports(cells.size());
  std::mutex mutex;
  auto next = by_optimizer.begin();
  const SearchSeconds searched = NoSearchSeconds();
  const auto take = [&] {
    const std::lock_guard<std::mutex> lock(mutex);
    return next == by_optimizer.end() ? std::vector<size_t>{} : (next++)->second;
  };
  const auto work = [&] {
    for (std::vector<size_t> mine = take(); !mine.empty(); mine = take()) {
      ReferenceCache references({}, searched);
      for (const size_t i : mine) {
        reports[i] = options.memory ? CheckMemory(cells[i])
                                    : RunCell(cells[i], options.sabotage, references);
        const std::lock_guard<std::mutex> lock(mutex);
        out << reports[i].Line() << std::endl;
      }
    }
  };
  std::vector<std::future<void>> others;
  for (int64_t w = 1; w < options.jobs; ++w) {
    others.push_back(std::async(std::launch::async, work));
  }
  work();
  for (std::future<void>& other : others) other.get();
  return reports;
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
  BoostedResult got = BoostedRun(cell, sabotage);
  const bool judges = ValueOrThrow(comm::StartedProcesses()).rank == 0;
  CellReport report{.cell = cell};
  if (judges) report = Judge(cell, std::move(got), references);
  std::vector<std::string> verdict{std::string(1, static_cast<char>(report.verdict))};
  comm::ShareByRank(verdict, kJudgementSeconds);
  report.verdict = static_cast<Verdict>(verdict[0][0]);
  return report;
}

std::vector<Cell> ChooseCells(const MatrixOptions& options) {
  APOGEE_CHECK(options.shard >= 1 && options.shard <= options.num_shards,
               "matrix: there is no shard ", options.shard, " of ", options.num_shards,
               "; use 1 to ", options.num_shards);
  std::vector<Cell> cells = AllCells(*options.catalog);
  if (options.memory) {
    std::erase_if(cells, [](const Cell& cell) {
      return cell.catalog->FindWorkload(cell.workload).reads_values();
    });
  }
  if (options.sample > 0) {
    // The families' cells differ in the model only, so a sample of pairs has no use for them.
    std::erase_if(cells, [](const Cell& cell) { return cell.workload.starts_with("hf_"); });
    cells = PairwiseSample(cells, options.sample);
  }
  std::erase_if(cells,
                [&](const Cell& cell) { return !MatchesPattern(cell.name(), options.only); });
  int64_t number = 0;
  std::erase_if(cells,
                [&](const Cell&) { return number++ % options.num_shards != options.shard - 1; });
  for (Cell& cell : cells) {
    cell.device = options.device;
    cell.comm = options.comm;
  }
  return cells;
}

std::vector<CellReport> RunMatrix(const MatrixOptions& options, std::ostream& out) {
  const int num_processes = ValueOrThrow(comm::StartedProcesses()).size;
  APOGEE_CHECK(options.jobs == 1 || (options.jobs > 1 && num_processes == 1), "matrix: jobs is ",
               options.jobs,
               options.jobs < 1 ? "; use 1 or more" : "; several jobs need ranks that are threads");
  std::vector<Cell> cells = ChooseCells(options);
  const size_t num_too_large = num_processes == 1 ? 0 : std::erase_if(cells, [&](const Cell& cell) {
    return cell.world > num_processes;
  });
  std::vector<CellReport> reports = RunCells(cells, options, out);
  int64_t counts[3] = {};
  for (const CellReport& report : reports) ++counts[static_cast<size_t>(report.verdict)];
  if (num_too_large > 0) {
    out << num_too_large << (num_too_large == 1 ? " cell needs" : " cells need") << " more than "
        << num_processes << " processes\n";
  }
  if (const int64_t refused = counts[static_cast<size_t>(Verdict::kRefused)]; refused > 0) {
    out << refused << " refused\n";
  }
  out << counts[static_cast<size_t>(Verdict::kPass)] << " passed, "
      << counts[static_cast<size_t>(Verdict::kFail)] << " failed" << std::endl;
  return reports;
}

}  // namespace apogee::matrix
