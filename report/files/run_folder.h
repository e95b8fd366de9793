// SPDX-License-Identifier: Apache-2.0

// RunFolder: the output of a run. Either the run's --out (metrics.jsonl, validation.jsonl and the
// folder `checkpoints`), or a folder that holds only checkpoints, named step-N.
//
//   APOGEE_ASSIGN_OR_RETURN(std::optional<RunFolder> run, RunFolder::Find("out"));
//   if (!run) ... something else: a checkpoint, weights, a file ...
//   for (const auto& [step, path] : run->checkpoints()) ... TensorStore::Open(path) ...
//
// A checkpoint counts as valid if its manifest parses and its files have the recorded sizes.
// Digests are checked only when it is read.
#ifndef APOGEE_REPORT_FILES_RUN_FOLDER_H_
#define APOGEE_REPORT_FILES_RUN_FOLDER_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "apogee/core/status.h"

namespace apogee::report {

class RunFolder {
 public:
  // nullopt if the path does not exist or is not the output of a run. Errors: those of reading
  // folders.
  static absl::StatusOr<std::optional<RunFolder>> Find(const std::string& path);

  const std::string& path() const { return path_; }
  // The path of `name` in the folder; "" if the run has no such file.
  std::string PathOf(const std::string& name) const;
  // The valid checkpoints: step to path.
  const std::map<int64_t, std::string>& checkpoints() const { return checkpoints_; }
  // The reasons why the other checkpoints are not valid.
  const std::vector<std::string>& rejected() const { return rejected_; }

 private:
  std::string path_;
  std::vector<std::string> names_;
  std::map<int64_t, std::string> checkpoints_;
  std::vector<std::string> rejected_;
};

}  // namespace apogee::report

#endif  // APOGEE_REPORT_FILES_RUN_FOLDER_H_
