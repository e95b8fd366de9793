// SPDX-License-Identifier: Apache-2.0

// GatherSchedule: decides which chunks to gather, keep, drop and prefetch, so that gathered values
// stay within a number of bytes. It only decides; it holds no memory.
//
//   GatherSchedule schedule({.chunk_bytes = {400, 400, 800}});
//   schedule.set_capacity_bytes(1200);
//   const auto actions = schedule.Acquire(c);
//   // Now drop actions.drop, gather c if actions.gather, then start to gather actions.ahead.
//   for (size_t other : schedule.Release(c)) ...drop it...
//   schedule.EndIteration();                    // when backward has ended
//
// The schedule records the order in which chunks are first held. While an iteration repeats the
// order of the one before, the next use of each chunk is known. To make room, the schedule then
// drops the chunk whose next use is farthest away (Belady, IBM Systems Journal 1966). It prefetches
// the next chunks unless that would drop one that is used sooner. An iteration that leaves the
// known order goes on without prediction; its order is learned. Evaluations have their own order.
//
// Decisions depend only on the calls made: ranks that make the same calls gather the same chunks.
#ifndef APOGEE_CHUNK_GATHER_SCHEDULE_H_
#define APOGEE_CHUNK_GATHER_SCHEDULE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace apogee::chunk {

struct GatherScheduleOptions {
  // By chunk: bytes of its gathered values; 0 if gathering it takes no memory.
  std::vector<int64_t> chunk_bytes;
  // By chunk: whether it stays gathered until its values change, despite the capacity. Empty: none.
  std::vector<bool> keep = {};
  // How many chunks at most are prefetched.
  size_t max_ahead = 2;
};

class GatherSchedule {
 public:
  struct Actions {
    std::vector<size_t> drop;
    bool gather = false;  // the chunk is neither gathered nor being gathered
    std::vector<size_t> ahead;
  };

  explicit GatherSchedule(const GatherScheduleOptions& options);

  // Limits the gathered bytes, `keep` chunks excluded. Within the limit, chunks without a holder
  // stay gathered or are prefetched. Held chunks may exceed it. 0: a released chunk is dropped.
  void set_capacity_bytes(int64_t bytes) { capacity_bytes_ = bytes; }
  int64_t capacity_bytes() const { return capacity_bytes_; }
  // Call only for a chunk that is not gathered.
  void set_chunk_bytes(size_t chunk, int64_t bytes) { chunks_[chunk].bytes = bytes; }

  // Counts one more holder of the chunk. Returns the actions to carry out.
  Actions Acquire(size_t chunk);
  // Counts one holder less. Returns the chunks to drop.
  std::vector<size_t> Release(size_t chunk);
  // Call when a gather has failed: the chunk then has no holders and is not gathered.
  void Forget(size_t chunk);
  // Call when values have changed: marks all chunks without a holder as dropped and returns them.
  std::vector<size_t> DropUnheld();

  // The chunks held between these calls have an order of their own.
  void BeginEvaluation();
  void EndEvaluation();
  // Ends an iteration: all uses since the last call. Returns whether their order differs from that
  // of the iteration before.
  bool EndIteration();

  bool is_gathered(size_t chunk) const { return chunks_[chunk].gathered; }
  bool is_held(size_t chunk) const { return chunks_[chunk].num_holders > 0; }
  // Without `keep` chunks.
  int64_t gathered_bytes() const { return gathered_bytes_; }
  // The most bytes held at one time, `keep` chunks included.
  int64_t peak_held_bytes() const { return peak_held_bytes_; }
  // The order of uses of the last iteration.
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
    bool follows = true;  // `current` is a prefix of `learned`
  };

  Pass& pass() { return in_evaluation_ ? evaluation_ : training_; }
  const Pass& pass() const { return in_evaluation_ ? evaluation_ : training_; }
  static bool End(Pass& pass);
  // Number of uses until the chunk's next one; kNever if unknown.
  size_t NextUse(size_t chunk) const;
  // Drops chunks without a holder, farthest next use first, until `bytes` more fit. Drops only
  // chunks whose next use is farther than `beyond`, and drops nothing if that cannot make enough
  // room. With kAny it drops all it can.
  bool MakeRoom(int64_t bytes, size_t beyond, std::vector<size_t>& drop);
  void FetchAhead(Actions& actions);
  void Gather(size_t chunk);
  void Drop(size_t chunk, std::vector<size_t>& drop);

  std::vector<Chunk> chunks_;
  size_t max_ahead_;
  int64_t capacity_bytes_ = 0;
  int64_t gathered_bytes_ = 0;  // without `keep` chunks
  int64_t held_bytes_ = 0;
  int64_t peak_held_bytes_ = 0;
  Pass training_, evaluation_;
  bool in_evaluation_ = false;
};

}  // namespace apogee::chunk

#endif  // APOGEE_CHUNK_GATHER_SCHEDULE_H_
