// SPDX-License-Identifier: Apache-2.0

// ShardedParameters: parameters in flat chunks of which each rank keeps one shard, and which are
// whole on a rank while somebody there uses them (ZeRO stage 3; Rajbhandari et al., SC 2020).
//
//   auto parameters = ShardedParameters::Make(all, plan, {.group = group, .dtype = DType::kBF16},
//                                             on_move);
//   Tensor mine = parameters->Shard(i);          // what is left of parameter i; update it
//   parameters->Acquire(c);                      // one all-gather: chunk c's values can be read
//   ... forward of a module whose parameters lie in c ...
//   parameters->Release(c);                      // and its bytes are given back
//
// Acquire counts its callers; the first one gathers. Who reads a parameter of a chunk that nobody
// has acquired makes `on_miss` run, which acquires the chunk or throws: values are right or an
// error, never stale. Graphs hold no values: within a
// SavedTensorHookGuard(parameters->PackValues()) a saved value is a note of where it lies, and
// backward reads it there.
//
// A shard's home is the device that its parameters were on, or other memory (the host's). Whole
// values are made on the device. With a capacity (schedule()) values stay there after use, or are
// gathered ahead, as chunk/gather_schedule.h says, until they change: tell of it by ValuesChanged,
// or let CheckGathered find it.
//
// Whether a call gathers depends on the calls made here alone, never on what a rank's graph has
// saved or where its shards live: graphs may differ from rank to rank.
//
// A rank that gathers another chunk than its peers gets their CommError: chunks differ in size
// (ChunkPlanOptions::distinct_sizes), and sizes are compared.
#ifndef APOGEE_CHUNK_SHARDED_PARAMETERS_H_
#define APOGEE_CHUNK_SHARDED_PARAMETERS_H_

#include <functional>
#include <memory>
#include <vector>

#include "apogee/autograd/parameter.h"
#include "apogee/autograd/saved_tensor.h"
#include "apogee/chunk/chunk_plan.h"
#include "apogee/chunk/gather_schedule.h"
#include "apogee/comm/group.h"

namespace apogee::chunk {

struct ShardedParametersOptions {
  // For gathers alone, so that they need no order relative to other collectives. Null: one rank,
  // whose shard is the chunk.
  comm::GroupPtr group = nullptr;
  DType dtype = DType::kF32;
  // By chunk, where its shard lives; null, or none at all: where the parameters are.
  std::vector<ContextPtr> homes = {};
  // By chunk: once gathered it stays so until its values change. Empty: none.
  std::vector<bool> keep = {};
  // Runs before each parameter is cut, in the plan's order, which all ranks share: gives it the
  // value to cut. What it makes is dropped before the next one.
  std::function<void(size_t index)> before_move = nullptr;
};

class ShardedParameters : public std::enable_shared_from_this<ShardedParameters> {
 public:
  // Runs once per parameter, before its whole value is dropped. `shard` and `layout`: as
  // Shard(index) and LayoutOf(index).
  using OnMove = std::function<void(size_t index, const Tensor& old_value, const Tensor& shard,
                                    const comm::Layout& layout)>;
  // `index`: the parameter that was read.
  using OnMiss = std::function<void(size_t index)>;

  // `plan` is of these parameters with GroupSize(options.group) shards and distinct sizes.
  // Lazy values are made one at a time. Collective: as before_move.
  static std::shared_ptr<ShardedParameters> Make(std::vector<autograd::ParameterPtr> parameters,
                                                 std::vector<ChunkSpec> plan,
                                                 ShardedParametersOptions options,
                                                 const OnMove& on_move);
  ShardedParameters(const ShardedParameters&) = delete;
  ShardedParameters& operator=(const ShardedParameters&) = delete;

  const std::vector<ChunkSpec>& plan() const { return plan_; }
  const std::vector<autograd::ParameterPtr>& parameters() const { return parameters_; }
  // What gathers run over; null: one rank.
  const comm::GroupPtr& group() const { return options_.group; }
  size_t ChunkOf(size_t index) const { return places_[index].chunk; }
  // A view of this rank's elements of a parameter, [n], n may be 0: Parameter::data() while it is
  // released.
  Tensor Shard(size_t index) const;
  // Where they lie in the parameter's value.
  comm::Layout LayoutOf(size_t index) const;

  // Collective when the chunk has to be gathered, or others ahead of their use.
  void Acquire(size_t chunk);
  void Release(size_t chunk);
  bool is_acquired(size_t chunk) const { return schedule_.is_held(chunk); }
  // The same in backward, where nodes that still need the values may run later: for them alone they
  // stay until the last one has run or DropRetained is called, which ends this walk over the graph:
  // in the next one of the same graph every node reads again.
  void ReleaseInBackward(size_t chunk);
  void DropRetained();
  // Shards were written to: what is gathered and nobody holds is given up.
  void ValuesChanged();
  // The same if it turns out that some rank's shards have been written to. Collective when
  // something is gathered that nobody holds.
  void CheckGathered();
  // A copy, outside of model data. Collective.
  Tensor WholeValue(size_t index) const;

  // What stays, and what comes ahead. Same calls on every rank.
  GatherSchedule& schedule() { return schedule_; }
  const GatherSchedule& schedule() const { return schedule_; }
  // The device.
  const ContextPtr& context() const { return context_; }
  bool is_home(size_t chunk, const ContextPtr& home) const {
    return chunks_[chunk].shard.context() == home;
  }
  // Moves a shard that nobody holds; other views of it (Shard) keep the old memory. Collective: no.
  void MoveHome(size_t chunk, const ContextPtr& home);
  // Bytes of a chunk's shard, and of its values when gathering them takes memory.
  int64_t ShardBytes(size_t chunk) const { return chunks_[chunk].shard.bytes(); }
  int64_t GatheredBytes(size_t chunk) const;
  // Runs after a chunk has been gathered, and after its values are gone.
  using Observer = std::function<void(size_t chunk, bool gathered)>;
  void set_observer(Observer observer) { observer_ = std::move(observer); }

  // Throws Error naming a parameter that is not what Release left.
  void CheckReleased() const;

  void set_on_miss(OnMiss on_miss) { on_miss_ = std::move(on_miss); }
  autograd::PackHook PackValues();

 private:
  struct Chunk {
    Tensor shard;     // [shard_numel], at home
    Tensor values;    // whole, while gathered
    Tensor retained;  // whole, released in backward, and saved by nodes that are to run
    std::shared_ptr<comm::Work> gathering;  // `values` arrive
    bool in_backward = false;               // released there last
    int64_t num_saved = 0;                  // PackedValues
    int64_t num_read = 0;                   // of them, in this walk
    void DropRead() {
      if (num_saved == num_read) retained = Tensor();
    }
  };
  struct Place {
    size_t chunk = 0;
    const ChunkItem* item = nullptr;
  };
  class PackedValue;

  ShardedParameters(std::vector<autograd::ParameterPtr> parameters, std::vector<ChunkSpec> plan,
                    ShardedParametersOptions options);
  void Move(const OnMove& on_move);
  void LetGo(size_t index);
  void EndHold(size_t chunk, bool in_backward);
  void Gather(size_t chunk);
  const Tensor& WaitFor(Chunk& chunk);
  void Drop(const std::vector<size_t>& chunks);
  bool IsAlias(const Chunk& chunk) const;
  void Miss(size_t index);
  int rank() const { return options_.group == nullptr ? 0 : options_.group->rank(); }

  std::vector<autograd::ParameterPtr> parameters_;
  std::vector<ChunkSpec> plan_;
  ShardedParametersOptions options_;
  ContextPtr context_;
  std::vector<Chunk> chunks_;
  std::vector<Place> places_;  // by parameter
  GatherSchedule schedule_;
  Observer observer_;
  OnMiss on_miss_;
  int64_t walk_ = 0;  // over a graph, by backward; counted
};

}  // namespace apogee::chunk

#endif  // APOGEE_CHUNK_SHARDED_PARAMETERS_H_
