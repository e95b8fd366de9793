// SPDX-License-Identifier: Apache-2.0

#include "apogee/comm/nccl/gpu_call.h"

#include <utility>

#include "apogee/comm/device_backend.h"

namespace apogee::comm::nccl {
namespace {

const Tensor& AnyOf(const CollectiveCall& call) {
  return call.input.defined() ? call.input : call.output;
}

}  // namespace

GpuCall::GpuCall(CollectiveCall call, int rank, int size)
    : kind_(call.kind), op_(call.op), dtype_(AnyOf(call).dtype()), call_(std::move(call)) {
  for (const Tensor* tensor : {&call_.input, &call_.output}) {
    if (!tensor->defined()) continue;
    const bool known = !contexts_.empty() && contexts_.front() == tensor->context();
    if (!known) contexts_.push_back(tensor->context());
  }
  const int64_t bytes = MakeSteps(call_, nullptr, rank, size).scratch_bytes;
  if (bytes > 0) {
    scratch_ =
        Tensor::Empty({bytes}, DType::kU8, contexts_.front(), MemoryCategory::kCommunication);
  }
  steps_ = MakeSteps(call_, scratch_.defined() ? scratch_.raw() : nullptr, rank, size);
  // After the scratch: work that is still queued may use its memory.
  for (const ContextPtr& context : contexts_) {
    ready_.push_back(std::make_unique<const cuda::StreamMark>(*context));
  }
}

OperationPtr GpuCall::Submit(Communicator& communicator, const ContextPtr& context) {
  for (const Step& step : steps_.steps) {
    APOGEE_CHECK(step.reductions.empty() || IsFloat(dtype_), CollectiveName(kind_),
                 ": sums of integers are not supported; use f32 or f64");
  }
  span_.reset(new TraceSpan(TraceCall(call_)));
  OperationPtr last;
  for (size_t i = 0; i < steps_.steps.size(); ++i) {
    const bool is_last = i + 1 == steps_.steps.size();
    const auto mark = std::make_shared<std::shared_ptr<const cuda::StreamMark>>();
    Call call = steps_.steps[i].call;
    call.stream = cuda::StreamOf(*context);
    if (i == 0) call.before = [self = shared_from_this(), context] { self->Before(*context); };
    call.after = [self = shared_from_this(), context, mark, i, is_last] {
      self->Reduce(*context, self->steps_.steps[i].reductions);
      *mark = std::make_shared<const cuda::StreamMark>(*context);
      if (is_last) self->SetDone(*mark);
    };
    call.is_complete = [self = shared_from_this(), mark, is_last] {
      const bool complete = (*mark)->IsReached();
      if (complete && is_last) self->Complete();
      return complete;
    };
    last = communicator.Submit(std::move(call));
  }
  return last;
}

void GpuCall::Before(const DeviceContext& context) const {
  for (const auto& mark : ready_) mark->MakeWait(context);
  for (const Steps::Copy& copy : steps_.copies) {
    context.CopyWithin(copy.to, copy.from, copy.bytes);
  }
}

void GpuCall::Reduce(const DeviceContext& context, const std::vector<Reduction>& reductions) const {
  for (const Reduction& reduction : reductions) {
    TreeReduceOn(context, CollectiveName(kind_), dtype_, op_, reduction.inputs,
                 {&reduction.output, 1}, reduction.count);
  }
}

void GpuCall::SetDone(std::shared_ptr<const cuda::StreamMark> mark) {
  std::lock_guard lock(mutex_);
  done_ = std::move(mark);
}

void GpuCall::Join() {
  std::shared_ptr<const cuda::StreamMark> done;
  {
    std::lock_guard lock(mutex_);
    done = done_;
  }
  for (const ContextPtr& context : std::exchange(contexts_, {})) done->MakeWait(*context);
  DropTensors();
}

void GpuCall::Complete() {
  span_.reset();
  DropTensors();
}

// Outside of the lock, because destroying a context with its last tensor waits for its stream.
void GpuCall::DropTensors() {
  CollectiveCall call = {};
  Tensor scratch;
  std::lock_guard lock(mutex_);
  std::swap(call, call_);
  std::swap(scratch, scratch_);
}

}  // namespace apogee::comm::nccl
