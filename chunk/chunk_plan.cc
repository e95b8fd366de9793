// SPDX-License-Identifier: Apache-2.0

#include "apogee/chunk/chunk_plan.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "apogee/core/error.h"

namespace apogee::chunk {
namespace {

int64_t AlignUp(int64_t x, int64_t multiple) { return (x + multiple - 1) / multiple * multiple; }

// An item may be cut at multiples of this. An item that is cut also starts at a multiple.
int64_t UnitOf(const ChunkItem& item, int64_t alignment) {
  return std::lcm(item.cut_multiple, alignment);
}

// Whether shards whose size is a multiple of the largest unit cut every item at its own multiples.
bool Fits(const ChunkSpec& chunk, int64_t unit, int64_t alignment) {
  return std::ranges::all_of(chunk.items, [&](const ChunkItem& item) {
    const int64_t other = UnitOf(item, alignment);
    return std::max(unit, other) % std::min(unit, other) == 0;
  });
}

// Sets the offsets for shards of `chunk.shard_numel`. Returns false if the items need more room.
bool Place(ChunkSpec& chunk, int64_t alignment) {
  int64_t offset = 0;
  for (ChunkItem& item : chunk.items) {
    offset = AlignUp(offset, alignment);
    const int64_t boundary = AlignUp(offset + 1, chunk.shard_numel);
    if (boundary < offset + item.numel) {  // it is cut, so it must start at a multiple of its unit
      offset = AlignUp(offset, UnitOf(item, alignment));
    }
    item.offset = offset;
    offset += item.numel;
  }
  return offset <= chunk.numel();
}

// Skips shard sizes in `taken`.
void PlaceInSmallestShards(ChunkSpec& chunk, int64_t alignment, const std::set<int64_t>& taken) {
  int64_t total = 0, unit = alignment;
  for (const ChunkItem& item : chunk.items) {
    total += AlignUp(item.numel, alignment);
    unit = std::max(unit, UnitOf(item, alignment));
  }
  chunk.shard_numel =
      std::max(unit, AlignUp((total + chunk.num_shards - 1) / chunk.num_shards, unit));
  while (taken.contains(chunk.shard_numel) || !Place(chunk, alignment)) chunk.shard_numel += unit;
}

}  // namespace

std::vector<ChunkSpec> PlanChunks(std::span<const ChunkRequest> requests,
                                  const ChunkPlanOptions& options) {
  APOGEE_CHECK(options.chunk_bytes >= 1 && options.num_shards >= 1 && options.alignment >= 1,
               "PlanChunks: chunk_bytes is ", options.chunk_bytes, ", num_shards ",
               options.num_shards, ", alignment ", options.alignment, "; all must be at least 1");
  std::vector<int> keys;
  for (const ChunkRequest& request : requests) {
    APOGEE_CHECK(request.cut_multiple >= 1, "PlanChunks: a cut_multiple is ", request.cut_multiple,
                 ", must be at least 1");
    if (std::ranges::find(keys, request.key) == keys.end()) keys.push_back(request.key);
  }
  std::vector<ChunkSpec> plan;
  for (const int key : keys) {
    int64_t total = 0, bytes = 0;
    for (const ChunkRequest& request : requests) {
      if (request.key != key) continue;
      total += request.numel;
      bytes += request.numel * request.element_bytes;
    }
    const int64_t count =
        std::max<int64_t>(1, AlignUp(bytes, options.chunk_bytes) / options.chunk_bytes);
    int64_t before = 0, last = -1;
    for (size_t i = 0; i < requests.size(); ++i) {
      if (requests[i].key != key) continue;
      // The part, of `count` equal parts, that contains the middle of the parameter.
      const double middle =
          static_cast<double>(before) + static_cast<double>(requests[i].numel) / 2;
      const auto part = std::min(
          count - 1, static_cast<int64_t>(middle * static_cast<double>(count) /
                                          static_cast<double>(std::max<int64_t>(1, total))));
      const ChunkItem item = {.parameter = i,
                              .offset = 0,
                              .numel = requests[i].numel,
                              .cut_multiple = requests[i].cut_multiple};
      if (part != last || !Fits(plan.back(), UnitOf(item, options.alignment), options.alignment)) {
        plan.push_back({.items = {}, .shard_numel = 0, .num_shards = options.num_shards});
      }
      last = part;
      plan.back().items.push_back(item);
      before += requests[i].numel;
    }
  }
  std::set<int64_t> taken;
  for (ChunkSpec& chunk : plan) {
    PlaceInSmallestShards(chunk, options.alignment, taken);
    if (options.distinct_sizes) taken.insert(chunk.shard_numel);
  }
  return plan;
}

std::vector<Segment> SegmentsOf(const ChunkSpec& chunk, const ChunkItem& item, int shard) {
  const int64_t begin = std::max(item.offset, shard * chunk.shard_numel);
  const int64_t end = std::min(item.end(), (shard + 1) * chunk.shard_numel);
  if (begin >= end) return {};
  return {{begin - item.offset, end - begin}};
}

ChunkPlaces::ChunkPlaces(std::vector<ChunkSpec> plan, size_t num_parameters, int shard)
    : ChunkPlaces(plan, num_parameters, std::vector<int>(plan.size(), shard)) {}

ChunkPlaces::ChunkPlaces(std::vector<ChunkSpec> plan, size_t num_parameters,
                         std::vector<int> shards)
    : plan_(std::move(plan)), places_(num_parameters), shards_(std::move(shards)) {
  for (size_t c = 0; c < plan_.size(); ++c) {
    for (size_t i = 0; i < plan_[c].items.size(); ++i) {
      places_[plan_[c].items[i].parameter] = {c, i};
    }
  }
}

Segment ChunkPlaces::InShard(size_t parameter) const {
  const std::vector<Segment> segments = Segments(parameter);
  if (segments.empty()) return {0, 0};
  const int64_t in_chunk = ItemOf(parameter).offset + segments[0].begin;
  return {in_chunk - ShardBegin(ChunkOf(parameter)), segments[0].length};
}

Layout ChunkPlaces::LayoutOf(size_t parameter, const Shape& shape) const {
  return Layout(shape,
                {.segments = Segments(parameter), .cut_multiple = ItemOf(parameter).cut_multiple});
}

}  // namespace apogee::chunk
