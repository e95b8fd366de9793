// SPDX-License-Identifier: Apache-2.0

// GatherSchedule: which chunks to gather, keep, drop and fetch ahead, so that gathered values stay
// within a number of bytes: decisions only, no memory.
//
//   GatherSchedule schedule({.chunk_bytes = {400, 400, 800}});
//   schedule.set_capacity_bytes(1200);
//   const auto actions = schedule.Acquire(c);   // drop actions.drop, gather c if actions.gather,
//                                               // then begin to gather actions.ahead
//   for (size_t other : schedule.Release(c)) ...drop it...
//   schedule.EndIteration();                    // backward has ended
//
// The order in which chunks are first held is recorded. As long as an iteration repeats the one
// before, the next use of each chunk is known: what is dropped to make room is the chunk whose next
// use is farthest (Belady, IBM Systems Journal 1966), and the next ones are fetched ahead where
// that drops nothing that is used sooner. An iteration in another order goes on without, and its
// order is learned. Evaluations have an order of their own.
//
// Decisions depend on the calls alone: ranks that make the same calls gather the same.
#ifndef APOGEE_CHUNK_GATHER_SCHEDULE_H_
#define APOGEE_CHUNK_GATHER_SCHEDULE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace apogee::chunk {

struct GatherScheduleOptions {
  // Of each chunk's gathered values; 0 for one that takes no memory when it is gathered.
  std::vector<int64_t> chunk_bytes;
  // By chunk: stays gathered until its values change, whatever the capacity. Empty: none.
  std::vector<bool> keep = {};
  // How many of the next chunks are fetched ahead.
  size_t max_ahead = 2;
};

class GatherSchedule {
 public:
  struct Actions {
    std::vector<size_t> drop;
    bool gather = false;  // it is not gathered, nor under way
    std::vector<size_t> ahead;
  };

  explicit GatherSchedule(const GatherScheduleOptions& options);

  // Chunks that nobody holds stay, or are fetched ahead, as long as all that are gathered (but for
  // `keep`) have no more bytes than this; what is held may exceed it. 0: nothing stays.
  void set_capacity_bytes(int64_t bytes) { capacity_bytes_ = bytes; }
  int64_t capacity_bytes() const { return capacity_bytes_; }
  // Of a chunk that is not gathered.
  void set_chunk_bytes(size_t chunk, int64_t bytes) { chunks_[chunk].bytes = bytes; }

  Actions Acquire(size_t chunk);
  // Returns what to drop.
  std::vector<size_t> Release(size_t chunk);
  // A gather failed: as if the chunk had not been acquired.
  void Forget(size_t chunk);
  // All that nobody holds is to be dropped: values have changed. Returns them.
  std::vector<size_t> DropUnheld();

  // What is held in between has an order of its own.
  void BeginEvaluation();
  void EndEvaluation();
  // All uses since the last call are one iteration. Returns whether their order is another than
  // that of the one before.
  bool EndIteration();

  bool is_gathered(size_t chunk) const { return chunks_[chunk].gathered; }
  bool is_held(size_t chunk) const { return chunks_[chunk].num_holders > 0; }
  // `keep` left out.
  int64_t gathered_bytes() const { return gathered_bytes_; }
  // The most that was held at a time, `keep` included.
  int64_t peak_held_bytes() const { return peak_held_bytes_; }
  // Uses of the last iteration.
  const std::vector<size_t>& order() const { return training_.learned; }

 private:
  struct Chunk {
    int64_t bytes = 0;
    bool keep = false;
    bool gathered = false;
    int num_holders = 0;
  };
  struct Pass {
    std::vector<size_t> learned, current;
    bool follows = true;  // `current` begins like `learned`
  };

  Pass& pass() { return in_evaluation_ ? evaluation_ : training_; }
  const Pass& pass() const { return in_evaluation_ ? evaluation_ : training_; }
  static bool End(Pass& pass);
  // Uses until the next one of the chunk; kNever when it is not known.
  size_t NextUse(size_t chunk) const;
  // Drops what is not held, farthest next use first, until `bytes` more fit. Only uses farther than
  // `beyond`, and nothing at all where that does not make room, unless `beyond` is kAny.
  bool MakeRoom(int64_t bytes, size_t beyond, std::vector<size_t>& drop);
  void FetchAhead(Actions& actions);
  void Gather(size_t chunk);
  void Drop(size_t chunk, std::vector<size_t>& drop);

  std::vector<Chunk> chunks_;
  size_t max_ahead_;
  int64_t capacity_bytes_ = 0;
  int64_t gathered_bytes_ = 0;  // without `keep`
  int64_t held_bytes_ = 0;
  int64_t peak_held_bytes_ = 0;
  Pass training_, evaluation_;
  bool in_evaluation_ = false;
};

}  // namespace apogee::chunk

#endif  // APOGEE_CHUNK_GATHER_SCHEDULE_H_
