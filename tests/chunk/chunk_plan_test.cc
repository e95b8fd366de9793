// SPDX-License-Identifier: Apache-2.0

#include "apogee/chunk/chunk_plan.h"

#include <gtest/gtest.h>

#include <map>

namespace apogee::chunk {
namespace chunk_plan_test {

// Whatever the sizes: every element of every parameter lies in exactly one shard, items do not
// overlap, starts are aligned, cuts are where the parameter allows them.
TEST(ChunkPlanTest, EveryElementHasOneShard) {
  const std::vector<ChunkRequest> requests = {{.numel = 561},
                                              {.numel = 1},
                                              {.numel = 33, .cut_multiple = 16},
                                              {.numel = 0},
                                              {.numel = 7},
                                              {.numel = 4096, .cut_multiple = 256},
                                              {.numel = 17},
                                              {.numel = 1000},
                                              {.numel = 300, .element_bytes = 2, .key = 1},
                                              {.numel = 900, .cut_multiple = 48},
                                              {.numel = 500, .cut_multiple = 20}};
  for (const int shards : {1, 2, 3, 4, 7}) {
    for (const int64_t bytes : {1, 100, 4000, 1 << 20}) {
      const auto plan = PlanChunks(requests, {.chunk_bytes = bytes, .num_shards = shards});
      std::map<size_t, int64_t> covered;
      for (const ChunkSpec& chunk : plan) {
        int64_t filled = 0;
        for (const ChunkItem& item : chunk.items) {
          const ChunkRequest& request = requests[item.parameter];
          EXPECT_EQ(request.key, requests[chunk.items[0].parameter].key);
          EXPECT_EQ(item.offset % 8, 0);
          EXPECT_GE(item.offset, filled);
          filled = item.end();
          int64_t next = 0;
          for (int shard = 0; shard < shards; ++shard) {
            for (const Segment& segment : SegmentsOf(chunk, item, shard)) {
              EXPECT_EQ(segment.begin, next);
              next += segment.length;
              if (next < item.numel) {
                EXPECT_EQ(next % request.cut_multiple, 0);
              }
            }
          }
          EXPECT_EQ(next, item.numel);
          covered[item.parameter] += next;
        }
        EXPECT_LE(filled, chunk.numel());
      }
      for (size_t i = 0; i < requests.size(); ++i) EXPECT_EQ(covered[i], requests[i].numel);
    }
  }
}

TEST(ChunkPlanTest, DistinctSizesTellChunksApart) {
  const std::vector<ChunkRequest> requests(40, {.numel = 640, .cut_multiple = 64});
  for (const bool distinct : {false, true}) {
    const auto plan =
        PlanChunks(requests, {.chunk_bytes = 1, .num_shards = 2, .distinct_sizes = distinct});
    std::map<int64_t, int> chunks_of_size;
    for (const ChunkSpec& chunk : plan) ++chunks_of_size[chunk.shard_numel];
    EXPECT_EQ(plan.size(), 40u);
    EXPECT_EQ(chunks_of_size.size(), distinct ? 40u : 1u);
    for (const ChunkSpec& chunk : plan) {
      for (int shard = 0; shard < 2; ++shard) {
        for (const auto& segment : SegmentsOf(chunk, chunk.items[0], shard)) {
          EXPECT_EQ(segment.begin % 64, 0);
        }
      }
    }
  }
}

TEST(ChunkPlanTest, ChunksAreAsManyAsTheirBytesNeed) {
  const std::vector<ChunkRequest> requests(100, {.numel = 1000});
  for (const int64_t bytes : {4000, 25000, 400000, 130000}) {
    EXPECT_EQ(static_cast<int64_t>(PlanChunks(requests, {.chunk_bytes = bytes}).size()),
              (400000 + bytes - 1) / bytes);
  }
  EXPECT_EQ(PlanChunks(requests, {.chunk_bytes = 1}).size(), 100u) << "parameters stay whole";
}

TEST(ChunkPlanTest, LittleIsWasted) {
  const std::vector<ChunkRequest> requests(50, {.numel = 768 * 768, .cut_multiple = 256});
  for (const int shards : {2, 3, 8}) {
    int64_t numel = 0;
    for (const ChunkSpec& chunk : PlanChunks(requests, {.num_shards = shards})) {
      numel += chunk.numel();
    }
    EXPECT_LE(static_cast<double>(numel), 1.001 * 50 * 768 * 768) << shards;
  }
}

}  // namespace chunk_plan_test
}  // namespace apogee::chunk
