// SPDX-License-Identifier: Apache-2.0

// MetricsRows: the rows of metrics.jsonl or validation.jsonl (booster/metrics.h), one at a time.
//
//   APOGEE_ASSIGN_OR_RETURN(MetricsRows rows, MetricsRows::Open("out/metrics.jsonl"));
//   APOGEE_ASSIGN_OR_RETURN(std::optional<MetricsRow> row, rows.Next());    // nullopt: the end
//
// Text of anybody: a line of at most kMaxLineBytes and one row are held, whatever the file's size.
// Steps must grow, as they do in files of a MetricsLogger; a row that repeats the one before, which
// earlier versions wrote where a finished run was run again, is passed over and counted.
//
// Errors: NotFound for a missing file; DataLoss that names the file and the line.
#ifndef APOGEE_TOOLS_METRICS_ROWS_H_
#define APOGEE_TOOLS_METRICS_ROWS_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "apogee/checkpoint/file_system.h"

namespace apogee::tools {

// What a run computed. How long it took, and in how much memory, is no part of it.
inline constexpr std::array<const char*, 4> kMetricsFields = {"loss", "lr", "grad_norm", "tokens"};
inline constexpr size_t kMaxLineBytes = size_t{64} << 10;

struct MetricsRow {
  int64_t step = 0;
  // As of kMetricsFields. NaN for null; nullopt where the row has no such field.
  std::array<std::optional<double>, kMetricsFields.size()> values;
};

// The number with the fewest digits that tell it from all others; "null", "nothing".
std::string FormatValue(const std::optional<double>& value);
// Null is null.
bool SameValue(const std::optional<double>& a, const std::optional<double>& b);

class MetricsRows {
 public:
  static absl::StatusOr<MetricsRows> Open(const std::string& path);
  explicit MetricsRows(std::unique_ptr<checkpoint::ReadableFile> file) : file_(std::move(file)) {}
  absl::StatusOr<std::optional<MetricsRow>> Next();
  // Of rows that were passed over so far: how many, and the step of the first.
  int64_t num_repeated() const { return num_repeated_; }
  int64_t first_repeated() const { return first_repeated_; }

 private:
  // The row of the next line; nullopt: the end.
  absl::StatusOr<std::optional<MetricsRow>> ReadRow();
  // Makes line_ the next one, without its end.
  absl::Status ReadLine();
  absl::Status Damaged(const std::string& what) const;

  std::unique_ptr<checkpoint::ReadableFile> file_;
  int64_t read_ = 0;   // bytes of the file that were taken into piece_
  std::string piece_;  // of the file
  size_t at_ = 0;      // in piece_
  std::string line_;
  int64_t number_ = 0;  // of line_, from 1
  MetricsRow last_ = {.step = -1, .values = {}};
  int64_t num_repeated_ = 0;
  int64_t first_repeated_ = 0;
};

}  // namespace apogee::tools

#endif  // APOGEE_TOOLS_METRICS_ROWS_H_
