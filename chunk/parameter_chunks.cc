// SPDX-License-Identifier: Apache-2.0

#include "apogee/chunk/parameter_chunks.h"

#include <utility>

namespace apogee::chunk {

void ParameterChunks::Chunk::Wait() {
  const auto running = std::exchange(work, nullptr);
  if (running == nullptr) return;
  running->Wait();
  if (listeners != nullptr) listeners->Tell(&StepListener::ValuesGathered, index);
}

// A value that is a view of a chunk. It outlives ParameterChunks.
class ParameterChunks::Storage : public autograd::ParameterStorage {
 public:
  // `is_whole`: the value has all elements that the model declared.
  Storage(std::shared_ptr<Chunk> chunk, Tensor value, bool is_whole)
      : chunk_(std::move(chunk)), value_(std::move(value)), is_whole_(is_whole) {}
  DType dtype() const override { return value_.dtype(); }
  ContextPtr context() const override { return value_.context(); }
  Tensor Read() override {
    chunk_->Wait();
    return value_;
  }
  Tensor ReadLocal() override { return Read(); }
  bool is_whole() const override { return is_whole_; }
  std::string ReplaceProblem() const override {
    if (!chunk_->is_updated) return "";
    return "cannot take another tensor after boost, which would not be connected to its shards; "
           "copy into parameter.data() instead of calling set_value";
  }

 private:
  std::shared_ptr<Chunk> chunk_;
  Tensor value_;
  bool is_whole_;
};

ParameterChunks::ParameterChunks(std::vector<autograd::ParameterPtr> parameters,
                                 std::vector<ChunkSpec> plan, comm::GroupPtr group,
                                 std::vector<DType> dtypes, const OnMove& on_move,
                                 const std::shared_ptr<StepListeners>& listeners)
    : parameters_(std::move(parameters)),
      group_(std::move(group)),
      places_(std::move(plan), parameters_.size(), group_ == nullptr ? 0 : group_->rank()) {
  dtypes.resize(places_.plan().size(), DType::kF32);
  // Chunk by chunk: old values are freed as chunks are made, so that the model never exists twice.
  for (size_t c = 0; c < places_.plan().size(); ++c) {
    const ChunkSpec& spec = places_.plan()[c];
    const ContextPtr context = parameters_[spec.items.at(0).parameter]->data().context();
    const std::shared_ptr<Chunk>& chunk = chunks_.emplace_back(std::make_shared<Chunk>());
    chunk->index = c;
    chunk->listeners = listeners;
    // Zeros, because padding is gathered with the shards.
    chunk->values = Tensor::Zeros({spec.numel()}, dtypes[c], context, MemoryCategory::kParameter);
    for (const ChunkItem& item : spec.items) {
      autograd::Parameter& parameter = *parameters_[item.parameter];
      const Tensor old_value = parameter.data();
      const Tensor value = chunk->values.Slice(0, item.offset, item.numel).View(parameter.shape());
      value.CopyFrom(old_value);
      on_move(item.parameter, old_value, Shard(item.parameter), LayoutOf(item.parameter));
      parameter.set_storage(std::make_shared<Storage>(chunk, value, !parameter.is_part()));
    }
  }
  for (const std::shared_ptr<Chunk>& chunk : chunks_) chunk->is_updated = true;
}

ParameterChunks::~ParameterChunks() {
  for (const std::shared_ptr<Chunk>& chunk : chunks_) {
    chunk->is_updated = false;
    try {  // the values outlive this object and must be whole
      chunk->Wait();
    } catch (const Error&) {
      // This rank learns of the failed peer at its next collective.
    }
  }
}

Tensor ParameterChunks::ShardOf(size_t chunk) const {
  return chunks_[chunk]->values.Slice(0, places_.ShardBegin(chunk),
                                      places_.plan()[chunk].shard_numel);
}

Tensor ParameterChunks::Shard(size_t index) const {
  const Segment part = places_.InShard(index);
  return ShardOf(places_.ChunkOf(index)).Slice(0, part.begin, part.length);
}

void ParameterChunks::GatherAsync() {
  if (group_ == nullptr) return;
  Wait();
  for (size_t c = 0; c < chunks_.size(); ++c) {
    chunks_[c]->work = group_->AllGatherAsync(chunks_[c]->values, ShardOf(c));
  }
}

void ParameterChunks::Wait() {
  for (const std::shared_ptr<Chunk>& chunk : chunks_) chunk->Wait();
}

}  // namespace apogee::chunk
