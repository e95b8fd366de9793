// SPDX-License-Identifier: Apache-2.0

// RunFolder: what a run left: metrics.jsonl and validation.jsonl of its --out and the checkpoints
// in the folder `checkpoints` there; or a folder of nothing but checkpoints, step-N each.
//
//   APOGEE_ASSIGN_OR_RETURN(std::optional<RunFolder> run, RunFolder::Find("out"));
//   if (!run) ... it is something else: a checkpoint, weights, a file ...
//   for (const auto& [step, path] : run->checkpoints()) ... TensorStore::Open(path) ...
//
// Valid checkpoints are those whose manifest parses and whose files have their sizes; digests are
// checked by who reads.
#ifndef APOGEE_TOOLS_RUN_FOLDER_H_
#define APOGEE_TOOLS_RUN_FOLDER_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "apogee/core/status.h"

namespace apogee::tools {

class RunFolder {
 public:
  // nullopt for what is there, or not, and is no run's. Errors: of reading folders.
  static absl::StatusOr<std::optional<RunFolder>> Find(const std::string& path);

  const std::string& path() const { return path_; }
  // Of a file of rows; "" where the run has none of that name.
  std::string RowsPath(const std::string& name) const;
  // Valid ones: step to path.
  const std::map<int64_t, std::string>& checkpoints() const { return checkpoints_; }
  // Why others are not.
  const std::vector<std::string>& rejected() const { return rejected_; }

 private:
  std::string path_;
  std::vector<std::string> names_;
  std::map<int64_t, std::string> checkpoints_;
  std::vector<std::string> rejected_;
};

}  // namespace apogee::tools

#endif  // APOGEE_TOOLS_RUN_FOLDER_H_
