// SPDX-License-Identifier: Apache-2.0

// ChunkRecord: over one step, when each chunk was whole on the device and how much other memory was
// in use there. ChunkMapSvg (pictures/chunk_map.h) draws it.
//
//   ChunkRecord record(parameters);             // records from now on
//   ... a step ...
//   record.EndStep();
//   record.last_step()[0].model_bytes;          // after the first event
//
// Time is counted in events: each gather and each release of a chunk is one.
#ifndef APOGEE_PLUGINS_GEMINI_CHUNK_RECORD_H_
#define APOGEE_PLUGINS_GEMINI_CHUNK_RECORD_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "apogee/chunk/sharded_parameters.h"

namespace apogee {

struct ChunkEvent {
  size_t chunk = 0;
  bool gathered = false;    // false: released
  int64_t model_bytes = 0;  // on the device, after the event
  int64_t other_bytes = 0;  // on the device, not model data (activations, ...)
};

class ChunkRecord {
 public:
  // Becomes the observer of `parameters`, which must outlive it.
  explicit ChunkRecord(std::shared_ptr<chunk::ShardedParameters> parameters);
  ~ChunkRecord();
  ChunkRecord(const ChunkRecord&) = delete;
  ChunkRecord& operator=(const ChunkRecord&) = delete;

  // Ends a step: all events since the last call belong to it.
  void EndStep();
  const std::vector<ChunkEvent>& last_step() const { return last_step_; }
  // The last step's peak of bytes on the device that are not model data (activations, ...).
  int64_t peak_other_bytes() const;

 private:
  std::shared_ptr<chunk::ShardedParameters> parameters_;
  std::vector<ChunkEvent> current_, last_step_;
};

}  // namespace apogee

#endif  // APOGEE_PLUGINS_GEMINI_CHUNK_RECORD_H_
