// SPDX-License-Identifier: Apache-2.0

#include "apogee/plan/scaling.h"

#include <nlohmann/json.hpp>

#include "apogee/core/text/text.h"
#include "apogee/plan/table.h"

namespace apogee::plan {
namespace {

absl::Status Check(const PlanOptions& options, const std::vector<int>& ranks) {
  if (!options.machine) {
    return absl::FailedPreconditionError(
        "scaling: there are no rates to simulate with; measure them with --measure, or declare a "
        "machine with --flops, --memory-bandwidth and --link");
  }
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] < 1 || (i > 0 && ranks[i] <= ranks[i - 1])) {
      return InvalidArgument("scaling: the numbers of ranks must be positive and ascend, got ",
                             ranks[i], i > 0 ? internal::Concat(" after ", ranks[i - 1]) : "");
    }
  }
  return absl::OkStatus();
}

void Fill(const PlanReport& report, ScalingPoint& point) {
  const PlanRow* best = report.best();
  if (best == nullptr) {
    for (const PlanRow& row : report.rows) {
      if (point.refusal.empty()) point.refusal = row.refusal;
      if (row.refusal.empty()) {
        point.refusal = "nothing fits " + FormatBytes(report.options.device_bytes);
        return;
      }
    }
    return;
  }
  point.row = *best;
  point.tokens_per_second =
      static_cast<double>(point.batch * report.setup.tokens) / best->step_seconds;
  if (report.options.machine->kernels.empty()) {
    point.share_of_peak =
        best->flops * report.options.machine->other.seconds_per_flop / best->step_seconds;
  }
}

}  // namespace

absl::StatusOr<std::vector<ScalingPoint>> Scale(const TrainingSetup& setup,
                                                const PlanOptions& options,
                                                const std::vector<int>& ranks, Scaling scaling) {
  APOGEE_RETURN_IF_ERROR(Check(options, ranks));
  std::vector<ScalingPoint> points;
  double first = 0;
  for (const int num_ranks : ranks) {
    TrainingSetup scaled = setup;
    PlanOptions its_options = options;
    its_options.num_ranks = num_ranks;
    its_options.find_change = false;
    if (scaling == Scaling::kWeak) {
      if (setup.batch * num_ranks % ranks[0] != 0) {
        return InvalidArgument("weak scaling: ", num_ranks, " ranks would take ", setup.batch,
                               " * ", num_ranks, " / ", ranks[0],
                               " samples, which is not a whole number; choose another batch");
      }
      scaled.batch = setup.batch * num_ranks / ranks[0];
    }
    APOGEE_ASSIGN_OR_RETURN(const PlanReport report, Plan(scaled, its_options));
    ScalingPoint point{.num_ranks = num_ranks, .batch = scaled.batch};
    Fill(report, point);
    const double speed = point.tokens_per_second / num_ranks;
    if (first == 0) first = speed;
    point.efficiency = first > 0 ? speed / first : 0;
    points.push_back(std::move(point));
  }
  return points;
}

std::string TableOf(const std::vector<ScalingPoint>& points, Scaling scaling) {
  std::vector<Cells> table = {
      {"ranks", "samples", "plugin", "peak", "sent", "step", "tokens/s", "efficiency", "of peak"}};
  std::string refused;
  for (const ScalingPoint& point : points) {
    if (!point.refusal.empty()) {
      refused += FormatThousands(point.num_ranks) + " ranks: " + point.refusal + "\n";
      continue;
    }
    table.push_back({FormatThousands(point.num_ranks), FormatThousands(point.batch),
                     point.row.candidate.name, FormatBytes(point.row.peak_bytes()),
                     FormatBytes(point.row.bytes), FormatSeconds(point.row.step_seconds),
                     FormatThousands(static_cast<int64_t>(point.tokens_per_second)),
                     FormatPercent(point.efficiency),
                     point.share_of_peak > 0 ? FormatPercent(point.share_of_peak) : "-"});
  }
  const char* const title = scaling == Scaling::kStrong
                                ? "Strong scaling (the same samples on more ranks), simulated:\n\n"
                                : "Weak scaling (the same samples per rank), simulated:\n\n";
  std::string text = title + Aligned(table);
  if (!refused.empty()) text += "\nWithout a row:\n" + refused;
  return text;
}

std::string JsonOf(const std::vector<ScalingPoint>& points) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const ScalingPoint& point : points) {
    nlohmann::ordered_json one = {{"num_ranks", point.num_ranks}, {"batch", point.batch}};
    if (point.refusal.empty()) {
      one["name"] = point.row.candidate.name;
      one["peak_bytes"] = point.row.peak_bytes();
      one["bytes_per_step"] = point.row.bytes;
      one["step_seconds"] = point.row.step_seconds;
      one["tokens_per_second"] = point.tokens_per_second;
      one["efficiency"] = point.efficiency;
      if (point.share_of_peak > 0) one["share_of_peak"] = point.share_of_peak;
    } else {
      one["refusal"] = point.refusal;
    }
    json.push_back(std::move(one));
  }
  return json.dump(2) + "\n";
}

}  // namespace apogee::plan
