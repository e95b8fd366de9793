// SPDX-License-Identifier: Apache-2.0

// Chunk plan: how parameters are laid out in chunks, and how chunks are cut into shards. This is
// arithmetic only; no tensor is touched.
//
//   std::vector<ChunkSpec> plan =
//       PlanChunks({{.numel = 561, .element_bytes = 4}, {.numel = 33, .element_bytes = 4}},
//                  {.chunk_bytes = 25 << 20, .num_shards = 4});
//   plan[0].items[1].offset;            // where parameter 1 starts in the chunk, in elements
//   SegmentsOf(plan[0], plan[0].items[0], /*shard=*/2);    // the part of parameter 0 on rank 2
//   ChunkPlaces places(plan, /*num_parameters=*/2, /*shard=*/2);   // the same, by parameter
//
// All parameters of a chunk have the same key (for instance their dtypes). The parameters of a key
// fill ceil(bytes / chunk_bytes) chunks of about equal size, in order. A parameter is never split
// over chunks: a parameter larger than chunk_bytes makes a larger chunk, and there may be fewer
// chunks.
//
// A chunk consists of num_shards shards of equal size. Every parameter starts at a multiple of
// `alignment` elements; padding belongs to no parameter. A parameter with cut_multiple c > 1 is cut
// only at multiples of c of its own elements, so that blocks of quantized states stay whole.
// Two parameters are in different chunks if neither of their multiples divides the other.
#ifndef APOGEE_CHUNK_CHUNK_PLAN_H_
#define APOGEE_CHUNK_CHUNK_PLAN_H_

#include <cstdint>
#include <span>
#include <vector>

#include "apogee/layout/layout.h"

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
  // Pads the shards so that no two chunks have shards of one size. Unequal sizes make gathering the
  // wrong chunk an error.
  bool distinct_sizes = false;
};

// One parameter's place in a chunk.
struct ChunkItem {
  size_t parameter = 0;  // index of its request
  int64_t offset = 0;    // elements
  int64_t numel = 0;
  int64_t cut_multiple = 1;  // as requested
  int64_t end() const { return offset + numel; }
};

struct ChunkSpec {
  std::vector<ChunkItem> items;
  int64_t shard_numel = 0;
  int num_shards = 1;
  int64_t numel() const { return shard_numel * num_shards; }
};

// Throws Error for options, or a cut_multiple, below 1.
std::vector<ChunkSpec> PlanChunks(std::span<const ChunkRequest> requests,
                                  const ChunkPlanOptions& options);

// The elements of `item`'s parameter that are in `shard`, as at most one segment of the parameter.
std::vector<Segment> SegmentsOf(const ChunkSpec& chunk, const ChunkItem& item, int shard);

// Finds parameters in the chunks of a plan, and the part of each that one rank has: its shard.
class ChunkPlaces {
 public:
  ChunkPlaces(std::vector<ChunkSpec> plan, size_t num_parameters, int shard);
  // `shards`: by chunk, the one that this rank has.
  ChunkPlaces(std::vector<ChunkSpec> plan, size_t num_parameters, std::vector<int> shards);

  const std::vector<ChunkSpec>& plan() const { return plan_; }
  size_t ChunkOf(size_t parameter) const { return places_[parameter].chunk; }
  const ChunkItem& ItemOf(size_t parameter) const {
    return plan_[places_[parameter].chunk].items[places_[parameter].item];
  }
  // Where the shard of a chunk begins in the chunk.
  int64_t ShardBegin(size_t chunk) const { return shards_[chunk] * plan_[chunk].shard_numel; }
  // The parameter's elements in the shard, as a range of the shard; its length may be 0.
  Segment InShard(size_t parameter) const;
  // Which elements of the parameter these are. `shape`: of the parameter.
  Layout LayoutOf(size_t parameter, const Shape& shape) const;

 private:
  std::vector<Segment> Segments(size_t parameter) const {
    const size_t chunk = ChunkOf(parameter);
    return SegmentsOf(plan_[chunk], ItemOf(parameter), shards_[chunk]);
  }
  struct Place {
    size_t chunk = 0, item = 0;
  };
  std::vector<ChunkSpec> plan_;
  std::vector<Place> places_;  // by parameter
  std::vector<int> shards_;    // by chunk
};

}  // namespace apogee::chunk

#endif  // APOGEE_CHUNK_CHUNK_PLAN_H_
