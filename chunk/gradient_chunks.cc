// SPDX-License-Identifier: Apache-2.0

#include "apogee/chunk/gradient_chunks.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "apogee/autograd/engine.h"
#include "apogee/tensor/kernel_table.h"
#include "apogee/tensor/ops/elementwise.h"

namespace apogee::chunk {
namespace {

// Sharded mode: how many chunks may be in reduction before backward waits for the oldest.
constexpr size_t kMaxInFlight = 2;
// GradientChunkOptions::wait_inside, if false.
constexpr std::chrono::milliseconds kPatience{100};
constexpr int kPassesWithoutWaiting = 64;
constexpr int kNumDTypes = 256;  // an upper bound
// A float holds 24 bits of a digest exactly. All ranks have the same part a if and only if
// max(a) + max(kDigestPart - a) == kDigestPart.
constexpr uint64_t kDigestPart = (1 << 24) - 1;

// to = factor * from, rounded to to's dtype; both contiguous.
void CopyScaled(const Tensor& to, const Tensor& from, double factor) {
  to.context()->kernels().scale_add(*to.context(), {.x_dtype = from.dtype(),
                                                    .y_dtype = to.dtype(),
                                                    .x = from.raw(),
                                                    .y = to.raw(),
                                                    .n = to.numel(),
                                                    .alpha = factor,
                                                    .beta = 0});
}

}  // namespace

// A sink runs after all hooks, because a user's hook could otherwise change a gradient that is
// already on its way.
class GradientChunks::Sink : public autograd::GradSink {
 public:
  Sink(GradientChunks& owner, size_t index) : owner_(owner), index_(index) {}
  void OnGradient(autograd::Parameter& /*parameter*/) override { owner_.OnGradient(index_); }

 private:
  GradientChunks& owner_;
  size_t index_;
};

GradientChunks::GradientChunks(std::vector<autograd::ParameterPtr> parameters, comm::GroupPtr group,
                               const GradientChunkOptions& options)
    : group_(std::move(group)), options_(options) {
  // Backward completes the last layers' gradients first.
  std::reverse(parameters.begin(), parameters.end());
  Attach(std::move(parameters));
  PlanReplicated();
}

GradientChunks::GradientChunks(std::vector<autograd::ParameterPtr> parameters,
                               std::vector<ChunkSpec> plan, comm::GroupPtr group,
                               const GradientChunkOptions& options, OnMean on_mean)
    : group_(std::move(group)),
      options_(options),
      on_mean_(std::move(on_mean)),
      plan_(std::move(plan)) {
  Attach(std::move(parameters));
  PlaceSlots();
}

void GradientChunks::Attach(std::vector<autograd::ParameterPtr> parameters) {
  slots_.resize(parameters.size());
  for (size_t i = 0; i < slots_.size(); ++i) {
    slots_[i].parameter = std::move(parameters[i]);
    slots_[i].sink = std::make_shared<Sink>(*this, i);
    slots_[i].parameter->set_grad_sink(slots_[i].sink);
  }
}

void GradientChunks::PlanReplicated() {
  std::vector<ChunkRequest> requests;
  std::vector<size_t> owners;
  for (size_t i = 0; i < slots_.size(); ++i) {
    const autograd::Parameter& parameter = *slots_[i].parameter;
    if (!parameter.requires_grad()) continue;
    requests.push_back({.numel = parameter.shape().numel(),
                        .element_bytes = DTypeSize(parameter.grad_dtype()),
                        .key = static_cast<int>(parameter.grad_dtype()) +
                               (options_.key_of ? kNumDTypes * options_.key_of(parameter) : 0)});
    owners.push_back(i);
  }
  plan_ = PlanChunks(requests, {.chunk_bytes = options_.chunk_bytes, .alignment = 1});
  for (ChunkSpec& spec : plan_) {
    for (ChunkItem& item : spec.items) item.parameter = owners[item.parameter];
  }
  PlaceSlots();
}

void GradientChunks::PlaceSlots() {
  for (Slot& slot : slots_) {
    slot.item = nullptr;
    slot.trainable = slot.parameter->requires_grad();
  }
  chunks_ = std::vector<Chunk>(plan_.size());
  for (size_t c = 0; c < plan_.size(); ++c) {
    for (const ChunkItem& item : plan_[c].items) {
      slots_[item.parameter].chunk = c;
      slots_[item.parameter].item = &item;
    }
  }
}

// A parameter was frozen or unfrozen, the same on all ranks.
void GradientChunks::CheckTrainable() {
  for (Slot& slot : slots_) {
    const bool trainable = slot.parameter->requires_grad();
    if (trainable == slot.trainable) continue;
    if (!on_mean_) return PlanReplicated();
    slot.trainable = trainable;
  }
}

DType GradientChunks::FlatDType(const ChunkSpec& spec) const {
  return options_.communication_dtype.value_or(
      slots_[spec.items[0].parameter].parameter->grad_dtype());
}

void GradientChunks::Run(std::span<GradientChunks* const> all,
                         const std::function<void()>& backward, const GradientPass& pass) {
  struct End {  // also when backward throws
    std::span<GradientChunks* const> all;
    ~End() {
      for (GradientChunks* chunks : all) {
        chunks->active_ = false;
        if (chunks->options_.on_chunk) chunks->chunks_.clear();
      }
    }
  } end{all};
  for (GradientChunks* chunks : all) chunks->Begin(pass);
  backward();
  for (GradientChunks* chunks : all) {
    if (chunks->reduce_) {
      chunks->Finish();
    } else {
      for (Slot& slot : chunks->slots_) chunks->RestorePartial(slot);
    }
  }
}

void GradientChunks::Begin(const GradientPass& pass) {
  CheckTrainable();
  for (Slot& slot : slots_) {
    slot.takes_part = slot.trainable && (!pass.takes_part || pass.takes_part(*slot.parameter));
  }
  chunks_ = std::vector<Chunk>(plan_.size());
  for (size_t c = 0; c < plan_.size(); ++c) {
    chunks_[c].done = !AnyTakesPart(plan_[c]);
    for (const ChunkItem& item : plan_[c].items) {
      chunks_[c].missing += slots_[item.parameter].takes_part ? 1 : 0;
    }
  }
  for (Slot& slot : slots_) {
    slot.deposited = false;
    slot.present = false;
    if (options_.reproducible) StashPartial(slot);
  }
  in_flight_.clear();
  passes_without_waiting_ = std::max(0, passes_without_waiting_ - 1);
  next_chunk_ = 0;
  reduce_ = pass.reduce && reduces_;
  active_ = true;
}

void GradientChunks::OnGradient(size_t index) {
  Slot& slot = slots_[index];
  APOGEE_CHECK(active_, "parameter \"", slot.parameter->name(),
               "\" got a gradient outside of booster.backward(); ranks would not average it. Call "
               "booster.backward(loss, optimizer) instead of autograd::Backward");
  APOGEE_CHECK(!slot.deposited, "parameter \"", slot.parameter->name(),
               "\" got another gradient in the same backward after it had been reduced");
  if (options_.listeners != nullptr) {
    options_.listeners->Tell(&StepListener::GradientReady, slot.parameter->name());
  }
  if (options_.reproducible) MergePartials(slot);
  if (slot.item == nullptr) return;
  if (!reduce_ || !slot.takes_part) return PutAway(slot);
  Deposit(slot);
  if (options_.overlap && !options_.on_chunk) LaunchReady();
}

// A gradient that stays local is kept in the context of its chunk's gradients.
void GradientChunks::PutAway(Slot& slot) {
  if (!options_.context_of || !slot.parameter->has_grad()) return;
  const Tensor grad = slot.parameter->grad();
  const ContextPtr context = options_.context_of(slot.chunk, grad.bytes());
  if (grad.context() == context) return;
  const Tensor away = Tensor::Empty(grad.shape(), grad.dtype(), context, MemoryCategory::kGradient);
  away.CopyFrom(grad);
  slot.parameter->set_grad(away);
}

Tensor GradientChunks::EmptyGradient(size_t chunk, int64_t numel) const {
  const ChunkSpec& spec = plan_[chunk];
  const autograd::Parameter& first = *slots_[spec.items[0].parameter].parameter;
  const DType dtype = FlatDType(spec);
  const ContextPtr context = options_.context_of
                                 ? options_.context_of(chunk, numel * DTypeSize(dtype))
                                 : first.data().context();
  return Tensor::Empty({numel}, dtype, context, MemoryCategory::kGradient);
}

void GradientChunks::MakeFlat(size_t index) {
  Chunk& chunk = chunks_[index];
  if (!chunk.flat.defined()) chunk.flat = EmptyGradient(index, plan_[index].numel());
}

// Copies the gradient to its chunk.
void GradientChunks::Deposit(Slot& slot) {
  FoldPartials(slot);
  autograd::Parameter& parameter = *slot.parameter;
  if (slot.deposited || !parameter.has_grad()) return;
  slot.deposited = true;
  Chunk& chunk = chunks_[slot.chunk];
  --chunk.missing;
  if (group_ == nullptr && !on_mean_) return;  // the gradient is already the mean
  MakeFlat(slot.chunk);
  const Tensor part = chunk.flat.Slice(0, slot.item->offset, slot.item->numel);
  CopyScaled(part, parameter.grad(), 1.0 / comm::GroupSize(group_));
  parameter.set_grad(on_mean_ ? Tensor() : part.View(parameter.shape()));
}

void GradientChunks::LaunchReady() {
  while (next_chunk_ < chunks_.size() && chunks_[next_chunk_].missing == 0) Launch(next_chunk_++);
}

bool GradientChunks::AnyTakesPart(const ChunkSpec& spec) const {
  return std::ranges::any_of(
      spec.items, [this](const ChunkItem& item) { return slots_[item.parameter].takes_part; });
}

// Fills the gaps between gradients, and the gradients that this rank lacks, with zeros.
void GradientChunks::FillGaps(size_t index) {
  Chunk& chunk = chunks_[index];
  const ChunkSpec& spec = plan_[index];
  MakeFlat(index);
  int64_t filled = 0;
  for (const ChunkItem& item : spec.items) {
    if (!slots_[item.parameter].deposited) continue;
    chunk.flat.Slice(0, filled, item.offset - filled).Fill(0);
    filled = item.end();
  }
  chunk.flat.Slice(0, filled, spec.numel() - filled).Fill(0);
}

void GradientChunks::Launch(size_t index) {
  Chunk& chunk = chunks_[index];
  const ChunkSpec& spec = plan_[index];
  if (!AnyTakesPart(spec) || (group_ == nullptr && !on_mean_)) return;
  FillGaps(index);
  if (!on_mean_) {
    chunk.work = group_->AllReduceAsync(chunk.flat);
  } else if (group_ == nullptr) {
    chunk.mean = chunk.flat;
  } else {
    chunk.mean = options_.keep_whole
                     ? chunk.flat.Slice(0, group_->rank() * spec.shard_numel, spec.shard_numel)
                     : EmptyGradient(index, spec.shard_numel);
    chunk.work = group_->ReduceScatterAsync(chunk.mean, chunk.flat);
  }
  in_flight_.push_back(index);
  while (on_mean_ && in_flight_.size() > kMaxInFlight && MayComplete(in_flight_.front())) {
    Complete(in_flight_.front());
    in_flight_.pop_front();
  }
}

bool GradientChunks::MayComplete(size_t index) {
  const auto& work = chunks_[index].work;
  if (options_.wait_inside || work == nullptr || work->IsDone()) return true;
  if (passes_without_waiting_ > 0) return false;
  if (work->WaitFor(kPatience)) return true;
  passes_without_waiting_ = kPassesWithoutWaiting;
  return false;
}

void GradientChunks::Complete(size_t index) {
  Chunk& chunk = chunks_[index];
  if (chunk.work != nullptr) chunk.work->Wait();
  chunk.work = nullptr;
  HandOut(index);
  if (options_.listeners != nullptr) {
    options_.listeners->Tell(&StepListener::GradientsReduced, index);
  }
}

void GradientChunks::HandOut(size_t index) {
  if (!on_mean_) return;
  Chunk& chunk = chunks_[index];
  const ChunkSpec& spec = plan_[index];
  const int64_t first = (group_ == nullptr ? 0 : group_->rank()) * spec.shard_numel;
  const DType dtype = slots_[spec.items[0].parameter].parameter->grad_dtype();
  if (chunk.mean.dtype() != dtype) chunk.mean = chunk.mean.To(dtype, MemoryCategory::kGradient);
  const Chunk reduced = std::exchange(chunk, {});
  for (const ChunkItem& item : spec.items) {
    const int64_t begin = std::clamp(item.offset - first, int64_t{0}, spec.shard_numel);
    const int64_t end = std::clamp(item.end() - first, int64_t{0}, spec.shard_numel);
    if (options_.on_chunk && !slots_[item.parameter].present) continue;
    on_mean_(item.parameter, reduced.mean.Slice(0, begin, end - begin));
  }
}

// Turns the presence on this rank into presence on any rank; meanwhile completes running chunks.
void GradientChunks::ExchangePresence() {
  if (group_ == nullptr || plan_.empty()) return;
  std::vector<float> bits;
  for (const Slot& slot : slots_) bits.push_back(slot.present ? 1.0f : 0.0f);
  if (options_.agreement.digest) {
    const uint64_t digest = options_.agreement.digest();
    for (const uint64_t part : {digest & kDigestPart, digest >> 24 & kDigestPart}) {
      bits.push_back(static_cast<float>(part));
      bits.push_back(static_cast<float>(kDigestPart - part));
    }
  }
  const Tensor presence = Tensor::FromVector<float>(bits, {static_cast<int64_t>(bits.size())},
                                                    slots_[0].parameter->data().context());
  const auto work = group_->AllReduceAsync(presence, comm::ReduceOp::kMax);
  for (; !in_flight_.empty(); in_flight_.pop_front()) Complete(in_flight_.front());
  work->Wait();
  bits = presence.ToVector<float>();
  for (size_t i = 0; i < slots_.size(); ++i) slots_[i].present = bits[i] != 0;
  for (size_t i = slots_.size(); i < bits.size(); i += 2) {
    if (bits[i] + bits[i + 1] != static_cast<float>(kDigestPart))
      options_.agreement.on_difference();
  }
}

void GradientChunks::Finish() {
  for (Slot& slot : slots_) {
    if (slot.item == nullptr) {
      FoldPartials(slot);
    } else if (slot.takes_part) {
      Deposit(slot);
    }
  }
  for (Slot& slot : slots_) slot.present = slot.deposited;
  if (options_.on_chunk) return FinishAgreed();
  while (next_chunk_ < chunks_.size()) Launch(next_chunk_++);
  ExchangePresence();
  for (; !in_flight_.empty(); in_flight_.pop_front()) Complete(in_flight_.front());
  for (Slot& slot : slots_) {
    autograd::Parameter& parameter = *slot.parameter;
    if (on_mean_ || slot.item == nullptr || !slot.present || parameter.has_grad()) continue;
    const Tensor part = chunks_[slot.chunk].flat.Slice(0, slot.item->offset, slot.item->numel);
    parameter.set_grad(part.View(parameter.shape()));
  }
  chunks_ = std::vector<Chunk>(plan_.size());  // the gradients are views that keep the memory
}

// Sets a larger partial sum aside, so that the new micro-batch's gradient is not added to it.
void GradientChunks::StashPartial(Slot& slot) {
  if (slot.parameter->has_grad()) {
    slot.partials.push_back({slot.parameter->grad(), slot.level});
    slot.parameter->set_grad(Tensor());
  } else {
    slot.partials.clear();  // zero_grad discarded the window so far
  }
  slot.level = 0;
}

// Works like carrying in a binary counter: two sums of equal size become one of twice the size.
void GradientChunks::MergePartials(Slot& slot) {
  while (!slot.partials.empty() && slot.partials.back().level == slot.level) {
    ops::Accumulate(slot.parameter->grad(), slot.partials.back().sum);
    slot.partials.pop_back();
    ++slot.level;
  }
}

// If this micro-batch had no gradient for the parameter, the sum set aside is its gradient again.
void GradientChunks::RestorePartial(Slot& slot) {
  if (slot.parameter->has_grad() || slot.partials.empty()) return;
  slot.parameter->set_grad(slot.partials.back().sum);
  slot.level = slot.partials.back().level;
  slot.partials.pop_back();
}

// Adds up the open branches of the tree, smallest first.
void GradientChunks::FoldPartials(Slot& slot) {
  RestorePartial(slot);
  for (; !slot.partials.empty(); slot.partials.pop_back()) {
    ops::Accumulate(slot.parameter->grad(), slot.partials.back().sum);
  }
  slot.level = 0;
}

}  // namespace apogee::chunk
