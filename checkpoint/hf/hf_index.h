// SPDX-License-Identifier: Apache-2.0

// The index of Hugging Face weights that are spread over several safetensors files
// ("model.safetensors.index.json"). It says which tensor is in which file.
//
//   APOGEE_ASSIGN_OR_RETURN(HfIndex index, ParseHfIndex(json, "dir/model.safetensors.index.json"));
//   index.weight_map.at("lm_head.weight");      // "model-00002-of-00002.safetensors"
//
// The text is untrusted: the parser never builds a document of it. It rejects, as DataLoss that
// names the path and the field:
//
//   - text that is not one JSON object
//   - fields other than "metadata" (a flat object) and "weight_map"
//   - any key given twice
//   - files that are not plain names in this folder
//   - empty or too long tensor names
//   - more than kMaxTensors tensors
//
// The metadata is not used: sizes come from the files.
#ifndef APOGEE_CHECKPOINT_HF_HF_INDEX_H_
#define APOGEE_CHECKPOINT_HF_HF_INDEX_H_

#include <cstdint>
#include <map>
#include <string>

#include "apogee/core/status.h"

namespace apogee::checkpoint {

struct HfIndex {
  std::map<std::string, std::string> weight_map;  // file by tensor
};

absl::StatusOr<HfIndex> ParseHfIndex(const std::string& json, const std::string& path);
// `total_size`: bytes of all tensors, for other programs.
std::string FormatHfIndex(const HfIndex& index, int64_t total_size);

}  // namespace apogee::checkpoint

#endif  // APOGEE_CHECKPOINT_HF_HF_INDEX_H_
