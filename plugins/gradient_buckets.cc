#include "apogee/plugins/gradient_buckets.h"

#include <algorithm>
#include <utility>

#include "apogee/autograd/engine.h"
#include "apogee/tensor/kernel_table.h"
#include "apogee/tensor/ops/elementwise.h"

namespace apogee {
namespace {

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

GradientBuckets::GradientBuckets(std::vector<autograd::ParameterPtr> parameters,
                                 comm::GroupPtr group, const GradientBucketOptions& options)
    : group_(std::move(group)), options_(options) {
  // Backward completes the last layers' gradients first.
  std::reverse(parameters.begin(), parameters.end());
  slots_.resize(parameters.size());
  for (size_t i = 0; i < slots_.size(); ++i) {
    slots_[i].parameter = parameters[i];
    slots_[i].hook = parameters[i]->AddGradHook([this, i](autograd::Parameter&) { OnGradient(i); });
  }
  MakeBuckets();
}

GradientBuckets::~GradientBuckets() {
  for (Slot& slot : slots_) slot.parameter->RemoveGradHook(slot.hook);
}

void GradientBuckets::MakeBuckets() {
  buckets_.clear();
  trainable_.clear();
  for (size_t i = 0; i < slots_.size(); ++i) {
    const autograd::Parameter& parameter = *slots_[i].parameter;
    trainable_.push_back(parameter.requires_grad());
    if (!parameter.requires_grad()) continue;
    const DType dtype = parameter.grad_dtype();
    const int64_t limit = std::max<int64_t>(1, options_.bucket_bytes / DTypeSize(dtype));
    const int64_t numel = parameter.shape().numel();
    if (buckets_.empty() || buckets_.back().dtype != dtype ||
        (buckets_.back().numel > 0 && buckets_.back().numel + numel > limit)) {
      buckets_.push_back(
          {.dtype = dtype, .numel = 0, .slots = {}, .missing = 0, .flat = {}, .work = {}});
    }
    slots_[i].bucket = buckets_.size() - 1;
    slots_[i].offset = buckets_.back().numel;
    buckets_.back().numel += numel;
    buckets_.back().slots.push_back(i);
  }
}

void GradientBuckets::Backward(const Tensor& loss, double loss_scale, bool reduce) {
  Begin(reduce);
  struct End {  // also when backward throws
    GradientBuckets& buckets;
    ~End() { buckets.active_ = false; }
  } end{*this};
  autograd::Backward(
      loss, {.grad = Tensor::Full(loss.shape(), loss.dtype(), loss_scale, loss.context())});
  if (reduce) {
    Finish();
  } else {
    for (Slot& slot : slots_) RestorePartial(slot);
  }
}

void GradientBuckets::Begin(bool reduce) {
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].parameter->requires_grad() != trainable_[i]) {
      MakeBuckets();  // a parameter was frozen or thawed, on every rank alike
      break;
    }
  }
  for (Bucket& bucket : buckets_) {
    bucket.missing = bucket.slots.size();
    bucket.work = nullptr;
    bucket.flat = Tensor();
  }
  for (Slot& slot : slots_) {
    slot.ready = false;
    if (options_.reproducible) StashPartial(slot);
  }
  next_bucket_ = 0;
  reduce_ = reduce;
  active_ = true;
}

// The new micro-batch's gradient must not be added to a larger partial sum: that one steps aside.
void GradientBuckets::StashPartial(Slot& slot) {
  if (slot.parameter->has_grad()) {
    slot.partials.push_back({slot.parameter->grad(), slot.level});
    slot.parameter->set_grad(Tensor());
  } else {
    slot.partials.clear();  // zero_grad discarded the window so far
  }
  slot.level = 0;
}

// A counter in base two: partial sums of equal size become one of twice the size.
void GradientBuckets::MergePartials(Slot& slot) {
  while (!slot.partials.empty() && slot.partials.back().level == slot.level) {
    ops::Accumulate(slot.parameter->grad(), slot.partials.back().sum);
    slot.partials.pop_back();
    ++slot.level;
  }
}

// This micro-batch had no gradient for the parameter: what was set aside is its gradient still.
void GradientBuckets::RestorePartial(Slot& slot) {
  if (slot.parameter->has_grad() || slot.partials.empty()) return;
  slot.parameter->set_grad(slot.partials.back().sum);
  slot.level = slot.partials.back().level;
  slot.partials.pop_back();
}

// The open branches of the tree, smallest first.
void GradientBuckets::FoldPartials(Slot& slot) {
  RestorePartial(slot);
  for (; !slot.partials.empty(); slot.partials.pop_back()) {
    ops::Accumulate(slot.parameter->grad(), slot.partials.back().sum);
  }
  slot.level = 0;
}

void GradientBuckets::OnGradient(size_t index) {
  Slot& slot = slots_[index];
  APOGEE_CHECK(active_, "parameter \"", slot.parameter->name(),
               "\" got a gradient outside of booster.backward(); ranks would not average it. Call "
               "booster.backward(loss, optimizer) instead of autograd::Backward");
  if (options_.reproducible) MergePartials(slot);
  if (!reduce_ || !trainable_[index] || slot.ready) return;
  slot.ready = true;
  --buckets_[slot.bucket].missing;
  if (options_.overlap) LaunchReady();
}

void GradientBuckets::LaunchReady() {
  while (next_bucket_ < buckets_.size() && buckets_[next_bucket_].missing == 0)
    Launch(buckets_[next_bucket_++]);
}

void GradientBuckets::Launch(Bucket& bucket) {
  if (group_ == nullptr) return;
  const ContextPtr context = slots_[bucket.slots[0]].parameter->data().context();
  bucket.flat = Tensor::Empty({bucket.numel}, bucket.dtype, context, MemoryCategory::kGradient);
  for (size_t index : bucket.slots) {
    FoldPartials(slots_[index]);
    autograd::Parameter& parameter = *slots_[index].parameter;
    const Tensor part = bucket.flat.Slice(0, slots_[index].offset, parameter.shape().numel());
    if (!parameter.has_grad()) {
      part.Fill(0);
      continue;
    }
    CopyScaled(part, parameter.grad(), 1.0 / group_->size());
    parameter.set_grad(part.View(parameter.shape()));
  }
  bucket.work = group_->AllReduceAsync(bucket.flat);
}

void GradientBuckets::Finish() {
  for (Slot& slot : slots_) FoldPartials(slot);
  if (group_ == nullptr) return;
  std::vector<float> bits;
  for (const Slot& slot : slots_) bits.push_back(slot.parameter->has_grad() ? 1.0f : 0.0f);
  while (next_bucket_ < buckets_.size()) Launch(buckets_[next_bucket_++]);
  const ContextPtr context = slots_[0].parameter->data().context();
  const Tensor presence =
      Tensor::FromVector<float>(bits, {static_cast<int64_t>(bits.size())}, context);
  const auto presence_work = group_->AllReduceAsync(presence, comm::ReduceOp::kMax);
  for (Bucket& bucket : buckets_) bucket.work->Wait();
  presence_work->Wait();
  const std::vector<float> present = presence.ToVector<float>();
  for (size_t i = 0; i < slots_.size(); ++i) {
    autograd::Parameter& parameter = *slots_[i].parameter;
    if (!trainable_[i] || present[i] == 0 || parameter.has_grad()) continue;
    const Tensor& flat = buckets_[slots_[i].bucket].flat;
    parameter.set_grad(
        flat.Slice(0, slots_[i].offset, parameter.shape().numel()).View(parameter.shape()));
  }
  for (Bucket& bucket : buckets_) {  // the gradients' views keep the memory
    bucket.work = nullptr;
    bucket.flat = Tensor();
  }
}

}  // namespace apogee
