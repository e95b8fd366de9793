// The data movement of the local collectives.
#include <algorithm>
#include <bit>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "apogee/comm/local/operation.h"

namespace apogee::comm::local {
namespace {

// Elements of a share boundary are kept on 64-byte lines, so that two shares never write one line.
int64_t ShareBegin(int64_t count, size_t index, size_t size, int64_t element_bytes) {
  const int64_t line = 64 / element_bytes;
  const int64_t lines = (count + line - 1) / line;
  return std::min(count, lines * static_cast<int64_t>(index) / static_cast<int64_t>(size) * line);
}

// One reduction, known when the loops are compiled.
template <ReduceOp kOp>
struct Combine {
  template <typename C>
  C operator()(C a, C b) const {
    if constexpr (kOp == ReduceOp::kSum) {
      return a + b;
    } else {
      return a != a || a > b ? a : b;  // NaN wins
    }
  }
};

// Elements that are reduced at a time: their sums and partial sums stay in the first-level cache.
constexpr int64_t kBlock = 1024;

// sum = a balanced binary tree over the inputs, ((r0 + r1) + (r2 + r3)) + …, in the compute type.
// `scratch` has a block for each level of the tree. sum never is an input, so the loops need no check
// for overlap and run in vectors.
template <ReduceOp kOp, typename T, typename C = ComputeType<T>>
void TreeReduce(std::span<const T* const> inputs, int64_t begin, int64_t count, C* __restrict sum,
                C* __restrict scratch) {
  constexpr Combine<kOp> combine;
  auto at = [&](size_t r) { return inputs[r] + begin; };
  switch (inputs.size()) {
    case 1: {
      const T* a = at(0);
      for (int64_t i = 0; i < count; ++i) sum[i] = static_cast<C>(a[i]);
      return;
    }
    case 2: {
      const T *a = at(0), *b = at(1);
      for (int64_t i = 0; i < count; ++i) {
        sum[i] = combine(static_cast<C>(a[i]), static_cast<C>(b[i]));
      }
      return;
    }
    case 3: {
      const T *a = at(0), *b = at(1), *c = at(2);
      for (int64_t i = 0; i < count; ++i) {
        sum[i] = combine(combine(static_cast<C>(a[i]), static_cast<C>(b[i])), static_cast<C>(c[i]));
      }
      return;
    }
    case 4: {
      const T *a = at(0), *b = at(1), *c = at(2), *d = at(3);
      for (int64_t i = 0; i < count; ++i) {
        sum[i] = combine(combine(static_cast<C>(a[i]), static_cast<C>(b[i])),
                         combine(static_cast<C>(c[i]), static_cast<C>(d[i])));
      }
      return;
    }
  }
  // The left half is the largest power of two below the size: a tree over 2k ranks is then made of
  // the trees over its halves, whatever the number of ranks.
  const size_t left = std::bit_floor(inputs.size() - 1);
  TreeReduce<kOp, T>(inputs.first(left), begin, count, sum, scratch + kBlock);
  TreeReduce<kOp, T>(inputs.subspan(left), begin, count, scratch, scratch + kBlock);
  for (int64_t i = 0; i < count; ++i) sum[i] = combine(sum[i], scratch[i]);
}

// Reduces elements [begin, end) of all inputs into each of `outputs`, which may be the inputs.
template <ReduceOp kOp, typename T>
void ReduceRange(std::span<const T* const> inputs, std::span<T* const> outputs, int64_t begin,
                 int64_t end, int64_t output_begin) {
  using C = ComputeType<T>;
  alignas(64) C sum[kBlock];
  std::vector<C> scratch(
      inputs.size() <= 4 ? 0 : kBlock * static_cast<size_t>(std::bit_width(inputs.size())));
  for (int64_t at = begin; at < end; at += kBlock) {
    const int64_t count = std::min(kBlock, end - at);
    TreeReduce<kOp, T>(inputs, at, count, sum, scratch.data());
    for (T* output : outputs) {
      T* __restrict out = output + output_begin + (at - begin);
      if constexpr (std::is_same_v<T, C>) {
        std::memcpy(out, sum, static_cast<size_t>(count) * sizeof(T));
      } else {
        for (int64_t i = 0; i < count; ++i) out[i] = static_cast<T>(sum[i]);
      }
    }
  }
}

template <typename T>
void Reduce(ReduceOp op, std::span<const T* const> inputs, std::span<T* const> outputs,
            int64_t begin, int64_t end, int64_t output_begin) {
  if (op == ReduceOp::kSum) {
    ReduceRange<ReduceOp::kSum, T>(inputs, outputs, begin, end, output_begin);
  } else {
    ReduceRange<ReduceOp::kMax, T>(inputs, outputs, begin, end, output_begin);
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
    Reduce<T>(first.op, inputs, std::span<T* const>(&output, 1), begin, begin + slice, 0);
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
  Reduce<T>(first.op, inputs, outputs, begin, end, begin);
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
