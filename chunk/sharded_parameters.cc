#include "apogee/chunk/sharded_parameters.h"

#include <utility>

namespace apogee::chunk {
namespace {

class KeptTensor : public autograd::PackedTensor {
 public:
  explicit KeptTensor(Tensor tensor) : tensor_(std::move(tensor)) {}
  Tensor Unpack() override { return tensor_; }

 private:
  Tensor tensor_;
};

}  // namespace

// Elements of a chunk, wherever the chunk's values are when backward needs them.
class ShardedParameters::PackedValue : public autograd::PackedTensor {
 public:
  PackedValue(std::shared_ptr<ShardedParameters> owner, size_t chunk, const Tensor& value)
      : owner_(std::move(owner)), chunk_(chunk), offset_(value.offset()), shape_(value.shape()) {
    ++owner_->chunks_[chunk_].num_saved;
  }
  ~PackedValue() override {
    Chunk& chunk = owner_->chunks_[chunk_];
    --chunk.num_saved;
    if (walk_ == owner_->walk_) --chunk.num_read;
    chunk.DropRead();
  }

  Tensor Unpack() override {
    Chunk& chunk = owner_->chunks_[chunk_];
    if (!chunk.values.defined() && !chunk.retained.defined()) {
      owner_->Miss(owner_->plan_[chunk_].items[0].parameter);
    }
    const Tensor& values = chunk.values.defined() ? chunk.values : chunk.retained;
    const Tensor value = values.Slice(0, offset_, shape_.numel()).View(shape_);
    if (std::exchange(walk_, owner_->walk_) != owner_->walk_) ++chunk.num_read;
    chunk.DropRead();
    return value;
  }

 private:
  std::shared_ptr<ShardedParameters> owner_;
  size_t chunk_;
  int64_t offset_;
  Shape shape_;
  int64_t walk_ = -1;  // the last one that read it
};

std::shared_ptr<ShardedParameters> ShardedParameters::Make(
    std::vector<autograd::ParameterPtr> parameters, std::vector<ChunkSpec> plan,
    comm::GroupPtr group, DType dtype, const OnMove& on_move) {
  std::shared_ptr<ShardedParameters> made(
      new ShardedParameters(std::move(parameters), std::move(plan), std::move(group)));
  made->Move(dtype, on_move);
  return made;
}

ShardedParameters::ShardedParameters(std::vector<autograd::ParameterPtr> parameters,
                                     std::vector<ChunkSpec> plan, comm::GroupPtr group)
    : parameters_(std::move(parameters)),
      plan_(std::move(plan)),
      group_(std::move(group)),
      chunks_(plan_.size()),
      places_(parameters_.size()) {
  for (size_t c = 0; c < plan_.size(); ++c) {
    for (const ChunkItem& item : plan_[c].items) places_[item.parameter] = {c, &item};
  }
}

// Chunk by chunk: old values go as their shards come.
void ShardedParameters::Move(DType dtype, const OnMove& on_move) {
  for (size_t c = 0; c < plan_.size(); ++c) {
    const ContextPtr context = parameters_[plan_[c].items.at(0).parameter]->data().context();
    // Zeros: padding travels with the shards.
    chunks_[c].shard =
        Tensor::Zeros({plan_[c].shard_numel}, dtype, context, MemoryCategory::kParameter);
    for (const ChunkItem& item : plan_[c].items) {
      const Tensor old_value = parameters_[item.parameter]->data();
      const Tensor shard = Shard(item.parameter);
      const Tensor flat = old_value.Contiguous().View({old_value.numel()});
      for (const comm::Segment& segment : SegmentsOf(plan_[c], item, rank())) {
        shard.CopyFrom(flat.Slice(0, segment.begin, segment.length));
      }
      on_move(item.parameter, old_value, shard, LayoutOf(item.parameter));
      LetGo(item.parameter);
    }
  }
}

Tensor ShardedParameters::Shard(size_t index) const {
  const Place& place = places_[index];
  const ChunkSpec& spec = plan_[place.chunk];
  const auto segments = SegmentsOf(spec, *place.item, rank());
  const Tensor& shard = chunks_[place.chunk].shard;
  if (segments.empty()) return shard.Slice(0, 0, 0);
  const int64_t begin = place.item->offset + segments[0].begin - rank() * spec.shard_numel;
  return shard.Slice(0, begin, segments[0].length);
}

comm::Layout ShardedParameters::LayoutOf(size_t index) const {
  const Place& place = places_[index];
  return comm::Layout(parameters_[index]->shape(),
                      {.segments = SegmentsOf(plan_[place.chunk], *place.item, rank()),
                       .cut_multiple = place.item->cut_multiple});
}

void ShardedParameters::LetGo(size_t index) {
  parameters_[index]->Release(
      Shard(index), [owner = weak_from_this(), index, name = parameters_[index]->name()] {
        const auto alive = owner.lock();
        APOGEE_CHECK(alive != nullptr, "parameter \"", name,
                     "\" was read after the plugin that shards it was destroyed; this rank has a "
                     "part of it only (Parameter::data)");
        alive->Miss(index);
      });
}

void ShardedParameters::Miss(size_t index) {
  APOGEE_CHECK(on_miss_ != nullptr, "parameter \"", parameters_[index]->name(),
               "\" was read while nobody had acquired its chunk");
  on_miss_(index);
}

void ShardedParameters::Acquire(size_t index) {
  Chunk& chunk = chunks_[index];
  if (chunk.num_holders == 0) {
    Tensor values = chunk.shard;
    if (group_ != nullptr) {
      values = Tensor::Empty({plan_[index].numel()}, values.dtype(), values.context(),
                             MemoryCategory::kParameter);
      group_->AllGather(values, chunk.shard);
    }
    for (const ChunkItem& item : plan_[index].items) {
      autograd::Parameter& parameter = *parameters_[item.parameter];
      parameter.set_value(values.Slice(0, item.offset, item.numel).View(parameter.shape()));
    }
    chunk.values = std::move(values);
    chunk.retained = Tensor();
  }
  ++chunk.num_holders;
}

bool ShardedParameters::EndHold(size_t index) {
  Chunk& chunk = chunks_[index];
  APOGEE_CHECK(chunk.num_holders > 0, "ShardedParameters: a chunk was released twice");
  if (--chunk.num_holders > 0) return false;
  for (const ChunkItem& item : plan_[index].items) {
    // Another value, which somebody set meanwhile, stays for CheckReleased to find.
    const autograd::Parameter& parameter = *parameters_[item.parameter];
    if (parameter.data().storage() == chunk.values.storage()) LetGo(item.parameter);
  }
  return true;
}

void ShardedParameters::Release(size_t index) {
  if (EndHold(index)) chunks_[index].values = Tensor();
}

void ShardedParameters::ReleaseInBackward(size_t index) {
  Chunk& chunk = chunks_[index];
  if (!EndHold(index)) return;
  if (chunk.num_saved > chunk.num_read) chunk.retained = chunk.values;
  chunk.values = Tensor();
}

void ShardedParameters::DropRetained() {
  ++walk_;
  for (Chunk& chunk : chunks_) {
    chunk.retained = Tensor();
    chunk.num_read = 0;
  }
}

void ShardedParameters::CheckReleased() const {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const autograd::Parameter& parameter = *parameters_[i];
    APOGEE_CHECK(parameter.is_released() &&
                     parameter.data().storage() == chunks_[places_[i].chunk].shard.storage(),
                 "parameter \"", parameter.name(),
                 "\" was given another tensor after boost, which its shards know nothing of; copy "
                 "this rank's part (Plugin::LayoutOf) into parameter.data() instead of calling "
                 "set_value");
  }
}

autograd::PackHook ShardedParameters::PackValues() {
  return [owner =
              shared_from_this()](const Tensor& tensor) -> std::shared_ptr<autograd::PackedTensor> {
    for (size_t c = 0; c < owner->chunks_.size(); ++c) {
      const Tensor& values = owner->chunks_[c].values;
      if (!values.defined() || values.storage() != tensor.storage()) continue;
      if (tensor.is_contiguous()) return std::make_shared<PackedValue>(owner, c, tensor);
      return std::make_shared<KeptTensor>(tensor.Clone());  // else it would hold the whole chunk
    }
    return std::make_shared<KeptTensor>(tensor);
  };
}

}  // namespace apogee::chunk
