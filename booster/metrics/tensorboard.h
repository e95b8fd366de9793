// SPDX-License-Identifier: Apache-2.0

// TensorBoardWriter: writes an event file for TensorBoard, with scalars only.
//
//   APOGEE_ASSIGN_OR_RETURN(auto writer, TensorBoardWriter::Create("out"));
//   APOGEE_RETURN_IF_ERROR(writer->Scalars(step, {{"loss", 2.3}, {"lr", 1e-3}}));
//   // shell: tensorboard --logdir out
//
// Format: TFRecord (length, masked CRC-32C of the length, data, masked CRC-32C of the data) with
// Event messages, in protobuf's wire format. The file begins with a session start: from its step on
// TensorBoard drops the steps of earlier files in the same directory. Use one writer per file.
// Every record is complete when the call returns. Not thread-safe.
#ifndef APOGEE_BOOSTER_METRICS_TENSORBOARD_H_
#define APOGEE_BOOSTER_METRICS_TENSORBOARD_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "apogee/booster/metrics/line_file.h"

namespace apogee {

class TensorBoardWriter {
 public:
  // Makes a new file `events.out.tfevents.<seconds>.<host>.<process>.<number>` in an existing
  // directory. `first_step`: the first step this run will write.
  static absl::StatusOr<std::unique_ptr<TensorBoardWriter>> Create(const std::string& directory,
                                                                   int64_t first_step = 0);

  using Scalar = std::pair<std::string, double>;  // tag, value (stored as f32)
  absl::Status Scalars(int64_t step, const std::vector<Scalar>& scalars);

  const std::string& path() const { return file_->path(); }

 private:
  explicit TensorBoardWriter(std::unique_ptr<LineFile> file) : file_(std::move(file)) {}
  absl::Status WriteEvent(const std::string& payload);

  std::unique_ptr<LineFile> file_;
};

}  // namespace apogee

#endif  // APOGEE_BOOSTER_METRICS_TENSORBOARD_H_
