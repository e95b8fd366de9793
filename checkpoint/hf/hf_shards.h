// SPDX-License-Identifier: Apache-2.0

// Spreads Hugging Face weights over files and names the files.
//
//   HfShards shards = SpreadOverFiles({{"a", 4000}, {"b", 4000}}, /*file_bytes=*/5000);
//   HfFileName(1, shards.size());                         // "model-00002-of-00002.safetensors"
//   if (shards.size() > 1) text = FormatHfIndexOf(shards, total_bytes);      // the index's text
#ifndef APOGEE_CHECKPOINT_HF_HF_SHARDS_H_
#define APOGEE_CHECKPOINT_HF_HF_SHARDS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "apogee/checkpoint/hf/hf_weights.h"
#include "apogee/core/status.h"

namespace apogee::checkpoint {

// Names of tensors by file.
using HfShards = std::vector<std::vector<std::string>>;

// InvalidArgument unless the size is from 1 to 2^40 (MiB).
absl::Status CheckShardSize(int64_t size_per_shard_mb);
// The most bytes that a file may hold.
int64_t ShardBytes(const SaveWeightsOptions& options);
// Spreads tensors in the order of their names. A file holds at most `file_bytes`, or one larger
// tensor. Returns at least one file.
HfShards SpreadOverFiles(const std::map<std::string, int64_t>& bytes_by_name, int64_t file_bytes);
std::string HfFileName(size_t index, size_t count);
std::string FormatHfIndexOf(const HfShards& shards, int64_t total_bytes);

}  // namespace apogee::checkpoint

#endif  // APOGEE_CHECKPOINT_HF_HF_SHARDS_H_
