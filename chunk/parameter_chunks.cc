// SPDX-License-Identifier: Apache-2.0

#include "apogee/chunk/parameter_chunks.h"

#include <utility>

#include "apogee/autograd/parameter_storage.h"

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
                                 std::vector<ChunkSpec> plan, comm::GroupPtr group, DType dtype,
                                 const OnMove& on_move,
                                 const std::shared_ptr<StepListeners>& listeners)
    : parameters_(std::move(parameters)),
      plan_(std::move(plan)),
      group_(std::move(group)),
      places_(parameters_.size()) {
  for (size_t c = 0; c < plan_.size(); ++c) {
    for (const ChunkItem& item : plan_[c].items) places_[item.parameter] = {c, &item};
  }
  // Chunk by chunk: old values are freed as chunks are made, so that the model never exists twice.
  for (size_t c = 0; c < plan_.size(); ++c) {
    const ContextPtr context = parameters_[plan_[c].items.at(0).parameter]->data().context();
    const std::shared_ptr<Chunk>& chunk = chunks_.emplace_back(std::make_shared<Chunk>());
    chunk->index = c;
    chunk->listeners = listeners;
    // Zeros, because padding is gathered with the shards.
    chunk->values = Tensor::Zeros({plan_[c].numel()}, dtype, context, MemoryCategory::kParameter);
    for (const ChunkItem& item : plan_[c].items) {
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

Tensor ParameterChunks::Shard(size_t index) const {
  const Place& place = places_[index];
  const ChunkSpec& spec = plan_[place.chunk];
  const auto segments = SegmentsOf(spec, *place.item, rank());
  const Tensor& values = chunks_[place.chunk]->values;
  if (segments.empty()) return values.Slice(0, rank() * spec.shard_numel, 0);
  return values.Slice(0, place.item->offset + segments[0].begin, segments[0].length);
}

Layout ParameterChunks::LayoutOf(size_t index) const {
  const Place& place = places_[index];
  return Layout(parameters_[index]->shape(),
                {.segments = SegmentsOf(plan_[place.chunk], *place.item, rank()),
                 .cut_multiple = place.item->cut_multiple});
}

void ParameterChunks::GatherAsync() {
  if (group_ == nullptr) return;
  Wait();
  for (size_t c = 0; c < chunks_.size(); ++c) {
    const Tensor& values = chunks_[c]->values;
    const int64_t n = plan_[c].shard_numel;
    chunks_[c]->work = group_->AllGatherAsync(values, values.Slice(0, rank() * n, n));
  }
}

void ParameterChunks::Wait() {
  for (const std::shared_ptr<Chunk>& chunk : chunks_) chunk->Wait();
}

}  // namespace apogee::chunk
