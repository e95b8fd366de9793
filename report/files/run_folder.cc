// SPDX-License-Identifier: Apache-2.0

#include "apogee/report/files/run_folder.h"

#include <algorithm>

#include "apogee/checkpoint/checkpoint_folder.h"
#include "apogee/checkpoint/format/manifest.h"
#include "apogee/checkpoint/hf/hf_weights.h"

namespace apogee::report {
namespace {

using checkpoint::JoinPath;
using checkpoint::RealFileSystem;

constexpr const char* kCheckpoints = "checkpoints";

bool Has(const std::vector<std::string>& names, const std::string& name) {
  return std::ranges::find(names, name) != names.end();
}

}  // namespace

absl::StatusOr<std::optional<RunFolder>> RunFolder::Find(const std::string& path) {
  const auto names = RealFileSystem()->List(path);
  if (!names.ok()) return std::nullopt;
  for (const char* tensors :
       {checkpoint::kManifestName, checkpoint::kHfSingleName, checkpoint::kHfIndexName}) {
    if (Has(*names, tensors)) return std::nullopt;
  }
  RunFolder run;
  run.path_ = path;
  run.names_ = *names;
  const std::string folder = Has(*names, kCheckpoints) ? JoinPath(path, kCheckpoints) : path;
  APOGEE_ASSIGN_OR_RETURN(const auto found, checkpoint::FindCheckpoints(RealFileSystem(), folder));
  for (const auto& one : found.valid) run.checkpoints_[one.step] = JoinPath(folder, one.name);
  for (const auto& one : found.rejected) run.rejected_.push_back(Message(one.why));
  const bool is_run = folder != path || !found.valid.empty() || !found.rejected.empty() ||
                      Has(*names, "metrics.jsonl") || Has(*names, "validation.jsonl");
  if (!is_run) return std::nullopt;
  return run;
}

std::string RunFolder::PathOf(const std::string& name) const {
  return Has(names_, name) ? JoinPath(path_, name) : "";
}

}  // namespace apogee::report
