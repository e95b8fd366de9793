// The data movement of the local collectives.
#include <algorithm>
#include <cstring>
#include <span>

#include "apogee/comm/local/operation.h"

namespace apogee::comm::local {
namespace {

constexpr size_t kMaxFused = 8;

// Elements of a share boundary are kept on 64-byte lines, so that two shares never write one line.
int64_t ShareBegin(int64_t count, size_t index, size_t size, int64_t element_bytes) {
  const int64_t line = 64 / element_bytes;
  const int64_t lines = (count + line - 1) / line;
  return std::min(count, lines * static_cast<int64_t>(index) / static_cast<int64_t>(size) * line);
}

template <typename T>
ComputeType<T> Combine(ReduceOp op, ComputeType<T> a, ComputeType<T> b) {
  if (op == ReduceOp::kSum) return a + b;
  return a != a || a > b ? a : b;  // NaN wins
}

// Block-wise, so that partial sums stay in the first-level cache: a balanced binary tree over the
// ranks,
// ((r0 + r1) + (r2 + r3)) + …, in the compute type.
template <typename T>
void TreeReduce(ReduceOp op, std::span<const T* const> inputs, int64_t begin, int64_t count,
                ComputeType<T>* sum, ComputeType<T>* scratch) {
  using C = ComputeType<T>;
  if (inputs.size() == 1) {
    for (int64_t i = 0; i < count; ++i) sum[i] = static_cast<C>(inputs[0][begin + i]);
    return;
  }
  if (inputs.size() == 2) {
    const T* a = inputs[0] + begin;
    const T* b = inputs[1] + begin;
    for (int64_t i = 0; i < count; ++i) {
      sum[i] = Combine<T>(op, static_cast<C>(a[i]), static_cast<C>(b[i]));
    }
    return;
  }
  // The left half is the largest power of two below the size: a tree over 2k ranks is then made of
  // the trees over its halves, whatever the number of ranks.
  size_t left = 1;
  while (left * 2 < inputs.size()) left *= 2;
  TreeReduce<T>(op, inputs.first(left), begin, count, sum, scratch + count);
  TreeReduce<T>(op, inputs.subspan(left), begin, count, scratch, scratch + count);
  for (int64_t i = 0; i < count; ++i) sum[i] = Combine<T>(op, sum[i], scratch[i]);
}

// Reduces elements [begin, end) of all inputs into each of `outputs`, which may be the inputs.
template <typename T>
void ReduceRange(ReduceOp op, std::span<const T* const> inputs, std::span<T* const> outputs,
                 int64_t begin, int64_t end, int64_t output_begin) {
  using C = ComputeType<T>;
  constexpr int64_t kBlock = 1024;
  C sum[kBlock];
  C scratch[kBlock * kMaxFused];
  for (int64_t at = begin; at < end; at += kBlock) {
    const int64_t count = std::min(kBlock, end - at);
    TreeReduce<T>(op, inputs, at, count, sum, scratch);
    for (T* output : outputs) {
      T* out = output + output_begin + (at - begin);
      for (int64_t i = 0; i < count; ++i) out[i] = static_cast<T>(sum[i]);
    }
  }
}

template <typename T>
void ReduceShare(const Operation& operation, size_t index) {
  const size_t size = operation.calls.size();
  const CollectiveCall& first = operation.calls[0];
  std::vector<const T*> inputs;
  for (const CollectiveCall& call : operation.calls) inputs.push_back(call.input.data<T>());
  const int64_t count = first.input.numel();
  if (first.kind == CollectiveKind::kReduceScatter) {
    const int64_t slice = count / static_cast<int64_t>(size);
    T* output = operation.calls[index].output.data<T>();
    const int64_t begin = slice * static_cast<int64_t>(index);
    ReduceRange<T>(first.op, inputs, std::span<T* const>(&output, 1), begin, begin + slice, 0);
    return;
  }
  const int64_t begin = ShareBegin(count, index, size, sizeof(T));
  const int64_t end = ShareBegin(count, index + 1, size, sizeof(T));
  std::vector<T*> outputs;
  for (size_t r = 0; r < size; ++r) {
    const bool wanted =
        first.kind == CollectiveKind::kAllReduce || static_cast<int>(r) == first.root;
    if (wanted) outputs.push_back(operation.calls[r].output.data<T>());
  }
  ReduceRange<T>(first.op, inputs, outputs, begin, end, begin);
}

void Copy(void* to, const void* from, int64_t bytes) {
  if (to != from && bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
}

}  // namespace

void RunShare(const Operation& operation, size_t index) {
  const CollectiveCall& mine = operation.calls[index];
  auto bytes_at = [](const Tensor& tensor, int64_t offset) {
    return static_cast<char*>(tensor.raw()) + offset;
  };
  switch (mine.kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kReduce:
      DispatchAny(mine.input.dtype(), CollectiveName(mine.kind), [&]<typename T>() {
        if constexpr (std::is_integral_v<T>) {
          Throw(CollectiveName(mine.kind), ": sums of integers are not offered; use f32 or f64");
        } else {
          ReduceShare<T>(operation, index);
        }
      });
      return;
    case CollectiveKind::kAllGather:
      for (size_t r = 0; r < operation.calls.size(); ++r) {
        const Tensor& input = operation.calls[r].input;
        Copy(bytes_at(mine.output, static_cast<int64_t>(r) * input.bytes()), input.raw(),
             input.bytes());
      }
      return;
    case CollectiveKind::kBroadcast: {
      const Tensor& source = operation.calls[static_cast<size_t>(mine.root)].input;
      Copy(mine.output.raw(), source.raw(), source.bytes());
      return;
    }
    case CollectiveKind::kAllToAll: {
      const int64_t slice = mine.input.bytes() / static_cast<int64_t>(operation.calls.size());
      for (size_t r = 0; r < operation.calls.size(); ++r) {
        Copy(bytes_at(mine.output, static_cast<int64_t>(r) * slice),
             bytes_at(operation.calls[r].input, static_cast<int64_t>(index) * slice), slice);
      }
      return;
    }
    case CollectiveKind::kSend:
      return;  // the receiving share copies
    case CollectiveKind::kRecv:
      Copy(mine.output.raw(), operation.calls[1 - index].input.raw(), mine.output.bytes());
      return;
    case CollectiveKind::kBarrier:
      return;
  }
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
