// SPDX-License-Identifier: Apache-2.0

// MetricsRows: the rows of metrics.jsonl or validation.jsonl (booster/metrics/metrics.h), one at a
// time.
//
//   APOGEE_ASSIGN_OR_RETURN(MetricsRows rows, MetricsRows::Open("out/metrics.jsonl"));
//   APOGEE_ASSIGN_OR_RETURN(std::optional<MetricsRow> row, rows.Next());    // nullopt: the end
//
// The file is untrusted and may be large: only one line of at most kMaxLineBytes and one row are in
// memory. Steps must increase, as a MetricsLogger writes them. A row that repeats the one before
// it is skipped and counted: earlier versions wrote such rows when a finished run was run again.
//
// Errors: NotFound for a missing file; DataLoss that names the file and the line.
#ifndef APOGEE_REPORT_FILES_METRICS_ROWS_H_
#define APOGEE_REPORT_FILES_METRICS_ROWS_H_

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "apogee/checkpoint/files/file_system.h"

namespace apogee::report {

// The fields that a run computes. Two runs can be compared by them.
inline constexpr std::array<const char*, 4> kMetricsFields = {"loss", "lr", "grad_norm", "tokens"};
// The fields that are measured: they differ from run to run. share_of_peak: of the device's peak
// operations per second, from 0 to 1.
inline constexpr std::array<const char*, 3> kMeasuredFields = {"tokens_per_s", "seconds",
                                                               "share_of_peak"};
inline constexpr size_t kMaxLineBytes = size_t{64} << 10;

struct MetricsRow {
  int64_t step = 0;
  // In the order of kMetricsFields. NaN for null; nullopt if the row has no such field.
  std::array<std::optional<double>, kMetricsFields.size()> values;
  // The same, of kMeasuredFields.
  std::array<std::optional<double>, kMeasuredFields.size()> measured = {};
  // The object "memory": bytes by name.
  std::map<std::string, double> memory = {};
};

// The shortest text that reads back as the same number; "null" for NaN, "nothing" for nullopt.
std::string FormatValue(const std::optional<double>& value);
// True for equal values; null equals null.
bool SameValue(const std::optional<double>& a, const std::optional<double>& b);

class MetricsRows {
 public:
  static absl::StatusOr<MetricsRows> Open(const std::string& path);
  explicit MetricsRows(std::unique_ptr<checkpoint::ReadableFile> file) : file_(std::move(file)) {}
  absl::StatusOr<std::optional<MetricsRow>> Next();
  // The number of skipped rows so far, and the step of the first.
  int64_t num_repeated() const { return num_repeated_; }
  int64_t first_repeated() const { return first_repeated_; }

 private:
  // The row of the next line; nullopt at the end.
  absl::StatusOr<std::optional<MetricsRow>> ReadRow();
  // Reads the next line into line_, without its end.
  absl::Status ReadLine();
  absl::Status Damaged(const std::string& what) const;

  std::unique_ptr<checkpoint::ReadableFile> file_;
  int64_t read_ = 0;   // bytes of the file read so far
  std::string piece_;  // the last bytes read
  size_t at_ = 0;      // in piece_
  std::string line_;
  int64_t number_ = 0;  // of line_, from 1
  MetricsRow last_ = {.step = -1, .values = {}};
  int64_t num_repeated_ = 0;
  int64_t first_repeated_ = 0;
};

}  // namespace apogee::report

#endif  // APOGEE_REPORT_FILES_METRICS_ROWS_H_
