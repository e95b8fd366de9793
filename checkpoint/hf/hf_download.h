// SPDX-License-Identifier: Apache-2.0

// Errors for a folder of weights whose download has not finished. Each names the files and what to
// do. Only hf_weights.cc needs them.
//
//   APOGEE_RETURN_IF_ERROR(CheckAllThere(path, {"model-00001-of-00002.safetensors"}, listed));
//   APOGEE_ASSIGN_OR_RETURN(OpenTensorFile file, OpenHfFile(files, path + "/model.safetensors"));
#ifndef APOGEE_CHECKPOINT_HF_HF_DOWNLOAD_H_
#define APOGEE_CHECKPOINT_HF_HF_DOWNLOAD_H_

#include <set>
#include <string>
#include <vector>

#include "apogee/checkpoint/format/open_tensor_file.h"

namespace apogee::checkpoint {

// NotFound for a folder with these names, which has neither a single file nor an index.
absl::Status NoHfWeights(const std::string& path, const std::vector<std::string>& listed);
// NotFound unless all `files` are listed in the folder `path`.
absl::Status CheckAllThere(const std::string& path, const std::set<std::string>& files,
                           const std::vector<std::string>& listed);
// Opens a file of weights: NotFound for a link to nothing, DataLoss for a file that is cut short or
// damaged.
absl::StatusOr<OpenTensorFile> OpenHfFile(FileSystem& files, const std::string& path);

}  // namespace apogee::checkpoint

#endif  // APOGEE_CHECKPOINT_HF_HF_DOWNLOAD_H_
