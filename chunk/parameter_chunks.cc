// SPDX-License-Identifier: Apache-2.0

#include "apogee/chunk/parameter_chunks.h"

#include <utility>

namespace apogee::chunk {

ParameterChunks::ParameterChunks(std::vector<autograd::ParameterPtr> parameters,
                                 std::vector<ChunkSpec> plan, comm::GroupPtr group, DType dtype,
                                 const OnMove& on_move)
    : parameters_(std::move(parameters)),
      plan_(std::move(plan)),
      group_(std::move(group)),
      chunks_(plan_.size()),
      places_(parameters_.size()) {
  for (size_t c = 0; c < plan_.size(); ++c) {
    for (const ChunkItem& item : plan_[c].items) places_[item.parameter] = {c, &item};
  }
  // Chunk by chunk: old values are freed as chunks are made, so that the model never exists twice.
  for (size_t c = 0; c < plan_.size(); ++c) {
    const ContextPtr context = parameters_[plan_[c].items.at(0).parameter]->data().context();
    // Zeros, because padding is gathered with the shards.
    chunks_[c].values =
        Tensor::Zeros({plan_[c].numel()}, dtype, context, MemoryCategory::kParameter);
    for (const ChunkItem& item : plan_[c].items) {
      autograd::Parameter& parameter = *parameters_[item.parameter];
      const Tensor old_value = parameter.data();
      const Tensor value =
          chunks_[c].values.Slice(0, item.offset, item.numel).View(parameter.shape());
      value.CopyFrom(old_value);
      on_move(item.parameter, old_value, Shard(item.parameter), LayoutOf(item.parameter));
      parameter.set_value(value);
    }
  }
}

ParameterChunks::~ParameterChunks() {
  for (const autograd::ParameterPtr& parameter : parameters_) parameter->set_before_read(nullptr);
  for (Chunk& chunk : chunks_) {
    if (chunk.work == nullptr) continue;
    try {  // the values outlive this object and must be whole
      chunk.work->Wait();
    } catch (const Error&) {
      // This rank learns of the failed peer at its next collective.
    }
  }
}

Tensor ParameterChunks::Shard(size_t index) const {
  const Place& place = places_[index];
  const ChunkSpec& spec = plan_[place.chunk];
  const auto segments = SegmentsOf(spec, *place.item, rank());
  const Tensor& values = chunks_[place.chunk].values;
  if (segments.empty()) return values.Slice(0, rank() * spec.shard_numel, 0);
  return values.Slice(0, place.item->offset + segments[0].begin, segments[0].length);
}

Layout ParameterChunks::LayoutOf(size_t index) const {
  const Place& place = places_[index];
  return Layout(parameters_[index]->shape(),
                {.segments = SegmentsOf(plan_[place.chunk], *place.item, rank()),
                 .cut_multiple = place.item->cut_multiple});
}

void ParameterChunks::CheckUnchanged() const {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    APOGEE_CHECK(
        parameters_[i]->data().storage() == chunks_[places_[i].chunk].values.storage(),
        "parameter \"", parameters_[i]->name(),
        "\" was given another tensor after boost, which is not connected to its shards; copy "
        "into parameter.data() instead of calling set_value");
  }
}

void ParameterChunks::GatherAsync() {
  if (group_ == nullptr) return;
  Wait();
  for (size_t c = 0; c < chunks_.size(); ++c) {
    const Tensor& values = chunks_[c].values;
    const int64_t n = plan_[c].shard_numel;
    chunks_[c].work = group_->AllGatherAsync(values, values.Slice(0, rank() * n, n));
    for (const ChunkItem& item : plan_[c].items) {
      parameters_[item.parameter]->set_before_read([this, c] { WaitFor(c); });
    }
  }
}

void ParameterChunks::WaitFor(size_t chunk) {
  if (const auto work = std::exchange(chunks_[chunk].work, nullptr)) work->Wait();
}

void ParameterChunks::Wait() {
  for (size_t c = 0; c < chunks_.size(); ++c) {
    WaitFor(c);
    for (const ChunkItem& item : plan_[c].items) {
      parameters_[item.parameter]->set_before_read(nullptr);
    }
  }
}

}  // namespace apogee::chunk
