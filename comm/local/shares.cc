// SPDX-License-Identifier: Apache-2.0

// Local collectives: the movement of data.
#include <vector>

#include "apogee/comm/device_backend.h"
#include "apogee/comm/local/operation.h"
#include "apogee/comm/tree_reduce.h"

namespace apogee::comm::local {
namespace {

char* BytesAt(const Tensor& tensor, int64_t offset) {
  return static_cast<char*>(tensor.raw()) + offset;
}

const ContextPtr& ContextOf(const CollectiveCall& call) {
  return (call.output.defined() ? call.output : call.input).context();
}

void ReduceShare(const Operation& operation, size_t index) {
  const size_t size = operation.calls.size();
  const CollectiveCall& first = operation.calls[0];
  const DType dtype = first.input.dtype();
  const int64_t count = first.input.numel(), element_bytes = DTypeSize(dtype);
  const bool scatter = first.kind == CollectiveKind::kReduceScatter;
  const int64_t slice = count / static_cast<int64_t>(size);
  const int64_t begin =
      scatter ? slice * static_cast<int64_t>(index) : ShareBegin(count, index, size, element_bytes);
  const int64_t end = scatter ? begin + slice : ShareBegin(count, index + 1, size, element_bytes);
  std::vector<const void*> inputs;
  std::vector<void*> outputs;
  for (size_t r = 0; r < size; ++r) {
    const CollectiveCall& call = operation.calls[r];
    inputs.push_back(BytesAt(call.input, begin * element_bytes));
    if (scatter) {
      if (r == index) outputs.push_back(call.output.raw());
    } else if (first.kind == CollectiveKind::kAllReduce || static_cast<int>(r) == first.root) {
      outputs.push_back(BytesAt(call.output, begin * element_bytes));
    }
  }
  const DeviceContext& context = *ContextOf(operation.calls[index]);
  TreeReduceOn(context, CollectiveName(first.kind), dtype, first.op, inputs, outputs, end - begin);
}

// Ranks of one process read each other's memory, so all tensors must be on the host or on one GPU.
void CheckOneDevice(const Operation& operation) {
  const Device first = ContextOf(operation.calls[0])->device();
  for (const CollectiveCall& call : operation.calls) {
    const Device device = ContextOf(call)->device();
    APOGEE_CHECK(device == first, CollectiveName(call.kind), ": the tensors of ranks are on ",
                 first.ToString(), " and on ", device.ToString(),
                 "; ranks that are threads must use one device");
  }
}

void MoveData(const Operation& operation, size_t index) {
  const CollectiveCall& mine = operation.calls[index];
  const auto copy = [&](void* to, const void* from, int64_t bytes) {
    if (to != from) ContextOf(mine)->CopyWithin(to, from, bytes);
  };
  switch (mine.kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kReduce:
      ReduceShare(operation, index);
      return;
    case CollectiveKind::kAllGather:
      for (size_t r = 0; r < operation.calls.size(); ++r) {
        const Tensor& input = operation.calls[r].input;
        copy(BytesAt(mine.output, static_cast<int64_t>(r) * input.bytes()), input.raw(),
             input.bytes());
      }
      return;
    case CollectiveKind::kBroadcast: {
      const Tensor& source = operation.calls[static_cast<size_t>(mine.root)].input;
      copy(mine.output.raw(), source.raw(), source.bytes());
      return;
    }
    case CollectiveKind::kAllToAll: {
      const size_t size = operation.calls.size();
      const int64_t element = DTypeSize(mine.input.dtype());
      for (size_t r = 0; r < size; ++r) {
        const ToAllPart from = InputPart(operation.calls[r], index, size);
        const ToAllPart to = OutputPart(mine, r, size);
        APOGEE_CHECK(from.count == to.count, "all_to_all: member ", r, " of the group sends ",
                     from.count, " elements to member ", index, ", which expects ", to.count);
        if (to.count == 0) continue;
        copy(BytesAt(mine.output, to.begin * element),
             BytesAt(operation.calls[r].input, from.begin * element), to.count * element);
      }
      return;
    }
    case CollectiveKind::kSend:
      return;  // the receiver's share does the copy
    case CollectiveKind::kRecv:
      copy(mine.output.raw(), operation.calls[1 - index].input.raw(), mine.output.bytes());
      return;
    case CollectiveKind::kBarrier:
      return;
  }
}

}  // namespace

void RunShare(const Operation& operation, size_t index) {
  if (operation.calls[index].kind == CollectiveKind::kBarrier) return;
  CheckOneDevice(operation);
  MoveData(operation, index);
  // Other ranks use the data written by this share, so it must be complete, not only queued on this
  // rank's stream.
  ContextOf(operation.calls[index])->Synchronize();
}

int64_t BytesMoved(const Operation& operation) {
  int64_t bytes = 0;
  for (const CollectiveCall& call : operation.calls) {
    if (call.input.defined()) bytes += call.input.bytes();
    if (call.output.defined()) bytes += call.output.bytes();
  }
  return bytes;
}

}  // namespace apogee::comm::local
