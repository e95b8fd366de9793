// SPDX-License-Identifier: Apache-2.0

// Fault trials: one rank misbehaves, and the others must learn of it, which rank and in which call,
// in time; then the program must end, and leave nothing behind.
//
//   comm_fault_trials                        all of them
//   comm_fault_trials --sample 24 --backend threads
//   comm_fault_trials --only 'mpi/sigstop/.*/large' --verbose
//   comm_fault_trials --trial mpi/sigstop/broadcast/flight/4/2
//
// Among threads a rank cannot be killed or stopped alone: those faults are tried among processes.
// A trial is late when its last process ends more than a second behind the time-out, counted from
// the fault (run_trial.h says how). Prints a line for each trial, a table of faults, and as its
// last line `N trials, N hangs, N wrong, N late`. Exit code 0: all of the latter are 0.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <map>
#include <regex>
#include <string>
#include <vector>

#include "apogee/tests/comm/faults/judge.h"
#include "apogee/tests/comm/faults/run_trial.h"
#include "apogee/tests/comm/faults/trial.h"

namespace apogee::comm::faults {
namespace {

constexpr double kGraceSeconds = 1;
// When the machine had no time for this program, ranks that are well miss time-outs, too: a trial
// that fails then is tried anew.
constexpr double kStandstillSeconds = 0.2;
constexpr int kMaxTries = 5;

struct Row {
  int trials = 0, hangs = 0, wrong = 0, late = 0;
  double latest = 0;
  bool stood_still = false;  // of one trial
  bool good() const { return hangs + wrong + late == 0; }
  void operator+=(const Row& other) {
    trials += other.trials;
    hangs += other.hangs;
    wrong += other.wrong;
    late += other.late;
    latest = std::max(latest, other.latest);
  }
};

// Calls that were under way at the fault.
int UnderWay(const Outcome& outcome) {
  for (const Event& event : outcome.events) {
    if (event.kind == "fault") return std::stoi(event.text);
  }
  return 0;
}

Row Try(const Trial& trial, const RunOptions& options, bool verbose) {
  const Outcome outcome = RunTrial(trial, options);
  const std::vector<std::string> wrong =
      outcome.hang ? std::vector<std::string>{} : Judge(trial, outcome);
  const bool late = !outcome.hang && outcome.end_seconds > options.timeout_seconds + kGraceSeconds;
  Row row{.trials = 1,
          .hangs = outcome.hang ? 1 : 0,
          .wrong = wrong.empty() ? 0 : 1,
          .late = late ? 1 : 0,
          .latest = outcome.end_seconds};
  row.stood_still = outcome.standstill_seconds > kStandstillSeconds;
  std::printf("%s %s: ended after %.2f s", row.good() ? "ok" : "FAILED", trial.Name().c_str(),
              outcome.end_seconds);
  if (trial.size == "flight") std::printf(", %d calls under way", UnderWay(outcome));
  if (row.stood_still) std::printf(", stood still for %.2f s", outcome.standstill_seconds);
  std::printf("%s%s\n", outcome.hang ? ", HANG" : "", late ? ", LATE" : "");
  for (const std::string& what : wrong) std::printf("  wrong: %s\n", what.c_str());
  if (!row.good() || verbose) {
    for (const Event& event : outcome.events) {
      std::printf("  %s %d: %s\n", event.kind.c_str(), event.rank, event.text.c_str());
    }
    std::printf("  exit code %d; stderr: %s\n", outcome.exit_code, outcome.err.c_str());
  }
  std::fflush(stdout);
  return row;
}

void PrintTable(const std::map<std::pair<std::string, std::string>, Row>& rows,
                const RunOptions& options) {
  std::printf(
      "\n| ranks | fault | trials | hangs | wrong | late | latest end | behind time-out |\n");
  std::printf("| --- | --- | --- | --- | --- | --- | --- | --- |\n");
  for (const auto& [key, row] : rows) {
    std::printf("| %s | %s | %d | %d | %d | %d | %.2f s | %+.2f s |\n", key.first.c_str(),
                key.second.c_str(), row.trials, row.hangs, row.wrong, row.late, row.latest,
                row.latest - options.timeout_seconds);
  }
  std::printf("\n");
}

int Run(const std::vector<Trial>& trials, const RunOptions& options, int late_again, bool verbose) {
  std::map<std::pair<std::string, std::string>, Row> rows;
  Row all;
  int anew = 0, again = 0;
  for (const Trial& trial : trials) {
    Row row = Try(trial, options, verbose);
    for (int i = 1; i < kMaxTries && row.hangs == 0 && !row.good() && row.stood_still; ++i) {
      ++anew;
      row = Try(trial, options, verbose);
    }
    for (int i = 0; i < late_again && row.late > 0 && row.hangs + row.wrong == 0; ++i) {
      ++again;
      row = Try(trial, options, verbose);
    }
    rows[{trial.backend, trial.fault}] += row;
    all += row;
  }
  PrintTable(rows, options);
  if (anew > 0) std::printf("%d tried anew, because the machine stood still\n", anew);
  if (again > 0) std::printf("%d tried again, because they were late\n", again);
  std::printf("%d trials, %d hangs, %d wrong, %d late\n", all.trials, all.hangs, all.wrong,
              all.late);
  return all.trials > 0 && all.good() ? 0 : 1;
}

}  // namespace
}  // namespace apogee::comm::faults

int main(int argc, char** argv) {
  using namespace apogee::comm::faults;
  RunOptions options{.fault_ranks = APOGEE_FAULT_RANKS,
                     .starters = {{"mpi", APOGEE_MPIRUN}, {"tcp", APOGEE_RUN}}};
  std::string backend, only;
  std::vector<std::string> names;
  size_t sample = 0;
  int late_again = 0;
  bool verbose = false;
  CLI::App app("One rank misbehaves: the others must learn of it in time.");
  app.add_option("--backend", backend, "threads, mpi or tcp; without it, all")
      ->check(CLI::IsMember({"threads", "mpi", "tcp"}));
  app.add_option("--only", only, "A regular expression that finds names, backend/fault/...");
  app.add_option("--trial", names, "By its name, also one that is not among all; can be repeated");
  app.add_option("--sample", sample,
                 "About so many trials, with every fault and collective; without it, all");
  app.add_option("--timeout", options.timeout_seconds, "Of the collectives, in seconds")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--limit", options.limit_seconds, "Of a trial in seconds; longer is a hang")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--late-again", late_again,
                 "Tries a late trial again so many times: where the machine does other work");
  app.add_flag("--verbose", verbose, "Prints what good trials said, too");
  CLI11_PARSE(app, argc, argv);
  try {
    for (const auto& [name, starter] : options.starters) {
      if (!starter.empty()) continue;
      std::fprintf(stderr, "comm_fault_trials: this build cannot start ranks of %s\n",
                   name.c_str());
      if (backend == name) return 2;
    }
    std::vector<Trial> trials;
    for (const std::string& name : names) {
      trials.push_back(apogee::ValueOrThrow(Trial::Parse(name)));
    }
    if (!trials.empty()) return Run(trials, options, late_again, verbose);
    const std::regex pattern(only);
    for (const Trial& trial : AllTrials()) {
      if (!backend.empty() && trial.backend != backend) continue;
      const auto starter = options.starters.find(trial.backend);
      if (starter != options.starters.end() && starter->second.empty()) continue;
      if (std::regex_search(trial.Name(), pattern)) trials.push_back(trial);
    }
    return Run(sample > 0 ? Sample(trials, sample) : trials, options, late_again, verbose);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "comm_fault_trials: %s\n", error.what());
    return 2;
  }
}
