// SPDX-License-Identifier: Apache-2.0

#include "apogee/checkpoint/hf/hf_download.h"

#include <algorithm>

#include "apogee/checkpoint/hf/hf_weights.h"
#include "apogee/core/text/text.h"

namespace apogee::checkpoint {
namespace {

using internal::Concat;

// Programs that download add an ending to a file's name until it is complete.
std::string Unfinished(const std::string& file, const std::vector<std::string>& listed) {
  for (const std::string& name : listed) {
    if (name.starts_with(file + ".") && name != kHfIndexName) {
      return Concat(" (\"", name, "\" is there: its download has not finished)");
    }
  }
  return "";
}

// The first name with such a start and end; "" if there is none.
std::string FirstOf(const std::vector<std::string>& listed, const std::string& start,
                    const std::string& end) {
  const auto found = std::ranges::find_if(listed, [&](const std::string& name) {
    return name.starts_with(start) && name.ends_with(end);
  });
  return found == listed.end() ? "" : *found;
}

}  // namespace

absl::Status NoHfWeights(const std::string& path, const std::vector<std::string>& listed) {
  const std::string neither = Concat(path, ": has neither ", kHfSingleName, " nor ", kHfIndexName);
  const std::string unfinished = Unfinished(kHfSingleName, listed);
  if (!unfinished.empty()) return NotFound(neither, unfinished, "; download it again");
  const std::string shard = FirstOf(listed, "model-", ".safetensors");
  if (!shard.empty()) {
    return NotFound(neither, "; \"", shard,
                    "\" is one of several files, and the index says which "
                    "tensors are where: download it, too");
  }
  const std::string pickle = FirstOf(listed, "pytorch_model", "");
  if (!pickle.empty()) {
    return NotFound(neither, "; \"", pickle,
                    "\" is not read, because pickles run code: save the "
                    "model again as safetensors");
  }
  return NotFound(neither);
}

absl::Status CheckAllThere(const std::string& path, const std::set<std::string>& files,
                           const std::vector<std::string>& listed) {
  std::vector<std::string> missing;
  for (const std::string& file : files) {
    if (!std::ranges::binary_search(listed, file))
      missing.push_back(file + Unfinished(file, listed));
  }
  if (missing.empty()) return absl::OkStatus();
  constexpr size_t kShown = 8;
  const size_t more = missing.size() - std::min(kShown, missing.size());
  if (more > 0) missing.resize(kShown);
  return NotFound(path, ": of the ", files.size(), " files in ", kHfIndexName,
                  " these are missing: ", JoinTexts(missing, ", "),
                  more > 0 ? Concat(", and ", more, " more") : "", "; download them again");
}

absl::StatusOr<OpenTensorFile> OpenHfFile(FileSystem& files, const std::string& path) {
  absl::StatusOr<OpenTensorFile> open = OpenTensorFile::Open(files, path);
  if (absl::IsDataLoss(open.status())) {
    return DataLoss(Message(open.status()),
                    "; the file is damaged or its download has not finished: download it again");
  }
  if (absl::IsNotFound(open.status())) {
    const absl::StatusOr<PathKind> kind = files.KindOf(path);
    if (kind.ok() && *kind == PathKind::kLink) {
      return NotFound(path, ": is a link to a file that is missing; download it again");
    }
  }
  return open;
}

}  // namespace apogee::checkpoint
