// ShardedParameters: parameters in flat chunks of which each rank keeps one shard, and which are
// whole on a rank while somebody there uses them (ZeRO stage 3; Rajbhandari et al., SC 2020).
//
//   auto parameters = ShardedParameters::Make(all, plan, group, DType::kBF16, on_move);
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
// Whether a call gathers depends on the calls of Acquire and Release alone, never on what a rank's
// graph has saved: graphs may differ from rank to rank.
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
#include "apogee/comm/group.h"

namespace apogee::chunk {

class ShardedParameters : public std::enable_shared_from_this<ShardedParameters> {
 public:
  // Runs once per parameter, before its whole value is dropped. `shard` and `layout`: as
  // Shard(index) and LayoutOf(index).
  using OnMove = std::function<void(size_t index, const Tensor& old_value, const Tensor& shard,
                                    const comm::Layout& layout)>;
  // `index`: the parameter that was read.
  using OnMiss = std::function<void(size_t index)>;

  // `plan` is of these parameters with GroupSize(group) shards and distinct sizes; null: one rank,
  // whose shard is the chunk. `group` is for gathers alone, so that they need no order relative to
  // other collectives. Collective: no.
  static std::shared_ptr<ShardedParameters> Make(std::vector<autograd::ParameterPtr> parameters,
                                                 std::vector<ChunkSpec> plan, comm::GroupPtr group,
                                                 DType dtype, const OnMove& on_move);
  ShardedParameters(const ShardedParameters&) = delete;
  ShardedParameters& operator=(const ShardedParameters&) = delete;

  const std::vector<ChunkSpec>& plan() const { return plan_; }
  const std::vector<autograd::ParameterPtr>& parameters() const { return parameters_; }
  // What gathers run over; null: one rank.
  const comm::GroupPtr& group() const { return group_; }
  size_t ChunkOf(size_t index) const { return places_[index].chunk; }
  // A view of this rank's elements of a parameter, [n], n may be 0: Parameter::data() while it is
  // released.
  Tensor Shard(size_t index) const;
  // Where they lie in the parameter's value.
  comm::Layout LayoutOf(size_t index) const;

  // Collective when nobody had acquired the chunk.
  void Acquire(size_t chunk);
  void Release(size_t chunk);
  bool is_acquired(size_t chunk) const { return chunks_[chunk].num_holders > 0; }
  // The same in backward, where nodes that still need the values may run later: for them alone they
  // stay until the last one has run or DropRetained is called, which ends this walk over the graph:
  // in the next one of the same graph every node reads again.
  void ReleaseInBackward(size_t chunk);
  void DropRetained();
  // Throws Error naming a parameter that is not what Release left.
  void CheckReleased() const;

  void set_on_miss(OnMiss on_miss) { on_miss_ = std::move(on_miss); }
  autograd::PackHook PackValues();

 private:
  struct Chunk {
    Tensor shard;     // [shard_numel]
    Tensor values;    // whole, while acquired
    Tensor retained;  // whole, released in backward, and saved by nodes that are to run
    int num_holders = 0;
    int64_t num_saved = 0;  // PackedValues
    int64_t num_read = 0;   // of them, in this walk
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
                    comm::GroupPtr group);
  void Move(DType dtype, const OnMove& on_move);
  void LetGo(size_t index);
  // False while others hold the chunk.
  bool EndHold(size_t chunk);
  void Miss(size_t index);
  int rank() const { return group_ == nullptr ? 0 : group_->rank(); }

  std::vector<autograd::ParameterPtr> parameters_;
  std::vector<ChunkSpec> plan_;
  comm::GroupPtr group_;
  std::vector<Chunk> chunks_;
  std::vector<Place> places_;  // by parameter
  OnMiss on_miss_;
  int64_t walk_ = 0;  // over a graph, by backward; counted
};

}  // namespace apogee::chunk

#endif  // APOGEE_CHUNK_SHARDED_PARAMETERS_H_
