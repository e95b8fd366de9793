// SPDX-License-Identifier: Apache-2.0

// ChunkMap: records, over one step, when each chunk was whole on the device and how much other
// memory was in use there. Draws the record.
//
//   ChunkMap map(parameters);                    // records from now on
//   ... a step ...
//   map.EndStep();
//   std::string svg = map.Svg({.title = "rank 0", .parameter_homes = homes,
//                              .optimizer_homes = homes, .budget_bytes = budget});
//
// Time is counted in events: each gather and each release of a chunk is one.
//
// The picture has a row per chunk, filled where the chunk's values are whole. To the left of the
// row stands the memory that holds its shard and its optimizer data. Below the rows are the bytes
// of model data and of everything else on the device at each event, and the budget. For programs,
// each bar has the attributes data-chunk, data-from and data-to, in events.
#ifndef APOGEE_PLUGINS_CHUNK_MAP_H_
#define APOGEE_PLUGINS_CHUNK_MAP_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "apogee/chunk/sharded_parameters.h"

namespace apogee {

struct ChunkEvent {
  size_t chunk = 0;
  bool gathered = false;    // false: released
  int64_t model_bytes = 0;  // on the device, after the event
  int64_t other_bytes = 0;  // on the device, not model data (activations, ...)
};

struct ChunkMapOptions {
  std::string title;
  // By chunk: "device", "host" or "disk".
  std::vector<std::string> parameter_homes, optimizer_homes;
  int64_t budget_bytes = 0;  // 0: none
};

class ChunkMap {
 public:
  // Becomes the observer of `parameters`, which must outlive it.
  explicit ChunkMap(std::shared_ptr<chunk::ShardedParameters> parameters);
  ~ChunkMap();
  ChunkMap(const ChunkMap&) = delete;
  ChunkMap& operator=(const ChunkMap&) = delete;

  // Ends a step: all events since the last call belong to it.
  void EndStep();
  const std::vector<ChunkEvent>& last_step() const { return last_step_; }
  // The last step's peak of bytes on the device that are not model data (activations, ...).
  int64_t peak_other_bytes() const;
  // The picture of the last step, an XML document.
  std::string Svg(const ChunkMapOptions& options) const;

 private:
  std::shared_ptr<chunk::ShardedParameters> parameters_;
  std::vector<ChunkEvent> current_, last_step_;
};

}  // namespace apogee

#endif  // APOGEE_PLUGINS_CHUNK_MAP_H_
