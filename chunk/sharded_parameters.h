// SPDX-License-Identifier: Apache-2.0

// ShardedParameters: parameters in flat chunks. Each rank keeps one shard of every chunk, and a
// chunk is gathered while it is in use (ZeRO stage 3; Rajbhandari et al., SC 2020).
//
//   auto parameters = ShardedParameters::Make(all, plan, {.group = group},
//                                             on_move);
//   Tensor mine = parameters->Shard(i);          // this rank's part of parameter i; update it
//   parameters->Acquire(c);                      // one all-gather: chunk c's values can be read
//   ... forward of a module whose parameters are in chunk c ...
//   parameters->Release(c);                      // frees the gathered values
//
// Acquire counts holders; the first one gathers. Reading a parameter whose chunk is not held calls
// `on_miss`, which acquires the chunk or throws. So a value is right or an error, never stale.
// Autograd graphs hold no values: within a SavedTensorHookGuard(parameters->PackValues()), a graph
// saves a value's place in its chunk instead of the value, and backward reads it there.
//
// A shard's home is the device that its parameters were on, or other memory such as the host's.
// Gathered values are on the device. If the schedule has a capacity, values may stay there after
// use, or are gathered ahead (chunk/gather_schedule.h). They stay until the shards change: call
// ValuesChanged after writing to shards, or CheckGathered, which detects writes.
//
// Whether a call gathers depends only on the calls made here, not on a rank's saved graph or on the
// home of its shards. So graphs may differ from rank to rank.
//
// If ranks gather different chunks, all get a CommError: chunks differ in size
// (ChunkPlanOptions::distinct_sizes), and the group compares sizes.
#ifndef APOGEE_CHUNK_SHARDED_PARAMETERS_H_
#define APOGEE_CHUNK_SHARDED_PARAMETERS_H_

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "apogee/autograd/parameter.h"
#include "apogee/autograd/saved_tensor.h"
#include "apogee/chunk/chunk_plan.h"
#include "apogee/chunk/gather_schedule.h"
#include "apogee/comm/group.h"
#include "apogee/core/step_listener.h"

namespace apogee::chunk {

struct ShardedParametersOptions {
  // Used for gathers only, so that they need no order relative to other collectives. Null: one
  // rank, whose shard is the whole chunk.
  comm::GroupPtr group = nullptr;
  // By chunk: the ranks of `group` that share it, if they are not all. Null: one rank. Empty: all
  // chunks are shared by `group`.
  std::vector<comm::GroupPtr> chunk_groups = {};
  // By chunk: of its values. Empty: f32.
  std::vector<DType> dtypes = {};
  // By chunk: where its shard lives. Null, or an empty vector: where the parameters are.
  std::vector<ContextPtr> homes = {};
  // By chunk: whether it stays gathered until its values change. Empty: none.
  std::vector<bool> keep = {};
  // Called before each parameter is cut into shards, in the plan's order, which is the same on all
  // ranks. It may set the value to cut; that value is dropped before the next call.
  std::function<void(size_t index)> before_move = nullptr;
  // Hear ValuesGathered. Null: nobody.
  std::shared_ptr<StepListeners> listeners = nullptr;
};

// A gather or a release of a chunk.
struct ChunkEvent {
  size_t chunk = 0;
  bool gathered = false;    // false: released
  int64_t model_bytes = 0;  // on the device, after the event
  int64_t other_bytes = 0;  // on the device, not model data (activations, ...)
};

// Over one step, when each chunk was whole on the device and how much other memory was in use
// there. Time is counted in events. ChunkMapSvg (pictures/maps.h) draws it.
class ChunkRecord {
 public:
  void Add(const ChunkEvent& event) { current_.push_back(event); }
  // Ends a step: all events since the last call belong to it.
  void EndStep() { last_step_ = std::exchange(current_, {}); }
  const std::vector<ChunkEvent>& last_step() const { return last_step_; }

 private:
  std::vector<ChunkEvent> current_, last_step_;
};

class ShardedParameters : public std::enable_shared_from_this<ShardedParameters> {
 public:
  // Called once per parameter before its whole value is dropped. `shard` and `layout` are
  // Shard(index) and LayoutOf(index).
  using OnMove = std::function<void(size_t index, const Tensor& old_value, const Tensor& shard,
                                    const Layout& layout)>;
  // `index`: the parameter that was read while its chunk was not held.
  using OnMiss = std::function<void(size_t index)>;

  // `plan` must describe these parameters, with a shard for each rank of a chunk's group, and with
  // sizes that are distinct among the chunks of a group.
  // Lazily initialized values are created one at a time. Collective only if before_move is.
  static std::shared_ptr<ShardedParameters> Make(std::vector<autograd::ParameterPtr> parameters,
                                                 std::vector<ChunkSpec> plan,
                                                 ShardedParametersOptions options,
                                                 const OnMove& on_move);
  ShardedParameters(const ShardedParameters&) = delete;
  ShardedParameters& operator=(const ShardedParameters&) = delete;

  const std::vector<ChunkSpec>& plan() const { return places_.plan(); }
  const std::vector<autograd::ParameterPtr>& parameters() const { return parameters_; }
  // All ranks that share chunks; null: one rank.
  const comm::GroupPtr& group() const { return options_.group; }
  size_t ChunkOf(size_t index) const { return places_.ChunkOf(index); }
  // A view of this rank's elements of a parameter: [n], n may be 0. Equals Parameter::data() while
  // the chunk is released.
  Tensor Shard(size_t index) const;
  // Which elements of the parameter Shard returns.
  Layout LayoutOf(size_t index) const {
    return places_.LayoutOf(index, parameters_[index]->shape());
  }

  // Adds a holder of the chunk. Collective if this chunk, or others ahead of their use, must be
  // gathered. Returns when the chunk's values have arrived.
  void Acquire(size_t chunk);
  void Release(size_t chunk);
  bool is_acquired(size_t chunk) const { return schedule_.is_held(chunk); }
  // Release for use in backward, where graph nodes that saved the values may run later. The values
  // stay readable for these nodes only, until the last one has run or DropRetained is called.
  // DropRetained ends this walk over the graph; another walk over it reads every value again.
  void ReleaseInBackward(size_t chunk);
  void DropRetained();
  // Call after writing to shards: drops gathered values without a holder.
  void ValuesChanged();
  // Checks whether shards of any rank were written to, and then calls ValuesChanged. Collective if
  // some chunk is gathered but has no holder.
  void CheckGathered();
  // A copy of the whole value, not counted as model data. Collective.
  Tensor WholeValue(size_t index) const;

  // Decides which chunks stay and which are gathered ahead. Make the same calls on every rank.
  GatherSchedule& schedule() { return schedule_; }
  const GatherSchedule& schedule() const { return schedule_; }
  // The device of the gathered values.
  const ContextPtr& context() const { return context_; }
  // Moves the shard of a chunk that is not gathered. Earlier views of it (Shard) keep the old
  // memory. Not collective.
  void MoveHome(size_t chunk, const ContextPtr& home);
  // Bytes of a chunk's shard, and of its gathered values (0 if gathering takes no memory).
  int64_t ShardBytes(size_t chunk) const { return chunks_[chunk].shard.bytes(); }
  int64_t GatheredBytes(size_t chunk) const;
  // Has an event when a gather of a chunk has been started, and after its values were freed.
  ChunkRecord& record() { return record_; }
  const ChunkRecord& record() const { return record_; }

  void set_on_miss(OnMiss on_miss) { on_miss_ = std::move(on_miss); }
  autograd::PackHook PackValues();

 private:
  struct Chunk {
    Tensor shard;     // [shard_numel], in its home
    Tensor values;    // whole, while gathered
    Tensor retained;  // whole: released in backward, but saved by nodes that have yet to run
    std::shared_ptr<comm::Work> gathering;  // set until `values` have arrived
    bool in_backward = false;               // the last release was in backward
    int64_t num_saved = 0;                  // live PackedValues
    int64_t num_read = 0;                   // PackedValues read in this walk
    void DropRead() {
      if (num_saved == num_read) retained = Tensor();
    }
  };
  class PackedValue;
  class Storage;

  ShardedParameters(std::vector<autograd::ParameterPtr> parameters, std::vector<ChunkSpec> plan,
                    ShardedParametersOptions options);
  void Move(const OnMove& on_move);
  void EndHold(size_t chunk, bool in_backward);
  void Gather(size_t chunk);
  const Tensor& WaitFor(size_t chunk);
  void Drop(const std::vector<size_t>& chunks);
  void Record(size_t chunk, bool gathered);
  bool IsAlias(size_t chunk) const;
  void Miss(size_t index);
  // A view of a parameter in the whole values of its chunk.
  Tensor ViewOf(size_t index, const Tensor& values) const;
  Tensor ValueOf(size_t index);
  bool IsHeld(size_t index) const { return schedule_.is_held(ChunkOf(index)); }

  std::vector<autograd::ParameterPtr> parameters_;
  std::vector<std::shared_ptr<Storage>> storages_;  // of the parameters
  ShardedParametersOptions options_;
  ChunkPlaces places_;
  ContextPtr context_;
  std::vector<Chunk> chunks_;
  GatherSchedule schedule_;
  ChunkRecord record_;
  OnMiss on_miss_;
  int64_t walk_ = 0;  // number of the current walk over a graph in backward
};

}  // namespace apogee::chunk

#endif  // APOGEE_CHUNK_SHARDED_PARAMETERS_H_
