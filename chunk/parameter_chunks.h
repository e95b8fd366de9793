// SPDX-License-Identifier: Apache-2.0

// ParameterChunks: moves parameters into flat chunks. Every rank holds the chunks whole, and each
// rank updates one shard of every chunk (ZeRO stages 1 and 2; Rajbhandari et al., SC 2020).
//
//   ParameterChunks chunks(parameters, plan, group, {DType::kBF16}, on_move);
//   Tensor mine = chunks.Shard(i);        // this rank's elements of parameter i;
//                                         // chunks.LayoutOf(i) has their positions in it
//   ... update mine ...
//   chunks.GatherAsync();                 // distribute all shards in the background
//   parameters[i]->value();               // waits for its chunk if necessary
//
// A parameter's value becomes a view of its chunk, and cannot be replaced. on_move runs once per
// parameter before the old value is dropped; the chunk already holds the value, cast to the chunk's
// dtype. GatherAsync is collective: all ranks of the group must call it. It issues one all-gather
// per chunk, in the order of the chunks.
#ifndef APOGEE_CHUNK_PARAMETER_CHUNKS_H_
#define APOGEE_CHUNK_PARAMETER_CHUNKS_H_

#include <functional>
#include <memory>
#include <vector>

#include "apogee/autograd/parameter.h"
#include "apogee/chunk/chunk_plan.h"
#include "apogee/comm/group.h"
#include "apogee/core/step_listener.h"

namespace apogee::chunk {

class ParameterChunks {
 public:
  // `shard` and `layout`: as Shard(index) and LayoutOf(index).
  using OnMove = std::function<void(size_t index, const Tensor& old_value, const Tensor& shard,
                                    const Layout& layout)>;

  // `plan` must describe these parameters, with GroupSize(group) shards. `group` may be null (one
  // rank). `dtypes`: by chunk; empty: f32. `listeners` hear ValuesGathered; null: nobody. Not
  // collective.
  ParameterChunks(std::vector<autograd::ParameterPtr> parameters, std::vector<ChunkSpec> plan,
                  comm::GroupPtr group, std::vector<DType> dtypes, const OnMove& on_move,
                  const std::shared_ptr<StepListeners>& listeners = nullptr);
  ~ParameterChunks();
  ParameterChunks(const ParameterChunks&) = delete;
  ParameterChunks& operator=(const ParameterChunks&) = delete;

  const std::vector<ChunkSpec>& plan() const { return places_.plan(); }
  const std::vector<autograd::ParameterPtr>& parameters() const { return parameters_; }
  // A view of this rank's elements of a parameter: [n], n may be 0.
  Tensor Shard(size_t index) const;
  // Which elements of the parameter Shard returns.
  Layout LayoutOf(size_t index) const {
    return places_.LayoutOf(index, parameters_[index]->shape());
  }

  // Starts to gather all chunks. Until a chunk has arrived, reading one of its values waits.
  void GatherAsync();
  // Blocks until every value is whole.
  void Wait();

 private:
  struct Chunk {
    void Wait();
    Tensor values;
    std::shared_ptr<comm::Work> work;  // the running gather
    bool is_updated = false;           // ParameterChunks is complete, and still gathers it
    size_t index = 0;
    std::shared_ptr<StepListeners> listeners;
  };
  class Storage;
  // This rank's shard of a chunk.
  Tensor ShardOf(size_t chunk) const;

  std::vector<autograd::ParameterPtr> parameters_;
  comm::GroupPtr group_;
  ChunkPlaces places_;
  std::vector<std::shared_ptr<Chunk>> chunks_;
};

}  // namespace apogee::chunk

#endif  // APOGEE_CHUNK_PARAMETER_CHUNKS_H_
