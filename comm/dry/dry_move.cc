// SPDX-License-Identifier: Apache-2.0

// Dry collectives: the movement of small data.
#include <cstring>

#include "apogee/comm/dry/dry_world.h"
#include "apogee/comm/tree_reduce.h"

namespace apogee::comm::dry {
namespace {

char* BytesAt(const Tensor& tensor, int64_t offset) {
  return static_cast<char*>(tensor.raw()) + offset;
}

void CopyBytes(char* to, const char* from, int64_t bytes) {
  if (to != from && bytes > 0) std::memmove(to, from, static_cast<size_t>(bytes));
}

void Reduce(const std::vector<CollectiveCall>& calls, const std::vector<int>& running) {
  const CollectiveCall& first = calls[static_cast<size_t>(running[0])];
  const DType dtype = first.input.dtype();
  const bool scatter = first.kind == CollectiveKind::kReduceScatter;
  const auto size = static_cast<int64_t>(calls.size());
  const int64_t count = scatter ? first.input.numel() / size : first.input.numel();
  const auto reduce = [&](int64_t begin, std::vector<void*> outputs) {
    std::vector<const void*> inputs;
    for (const CollectiveCall& call : calls) {
      inputs.push_back(BytesAt(call.input, begin * DTypeSize(dtype)));
    }
    TreeReduce(CollectiveName(first.kind), dtype, first.op, inputs, outputs, count);
  };
  if (scatter) {
    // An output may be a part of an input, but only of the part that this rank alone reads.
    for (const int r : running) {
      reduce(count * r, {calls[static_cast<size_t>(r)].output.raw()});
    }
    return;
  }
  std::vector<void*> outputs;
  for (const int r : running) {
    if (first.kind == CollectiveKind::kAllReduce || r == first.root) {
      outputs.push_back(calls[static_cast<size_t>(r)].output.raw());
    }
  }
  if (!outputs.empty()) reduce(0, outputs);
}

void Gather(const std::vector<CollectiveCall>& calls, const CollectiveCall& mine) {
  const int64_t bytes = mine.input.bytes();
  // In place, the own input is a part of the output; it is at the same place there.
  for (size_t r = 0; r < calls.size(); ++r) {
    CopyBytes(BytesAt(mine.output, static_cast<int64_t>(r) * bytes), BytesAt(calls[r].input, 0),
              bytes);
  }
}

void Exchange(const std::vector<CollectiveCall>& calls, size_t index) {
  const CollectiveCall& mine = calls[index];
  const int64_t slice = mine.input.bytes() / static_cast<int64_t>(calls.size());
  for (size_t r = 0; r < calls.size(); ++r) {
    CopyBytes(BytesAt(mine.output, static_cast<int64_t>(r) * slice),
              BytesAt(calls[r].input, static_cast<int64_t>(index) * slice), slice);
  }
}

}  // namespace

bool Moves(const CollectiveCall& call) {
  if (!call.input_counts.empty()) return false;  // rows of activations
  const Tensor& any = call.input.defined() ? call.input : call.output;
  if (!any.defined() || any.bytes() > (any.dtype() == DType::kU8 ? kDryTextBytes : kDryBytes)) {
    return false;
  }
  // Small shards of a large chunk are not what ranks agree on.
  return call.kind != CollectiveKind::kAllGather || call.output.bytes() <= kDryBytes ||
         !IsModelData(call.output.storage()->category());
}

void MoveSmall(const std::vector<CollectiveCall>& calls, const std::vector<int>& running) {
  const CollectiveCall& first = calls[static_cast<size_t>(running[0])];
  switch (first.kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kReduce:
      return Reduce(calls, running);
    case CollectiveKind::kAllGather:
      for (const int r : running) Gather(calls, calls[static_cast<size_t>(r)]);
      return;
    case CollectiveKind::kBroadcast:
      for (const int r : running) {
        const Tensor& source = calls[static_cast<size_t>(first.root)].input;
        CopyBytes(BytesAt(calls[static_cast<size_t>(r)].output, 0), BytesAt(source, 0),
                  source.bytes());
      }
      return;
    case CollectiveKind::kAllToAll:
      for (const int r : running) Exchange(calls, static_cast<size_t>(r));
      return;
    case CollectiveKind::kSend:
    case CollectiveKind::kRecv:
      if (calls[0].input.defined() && calls[1].output.defined()) {
        CopyBytes(BytesAt(calls[1].output, 0), BytesAt(calls[0].input, 0), calls[0].input.bytes());
      }
      return;
    case CollectiveKind::kBarrier:
      return;
  }
}

}  // namespace apogee::comm::dry
