// SPDX-License-Identifier: Apache-2.0

// How parameters are laid out in chunks, and chunks cut into shards: arithmetic only.
//
//   std::vector<ChunkSpec> plan =
//       PlanChunks({{.numel = 561, .element_bytes = 4}, {.numel = 33, .element_bytes = 4}},
//                  {.chunk_bytes = 25 << 20, .num_shards = 4});
//   plan[0].items[1].offset;            // of parameter 1 in the chunk, in elements
//   SegmentsOf(plan[0], plan[0].items[0], /*shard=*/2);    // the part of parameter 0 on rank 2
//
// Parameters of one key (dtypes) fill ceil(bytes / chunk_bytes) chunks of about equal size, in
// order; a parameter is never split over chunks, so one larger than chunk_bytes makes a larger
// chunk and there may be fewer. A chunk is num_shards shards of one size. Every parameter starts at
// a multiple of `alignment` elements; padding belongs to no parameter. A parameter with
// cut_multiple c > 1 is cut at multiples of c of its own elements only (blocks of quantized states
// stay whole); those whose multiples do not divide each other lie in different chunks.
#ifndef APOGEE_CHUNK_CHUNK_PLAN_H_
#define APOGEE_CHUNK_CHUNK_PLAN_H_

#include <cstdint>
#include <span>
#include <vector>

#include "apogee/comm/layout.h"

namespace apogee::chunk {

struct ChunkRequest {
  int64_t numel = 0;
  int64_t element_bytes = 4;  // in the buffers whose size chunk_bytes limits
  int key = 0;                // parameters of different keys never share a chunk
  int64_t cut_multiple = 1;
};

struct ChunkPlanOptions {
  int64_t chunk_bytes = 25 << 20;
  int num_shards = 1;
  int64_t alignment = 8;  // elements: 16 bytes of the smallest floating dtype
  // Shards of different chunks have different sizes, by padding: who mixes chunks up is found out.
  bool distinct_sizes = false;
};

// A parameter in a chunk.
struct ChunkItem {
  size_t parameter = 0;  // index of its request
  int64_t offset = 0;    // elements
  int64_t numel = 0;
  int64_t cut_multiple = 1;  // of its request
  int64_t end() const { return offset + numel; }
};

struct ChunkSpec {
  std::vector<ChunkItem> items;
  int64_t shard_numel = 0;
  int num_shards = 1;
  int64_t numel() const { return shard_numel * num_shards; }
};

// Throws Error for options below 1.
std::vector<ChunkSpec> PlanChunks(std::span<const ChunkRequest> requests,
                                  const ChunkPlanOptions& options);

// The elements of `item`'s parameter that lie in `shard`; none where they do not meet.
std::vector<comm::Segment> SegmentsOf(const ChunkSpec& chunk, const ChunkItem& item, int shard);

}  // namespace apogee::chunk

#endif  // APOGEE_CHUNK_CHUNK_PLAN_H_
