// SPDX-License-Identifier: Apache-2.0

// ChunkMap: which chunks were whole on the device when, over one step, and what else lay there: the
// record and its picture.
//
//   ChunkMap map(parameters);                    // watches from now on
//   ... a step ...
//   map.EndStep();
//   std::string svg = map.Svg({.title = "rank 0", .homes = homes, .budget_bytes = budget});
//
// Time is counted in events: each gather and each giving up of a chunk is one. The picture has a
// row per chunk, filled where its values are whole, with the memory that its shard and its
// optimizer's data live in to the left; below, the bytes of model data and of everything else on
// the device at each event, and the budget. For programs, each bar has the attributes data-chunk,
// data-from and data-to, in events.
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
  bool gathered = false;    // or given up
  int64_t model_bytes = 0;  // on the device, behind the event
  int64_t other_bytes = 0;  // activations and the like
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

  // What has happened since the last call was one step.
  void EndStep();
  const std::vector<ChunkEvent>& last_step() const { return last_step_; }
  // The most bytes of activations and the like beside the model's data in the last step.
  int64_t peak_other_bytes() const;
  // Of the last step: an XML document.
  std::string Svg(const ChunkMapOptions& options) const;

 private:
  std::shared_ptr<chunk::ShardedParameters> parameters_;
  std::vector<ChunkEvent> current_, last_step_;
};

}  // namespace apogee

#endif  // APOGEE_PLUGINS_CHUNK_MAP_H_
