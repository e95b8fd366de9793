// SPDX-License-Identifier: Apache-2.0

#include "apogee/checkpoint/hf/hf_shards.h"

#include <cstdio>

#include "apogee/checkpoint/hf/hf_index.h"

namespace apogee::checkpoint {

namespace {

constexpr int64_t kMaxShardMb = int64_t{1} << 40;

}  // namespace

int64_t ShardBytes(const SaveWeightsOptions& options) {
  return (options.shard ? options.size_per_shard_mb : kMaxShardMb) << 20;
}

absl::Status CheckShardSize(int64_t size_per_shard_mb) {
  if (size_per_shard_mb >= 1 && size_per_shard_mb <= kMaxShardMb) return absl::OkStatus();
  return InvalidArgument("save weights: size_per_shard_mb must be from 1 to 2^40, got ",
                         size_per_shard_mb);
}

HfShards SpreadOverFiles(const std::map<std::string, int64_t>& bytes_by_name, int64_t file_bytes) {
  HfShards shards(1);
  int64_t filled = 0;
  for (const auto& [name, bytes] : bytes_by_name) {
    if (!shards.back().empty() && filled + bytes > file_bytes) {
      shards.emplace_back();
      filled = 0;
    }
    shards.back().push_back(name);
    filled += bytes;
  }
  return shards;
}

std::string HfFileName(size_t index, size_t count) {
  if (count == 1) return kHfSingleName;
  char name[64];
  std::snprintf(name, sizeof(name), "model-%05zu-of-%05zu.safetensors", index + 1, count);
  return name;
}

std::string FormatHfIndexOf(const HfShards& shards, int64_t total_bytes) {
  HfIndex index;
  for (size_t i = 0; i < shards.size(); ++i) {
    for (const std::string& name : shards[i]) index.weight_map[name] = HfFileName(i, shards.size());
  }
  return FormatHfIndex(index, total_bytes);
}

}  // namespace apogee::checkpoint
