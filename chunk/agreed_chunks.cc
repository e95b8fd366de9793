// SPDX-License-Identifier: Apache-2.0

// GradientChunks with on_chunk: when to reduce chunks if ranks have different gradients.
#include "apogee/chunk/gradient_chunks.h"

namespace apogee::chunk {

void GradientChunks::Agree() {
  if (!active_ || !reduce_ || !options_.on_chunk) return;
  std::vector<double> wait;
  bool all_done = true;  // the same on all ranks
  for (const Chunk& chunk : chunks_) {
    wait.push_back(chunk.done || chunk.missing > 0 ? 1 : 0);
    all_done = all_done && chunk.done;
  }
  if (all_done) return;
  if (group_ != nullptr) {
    // f64: a rank that has already ended its backward sends f32 here, and the mismatch is an error.
    const Tensor agreed = Tensor::FromVector<double>(wait, {static_cast<int64_t>(wait.size())},
                                                     slots_[0].parameter->data().context());
    group_->AllReduce(agreed, comm::ReduceOp::kMax);
    wait = agreed.ToVector<double>();
  }
  for (size_t c = 0; c < chunks_.size(); ++c) {
    if (wait[c] != 0) continue;
    for (const ChunkItem& item : plan_[c].items) {
      slots_[item.parameter].present = slots_[item.parameter].deposited;
    }
    ReduceNow(c);
  }
}

// Blocks, so that at most one chunk is being reduced.
void GradientChunks::ReduceNow(size_t index) {
  FillGaps(index);
  Chunk& chunk = chunks_[index];
  const int64_t n = plan_[index].shard_numel;
  chunk.mean = chunk.flat;
  if (group_ != nullptr) {
    chunk.mean = chunk.flat.Slice(0, group_->rank() * n, n);
    chunk.work = group_->ReduceScatterAsync(chunk.mean, chunk.flat);
  }
  Complete(index);
  chunk.done = true;
  options_.on_chunk();
}

void GradientChunks::FinishAgreed() {
  ExchangePresence();
  for (size_t c = 0; c < chunks_.size(); ++c) {
    bool present = false;
    for (const ChunkItem& item : plan_[c].items) {
      present = present || slots_[item.parameter].present;
    }
    if (present && !chunks_[c].done) ReduceNow(c);
  }
}

}  // namespace apogee::chunk
