// SPDX-License-Identifier: Apache-2.0

#include "apogee/chunk/sharded_parameters.h"

#include <algorithm>
#include <cstring>
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

// By chunk: the shard of this rank.
std::vector<int> RanksIn(const std::vector<comm::GroupPtr>& groups) {
  std::vector<int> ranks;
  ranks.reserve(groups.size());
  for (const comm::GroupPtr& group : groups) ranks.push_back(group == nullptr ? 0 : group->rank());
  return ranks;
}

ShardedParametersOptions Filled(ShardedParametersOptions options, size_t num_chunks) {
  options.homes.resize(num_chunks);
  options.dtypes.resize(num_chunks, DType::kF32);
  if (options.chunk_groups.empty()) options.chunk_groups.resize(num_chunks, options.group);
  return options;
}

}  // namespace

// A saved value: elements of a chunk, read from where the chunk's values are during backward.
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
      owner_->Miss(owner_->plan()[chunk_].items[0].parameter);
    }
    const Tensor& values = chunk.values.defined() ? owner_->WaitFor(chunk_) : chunk.retained;
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
  int64_t walk_ = -1;  // the last walk that read it
};

// A value in a chunk. Outlives ShardedParameters; then this rank's shard can still be read.
class ShardedParameters::Storage : public autograd::ParameterStorage {
 public:
  Storage(std::weak_ptr<ShardedParameters> owner, size_t index,
          const autograd::Parameter& parameter)
      : owner_(std::move(owner)),
        index_(index),
        name_(parameter.name()),
        was_part_(parameter.is_part()) {}
  void set_shard(const Tensor& shard) { shard_ = shard; }

  DType dtype() const override { return shard_.dtype(); }
  ContextPtr context() const override {
    const auto owner = owner_.lock();
    return owner != nullptr && owner->IsHeld(index_) ? owner->context() : shard_.context();
  }
  Tensor Read() override {
    const auto owner = owner_.lock();
    APOGEE_CHECK(owner != nullptr, "parameter \"", name_,
                 "\" was read after the plugin that shards it was destroyed; this rank has a part "
                 "of it only (Parameter::data)");
    return owner->ValueOf(index_);
  }
  Tensor ReadLocal() override { return is_local() ? Read() : shard_; }
  bool is_local() const override {
    const auto owner = owner_.lock();
    return owner != nullptr && owner->IsHeld(index_);
  }
  bool is_whole() const override { return is_local() && !was_part_; }
  std::string ReplaceProblem() const override {
    if (owner_.expired()) {
      return "has only this rank's shard, and the plugin that sharded it is gone; make the model "
             "anew";
    }
    return "cannot take another tensor after boost, which would not be connected to its shards; "
           "copy this rank's part (Plugin::LayoutOf) into parameter.data() instead of calling "
           "set_value";
  }

 private:
  std::weak_ptr<ShardedParameters> owner_;
  size_t index_;
  std::string name_;
  bool was_part_;  // gathered, it is still a part of what the model declared
  Tensor shard_;
};

std::shared_ptr<ShardedParameters> ShardedParameters::Make(
    std::vector<autograd::ParameterPtr> parameters, std::vector<ChunkSpec> plan,
    ShardedParametersOptions options, const OnMove& on_move) {
  std::shared_ptr<ShardedParameters> made(
      new ShardedParameters(std::move(parameters), std::move(plan), std::move(options)));
  made->Move(on_move);
  return made;
}

ShardedParameters::ShardedParameters(std::vector<autograd::ParameterPtr> parameters,
                                     std::vector<ChunkSpec> plan, ShardedParametersOptions options)
    : parameters_(std::move(parameters)),
      storages_(parameters_.size()),
      options_(Filled(std::move(options), plan.size())),
      places_(std::move(plan), parameters_.size(), RanksIn(options_.chunk_groups)),
      chunks_(this->plan().size()),
      schedule_({.chunk_bytes = std::vector<int64_t>(chunks_.size()), .keep = options_.keep}) {
  if (!parameters_.empty()) context_ = parameters_[0]->context();
}

// Parameter by parameter: an old value is freed once its shard is made.
void ShardedParameters::Move(const OnMove& on_move) {
  for (size_t c = 0; c < plan().size(); ++c) {
    const ContextPtr& home = options_.homes[c] != nullptr ? options_.homes[c] : context_;
    // Zeros, because padding is gathered with the shards.
    chunks_[c].shard = Tensor::Zeros({plan()[c].shard_numel}, options_.dtypes[c], home,
                                     MemoryCategory::kParameter);
    schedule_.set_chunk_bytes(c, GatheredBytes(c));
    for (const ChunkItem& item : plan()[c].items) {
      if (options_.before_move) options_.before_move(item.parameter);
      const Tensor old_value = parameters_[item.parameter]->data();
      const Tensor shard = Shard(item.parameter);
      const Tensor flat = old_value.Contiguous().View({old_value.numel()});
      const Layout layout = LayoutOf(item.parameter);
      for (const Segment& segment : layout.segments()) {
        shard.CopyFrom(flat.Slice(0, segment.begin, segment.length));
      }
      on_move(item.parameter, old_value, shard, layout);
      auto& storage = storages_[item.parameter];
      storage =
          std::make_shared<Storage>(weak_from_this(), item.parameter, *parameters_[item.parameter]);
      storage->set_shard(shard);
      parameters_[item.parameter]->set_storage(storage);
    }
  }
  options_.before_move = nullptr;  // the objects it captured may not live longer
}

Tensor ShardedParameters::Shard(size_t index) const {
  const Segment part = places_.InShard(index);
  return chunks_[ChunkOf(index)].shard.Slice(0, part.begin, part.length);
}

Tensor ShardedParameters::ViewOf(size_t index, const Tensor& values) const {
  const ChunkItem& item = places_.ItemOf(index);
  return values.Slice(0, item.offset, item.numel).View(parameters_[index]->shape());
}

Tensor ShardedParameters::ValueOf(size_t index) {
  if (!IsHeld(index)) Miss(index);
  APOGEE_CHECK(IsHeld(index), "parameter \"", parameters_[index]->name(),
               "\" was read, and on_miss did not acquire its chunk");
  return ViewOf(index, chunks_[ChunkOf(index)].values);
}

void ShardedParameters::Miss(size_t index) {
  APOGEE_CHECK(on_miss_ != nullptr, "parameter \"", parameters_[index]->name(),
               "\" was read while nobody had acquired its chunk");
  on_miss_(index);
}

// With one rank on the device the shard is the whole chunk, and no copy is needed.
bool ShardedParameters::IsAlias(size_t index) const {
  return options_.chunk_groups[index] == nullptr && chunks_[index].shard.context() == context_;
}

int64_t ShardedParameters::GatheredBytes(size_t index) const {
  return IsAlias(index) ? 0 : plan()[index].numel() * DTypeSize(options_.dtypes[index]);
}

void ShardedParameters::Gather(size_t index) {
  Chunk& chunk = chunks_[index];
  try {
    if (IsAlias(index)) {
      chunk.values = chunk.shard;
    } else {
      chunk.values = Tensor::Empty({plan()[index].numel()}, options_.dtypes[index], context_,
                                   MemoryCategory::kParameter);
      if (const comm::GroupPtr& group = options_.chunk_groups[index]; group != nullptr) {
        chunk.gathering = group->AllGatherAsync(chunk.values, chunk.shard);
      } else {
        chunk.values.CopyFrom(chunk.shard);
      }
    }
  } catch (...) {
    schedule_.Forget(index);
    chunk.values = Tensor();
    throw;
  }
  Record(index, /*gathered=*/true);
}

void ShardedParameters::Record(size_t index, bool gathered) {
  const MemoryLedger& ledger = context_->ledger();
  const int64_t model = ledger.model_data_bytes();
  record_.Add({index, gathered, model, ledger.live_total_bytes() - model});
}

const Tensor& ShardedParameters::WaitFor(size_t index) {
  Chunk& chunk = chunks_[index];
  if (const auto gathering = std::exchange(chunk.gathering, nullptr)) {
    gathering->Wait();
    if (options_.listeners != nullptr) {
      options_.listeners->Tell(&StepListener::ValuesGathered, index);
    }
  }
  return chunk.values;
}

void ShardedParameters::Drop(const std::vector<size_t>& chunks) {
  for (const size_t index : chunks) {
    Chunk& chunk = chunks_[index];
    try {
      WaitFor(index);  // else its memory would stay in use
    } catch (const comm::CommError&) {
      // These values are not needed; the next gather reports the error.
    }
    if (chunk.in_backward && chunk.num_saved > chunk.num_read) chunk.retained = chunk.values;
    chunk.values = Tensor();
    Record(index, /*gathered=*/false);
  }
}

void ShardedParameters::Acquire(size_t index) {
  Chunk& chunk = chunks_[index];
  const bool held = schedule_.is_held(index);
  const GatherSchedule::Actions actions = schedule_.Acquire(index);
  if (held) return;
  chunk.retained = Tensor();
  Drop(actions.drop);
  try {
    if (actions.gather) Gather(index);
    for (const size_t ahead : actions.ahead) {
      chunks_[ahead].retained = Tensor();
      Gather(ahead);
    }
    WaitFor(index);
  } catch (...) {
    for (const size_t ahead : actions.ahead) {
      if (!chunks_[ahead].values.defined()) schedule_.Forget(ahead);
    }
    schedule_.Forget(index);
    chunk.values = Tensor();
    throw;
  }
}

void ShardedParameters::EndHold(size_t index, bool in_backward) {
  Chunk& chunk = chunks_[index];
  const std::vector<size_t> drop = schedule_.Release(index);
  if (schedule_.is_held(index)) return;
  chunk.in_backward = in_backward;
  Drop(drop);
}

void ShardedParameters::Release(size_t index) { EndHold(index, false); }

void ShardedParameters::ReleaseInBackward(size_t index) { EndHold(index, true); }

void ShardedParameters::ValuesChanged() { Drop(schedule_.DropUnheld()); }

void ShardedParameters::CheckGathered() {
  bool any = false, changed = false;
  for (size_t c = 0; c < chunks_.size(); ++c) {
    Chunk& chunk = chunks_[c];
    if (!schedule_.is_gathered(c) || schedule_.is_held(c) || GatheredBytes(c) == 0) continue;
    any = true;
    if (changed) continue;
    const Tensor mine = WaitFor(c).Slice(0, places_.ShardBegin(c), plan()[c].shard_numel).ToHost();
    const Tensor shard = chunk.shard.ToHost();
    changed = std::memcmp(mine.raw(), shard.raw(), static_cast<size_t>(mine.bytes())) != 0;
  }
  if (!any) return;
  if (options_.group != nullptr) {
    const Tensor flag = Tensor::Full({1}, DType::kF32, changed ? 1 : 0, context_);
    options_.group->AllReduce(flag, comm::ReduceOp::kMax);
    changed = flag.Item() != 0;
  }
  if (changed) ValuesChanged();
}

Tensor ShardedParameters::WholeValue(size_t index) const {
  const size_t chunk = ChunkOf(index);
  Tensor values = chunks_[chunk].shard;
  if (const comm::GroupPtr& group = options_.chunk_groups[chunk]; group != nullptr) {
    values = Tensor::Empty({plan()[chunk].numel()}, options_.dtypes[chunk], context_,
                           MemoryCategory::kWorkspace);
    group->AllGather(values, chunks_[chunk].shard);
  }
  const Tensor whole = Tensor::Empty(parameters_[index]->shape(), values.dtype(), context_);
  whole.CopyFrom(ViewOf(index, values));
  return whole;
}

void ShardedParameters::MoveHome(size_t index, const ContextPtr& home) {
  Chunk& chunk = chunks_[index];
  APOGEE_CHECK(!schedule_.is_gathered(index),
               "ShardedParameters: the home of a chunk that is gathered cannot change");
  const Tensor moved =
      Tensor::Empty(chunk.shard.shape(), chunk.shard.dtype(), home, MemoryCategory::kParameter);
  moved.CopyFrom(chunk.shard);
  chunk.shard = moved;
  schedule_.set_chunk_bytes(index, GatheredBytes(index));
  for (const ChunkItem& item : plan()[index].items) {
    storages_[item.parameter]->set_shard(Shard(item.parameter));
  }
}

void ShardedParameters::DropRetained() {
  ++walk_;
  for (Chunk& chunk : chunks_) {
    chunk.retained = Tensor();
    chunk.in_backward = false;
    chunk.num_read = 0;
  }
}

autograd::PackHook ShardedParameters::PackValues() {
  return [owner =
              shared_from_this()](const Tensor& tensor) -> std::shared_ptr<autograd::PackedTensor> {
    for (size_t c = 0; c < owner->chunks_.size(); ++c) {
      const Tensor& values = owner->chunks_[c].values;
      if (!values.defined() || values.storage() != tensor.storage()) continue;
      if (tensor.is_contiguous()) return std::make_shared<PackedValue>(owner, c, tensor);
      // A view would keep the whole chunk alive.
      return std::make_shared<KeptTensor>(tensor.Clone());
    }
    return std::make_shared<KeptTensor>(tensor);
  };
}

}  // namespace apogee::chunk
