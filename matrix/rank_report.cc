// SPDX-License-Identifier: Apache-2.0

#include "apogee/matrix/rank_report.h"

#include <algorithm>
#include <limits>
#include <string_view>

#include "apogee/comm/some_ranks.h"
#include "apogee/core/error.h"

namespace apogee::matrix {
namespace {

// Names in NamedNumbers: that of the counts, and prefixes of parameter names. Counts are below
// 2^53, so a double holds them exactly.
constexpr const char* kCounts = "counts";
constexpr std::string_view kWeight = "weight ", kMaster = "master ", kPlaces = "places ";

comm::NamedNumbers ToNumbers(const RankReport& report) {
  comm::NamedNumbers numbers;
  for (const int64_t count :
       {static_cast<int64_t>(report.refused), report.num_skipped, report.collectives, report.bytes,
        report.state_bytes, report.num_parameters}) {
    numbers[kCounts].push_back(static_cast<double>(count));
  }
  for (const auto& [name, values] : report.weights) numbers[std::string(kWeight) + name] = values;
  for (const auto& [name, part] : report.masters) {
    numbers[std::string(kMaster) + name] = part.values;
    std::vector<double>& places = numbers[std::string(kPlaces) + name];
    places.push_back(static_cast<double>(part.whole_numel));
    for (const Segment& segment : part.segments) {
      places.push_back(static_cast<double>(segment.begin));
      places.push_back(static_cast<double>(segment.length));
    }
  }
  return numbers;
}

RankReport FromNumbers(const comm::NamedNumbers& numbers) {
  const auto count = [](double number) { return static_cast<int64_t>(number); };
  const std::vector<double>& counts = numbers.at(kCounts);
  RankReport report{.refused = counts[0] != 0,
                    .num_skipped = count(counts[1]),
                    .collectives = count(counts[2]),
                    .bytes = count(counts[3]),
                    .state_bytes = count(counts[4]),
                    .num_parameters = count(counts[5])};
  for (const auto& [name, values] : numbers) {
    if (name.starts_with(kWeight)) report.weights[name.substr(kWeight.size())] = values;
    if (name.starts_with(kMaster)) report.masters[name.substr(kMaster.size())].values = values;
    if (!name.starts_with(kPlaces)) continue;
    RankReport::Part& part = report.masters[name.substr(kPlaces.size())];
    part.whole_numel = count(values[0]);
    for (size_t i = 1; i < values.size(); i += 2) {
      part.segments.push_back({count(values[i]), count(values[i + 1])});
    }
  }
  return report;
}

// Copies a rank's part of the master weights to its place in the whole tensor.
void MergePart(const std::string& name, const RankReport::Part& part, Weights& masters) {
  std::vector<double>& whole = masters[name];
  whole.resize(static_cast<size_t>(part.whole_numel), std::numeric_limits<double>::quiet_NaN());
  size_t next = 0;
  for (const Segment& segment : part.segments) {
    for (int64_t i = segment.begin; i < segment.begin + segment.length; ++i) {
      double& value = whole[static_cast<size_t>(i)];
      APOGEE_CHECK(value != value || value == part.values[next],
                   "ranks end with different master weights of \"", name, "\"");
      value = part.values[next++];
    }
  }
}

}  // namespace

void ShareReports(std::vector<RankReport>& reports) {
  if (ValueOrThrow(comm::StartedProcesses()).size == 1) return;
  std::vector<comm::NamedNumbers> numbers;
  for (const RankReport& report : reports) numbers.push_back(ToNumbers(report));
  comm::ShareByRank(numbers);
  for (size_t r = 0; r < reports.size(); ++r) reports[r] = FromNumbers(numbers[r]);
}

void MergeReports(const std::vector<RankReport>& reports, BoostedResult& result) {
  result.num_skipped = reports[0].num_skipped;
  result.collectives = reports[0].collectives;
  result.bytes = reports[0].bytes;
  result.num_parameters = reports[0].num_parameters;
  result.end = reports[0].weights;
  for (const RankReport& report : reports) {
    result.state_bytes = std::max(result.state_bytes, report.state_bytes);
    for (const auto& [name, values] : report.weights) {
      APOGEE_CHECK(result.end.at(name) == values, "ranks end with different values of \"", name,
                   "\"");
    }
    for (const auto& [name, part] : report.masters) MergePart(name, part, result.masters);
  }
}

}  // namespace apogee::matrix
