// SPDX-License-Identifier: Apache-2.0

#include "apogee/tensor/graph_recorder.h"

#include <algorithm>

#include "apogee/core/error.h"
#include "apogee/tensor/ops/check.h"

namespace apogee {
namespace {

// `count` elements of a contiguous tensor, from `offset` on, as [count].
Tensor ElementsOf(const Tensor& tensor, int64_t offset, int64_t count) {
  return tensor.View({tensor.numel()}).Slice(0, offset, count);
}

}  // namespace

void GraphRecorder::AddInput(const Tensor& device, const Tensor& host) {
  known_.push_back({device, host, /*is_input=*/true});
}

void GraphRecorder::NoteUpload(const Tensor& device, const Tensor& host) {
  if (host.dtype() != DType::kI64) return;
  // The handle keeps the allocator from handing out the memory again; the clone keeps the values.
  known_.push_back({device.Detach(), host.Detach().Clone(), /*is_input=*/false});
}

void GraphRecorder::NoteWrite(const Tensor& tensor) {
  for (Known& known : known_) {
    if (known.device.storage() == tensor.storage()) known.is_written = true;
  }
}

GraphRecorder::Place GraphRecorder::Find(const char* op, const Tensor& tensor) const {
  for (size_t i = 0; i < known_.size(); ++i) {
    const Known& known = known_[i];
    if (known.device.storage() != tensor.storage() || known.is_written) continue;
    const int64_t offset = tensor.offset() - known.device.offset();
    if (offset < 0 || offset + tensor.numel() > known.device.numel()) continue;
    return {i, offset, tensor.numel()};
  }
  Throw(op, ": its indices would have to be read on the host, which waits for the GPU, while a ",
        "CUDA graph is captured; the graph knows the values of its inputs and of tensors copied ",
        "from the host within the capture: index with one of these, or a contiguous part of one");
}

Tensor GraphRecorder::RequireIndices(const char* op, const Tensor& indices, int64_t limit,
                                     const int64_t* ignored) {
  const Place place = Find(op, indices);
  const Known& known = known_[place.index];
  if (known.is_input) {
    index_checks_.push_back(
        {op, place, limit, ignored == nullptr ? std::nullopt : std::optional(*ignored)});
  }
  return ElementsOf(known.host, place.offset, place.count);
}

void GraphRecorder::RequireCount(const char* op, const Tensor& indices, int64_t ignored,
                                 int64_t count) {
  const Place place = Find(op, indices);
  if (known_[place.index].is_input) count_checks_.push_back({place, ignored, count});
}

void GraphRecorder::CheckIndices(std::span<const Tensor> values) const {
  for (const IndexCheck& check : index_checks_) {
    const Place& place = check.place;
    ops::CheckIndexValues(check.op, ElementsOf(values[place.index], place.offset, place.count),
                          check.limit, check.ignored ? &*check.ignored : nullptr);
  }
}

bool GraphRecorder::Takes(std::span<const Tensor> values) const {
  return std::ranges::all_of(count_checks_, [&](const CountCheck& check) {
    const Place& place = check.place;
    return ops::CountOthers(ElementsOf(values[place.index], place.offset, place.count),
                            check.ignored) == check.count;
  });
}

bool GraphRecorder::Reads(size_t i) const {
  const auto is_of = [i](const auto& check) { return check.place.index == i; };
  return std::ranges::any_of(index_checks_, is_of) || std::ranges::any_of(count_checks_, is_of);
}

}  // namespace apogee
