// SPDX-License-Identifier: Apache-2.0

#include "apogee/tools/diff_runs.h"

#include <algorithm>
#include <sstream>

#include "apogee/core/text/printable.h"
#include "apogee/report/files/metrics_rows.h"
#include "apogee/tools/diff_tensors.h"

namespace apogee::tools {
namespace {

using report::FormatValue;
using report::kMetricsFields;
using report::MetricsRow;
using report::MetricsRows;
using report::RunFolder;
using report::SameValue;

// Counts of steps, and the step at which the runs begin to differ.
struct Steps {
  int64_t common = 0, only_a = 0, only_b = 0;
  std::optional<int64_t> last_equal, first_different;
  int64_t different = 0;

  bool same() const { return !first_different; }
};

// "equal up to step 40, first difference at step 60".
std::string StepsVerdict(const Steps& steps) {
  if (steps.common == 0) return "no step of both";
  const std::string last =
      steps.last_equal ? "equal up to step " + std::to_string(*steps.last_equal) : "";
  if (steps.same()) return last + " (" + std::to_string(steps.common) + " in both)";
  const std::string first = "first difference at step " + std::to_string(*steps.first_different);
  return last.empty() ? first + ", the first in both" : last + ", " + first;
}

std::string OnlyOne(const Steps& steps, const RunFolder& a, const RunFolder& b) {
  std::string text;
  if (steps.only_a > 0) text += "; " + std::to_string(steps.only_a) + " only in " + a.path();
  if (steps.only_b > 0) text += "; " + std::to_string(steps.only_b) + " only in " + b.path();
  return Printable(text);
}

// One line per field that differs; "" if the rows are equal.
std::string DiffRow(const MetricsRow& a, const MetricsRow& b) {
  std::string text;
  for (size_t i = 0; i < kMetricsFields.size(); ++i) {
    if (SameValue(a.values[i], b.values[i])) continue;
    text += std::string("  ") + kMetricsFields[i] + "  " + FormatValue(a.values[i]) + " and " +
            FormatValue(b.values[i]) + "\n";
  }
  return text;
}

void TellRepeated(const MetricsRows& rows, const std::string& path, std::ostream& out) {
  if (rows.num_repeated() == 0) return;
  out << Printable(path) << ": " << rows.num_repeated()
      << (rows.num_repeated() == 1 ? " row is" : " rows are")
      << " there twice with the same values, the first of step " << rows.first_repeated()
      << "; each is counted once (a finished run was run again)\n";
}

// Reads both files in parallel; both are sorted by step.
absl::StatusOr<Steps> DiffRows(const std::string& path_a, const std::string& path_b,
                               std::string& first_difference, std::ostream& out) {
  APOGEE_ASSIGN_OR_RETURN(MetricsRows rows_a, MetricsRows::Open(path_a));
  APOGEE_ASSIGN_OR_RETURN(MetricsRows rows_b, MetricsRows::Open(path_b));
  APOGEE_ASSIGN_OR_RETURN(auto a, rows_a.Next());
  APOGEE_ASSIGN_OR_RETURN(auto b, rows_b.Next());
  Steps steps;
  while (a || b) {
    const bool take_a = a && (!b || a->step <= b->step), take_b = b && (!a || b->step <= a->step);
    if (take_a && take_b) {
      ++steps.common;
      const std::string difference = DiffRow(*a, *b);
      if (!difference.empty()) {
        ++steps.different;
        if (steps.same()) {
          steps.first_different = a->step;
          first_difference = difference;
        }
      } else if (steps.same()) {
        steps.last_equal = a->step;
      }
    } else {
      ++(take_a ? steps.only_a : steps.only_b);
    }
    if (take_a) {
      APOGEE_ASSIGN_OR_RETURN(a, rows_a.Next());
    }
    if (take_b) {
      APOGEE_ASSIGN_OR_RETURN(b, rows_b.Next());
    }
  }
  TellRepeated(rows_a, path_a, out);
  TellRepeated(rows_b, path_b, out);
  return steps;
}

absl::StatusOr<Steps> DiffRowsOf(const std::string& name, const RunFolder& a, const RunFolder& b,
                                 std::ostream& out) {
  const std::string path_a = a.PathOf(name), path_b = b.PathOf(name);
  if (path_a.empty() || path_b.empty()) {
    if (path_a.empty() && path_b.empty()) return Steps();
    out << name << ": only in " << Printable((path_a.empty() ? b : a).path()) << "\n";
    return Steps();
  }
  std::string difference;
  APOGEE_ASSIGN_OR_RETURN(const Steps steps, DiffRows(path_a, path_b, difference, out));
  out << name << ": " << StepsVerdict(steps);
  if (!steps.same()) out << " (" << steps.different << " of " << steps.common << " in both differ)";
  out << OnlyOne(steps, a, b) << "\n" << difference;
  return steps;
}

absl::StatusOr<Steps> DiffCheckpoints(const RunFolder& a, const RunFolder& b, int64_t limit,
                                      std::ostream& out) {
  Steps steps;
  for (const auto& [step, path] : a.checkpoints()) {
    ++(b.checkpoints().contains(step) ? steps.common : steps.only_a);
  }
  steps.only_b = static_cast<int64_t>(b.checkpoints().size()) - steps.common;
  std::ostringstream tensors;
  std::optional<TensorStore> before;
  for (const auto& [step, path] : a.checkpoints()) {
    const auto other = b.checkpoints().find(step);
    if (other == b.checkpoints().end()) continue;
    APOGEE_ASSIGN_OR_RETURN(TensorStore in_a, TensorStore::Open(path));
    APOGEE_ASSIGN_OR_RETURN(const TensorStore in_b, TensorStore::Open(other->second));
    DiffTensorsOptions options = {.limit = limit};
    if (before) {
      options.before = &*before;
      options.before_label = "step " + std::to_string(*steps.last_equal);
    }
    APOGEE_ASSIGN_OR_RETURN(const TensorsDiff diff,
                            DiffTensors({&in_a, path}, {&in_b, other->second}, options));
    if (!diff.same()) {
      steps.first_different = step;
      diff.Print(tensors, "  ");
      break;
    }
    steps.last_equal = step;
    before = std::move(in_a);
  }
  if (steps.common + steps.only_a + steps.only_b > 0) {
    out << "checkpoints: " << StepsVerdict(steps) << OnlyOne(steps, a, b) << "\n" << tensors.str();
  }
  return steps;
}

}  // namespace

absl::StatusOr<bool> DiffRuns(const RunFolder& a, const RunFolder& b, int64_t limit,
                              std::ostream& out) {
  for (const RunFolder* run : {&a, &b}) {
    for (const std::string& why : run->rejected()) out << "passed over: " << Printable(why) << "\n";
  }
  bool same = true;
  int64_t common = 0;
  const auto count = [&same, &common](const Steps& steps) {
    same = same && steps.same();
    common += steps.common;
  };
  for (const char* name : {"metrics.jsonl", "validation.jsonl"}) {
    APOGEE_ASSIGN_OR_RETURN(const Steps steps, DiffRowsOf(name, a, b, out));
    count(steps);
  }
  APOGEE_ASSIGN_OR_RETURN(const Steps steps, DiffCheckpoints(a, b, limit, out));
  count(steps);
  if (common == 0) {
    return NotFound(
        a.path(), " and ", b.path(),
        " have no common step with metrics or a valid checkpoint; there is nothing to compare");
  }
  return same;
}

}  // namespace apogee::tools
