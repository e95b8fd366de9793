// SPDX-License-Identifier: Apache-2.0

#include "apogee/comm/tree_reduce.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>
#include <vector>

namespace apogee::comm {
namespace {

// The reduction as a type, so that the compiler knows it inside the loops.
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

// Elements reduced at a time, so that their sums and partial sums stay in the first-level cache.
constexpr int64_t kBlock = 1024;

// sum = a balanced binary tree over the inputs, ((r0 + r1) + (r2 + r3)) + …, in the compute type.
// `scratch` has one block per level of the tree. `sum` is never an input, so the loops need no
// check for overlap and are vectorised.
template <ReduceOp kOp, typename T, typename C = ComputeType<T>>
void ReduceBlock(std::span<const T* const> inputs, int64_t begin, int64_t count, C* __restrict sum,
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
  // The left half is the largest power of two below the size. So the tree over each aligned block
  // of 2^k ranks is a branch of the whole tree, regardless of the total number of ranks.
  const size_t left = std::bit_floor(inputs.size() - 1);
  ReduceBlock<kOp, T>(inputs.first(left), begin, count, sum, scratch + kBlock);
  ReduceBlock<kOp, T>(inputs.subspan(left), begin, count, scratch, scratch + kBlock);
  for (int64_t i = 0; i < count; ++i) sum[i] = combine(sum[i], scratch[i]);
}

template <ReduceOp kOp, typename In, typename Out>
void ReduceRange(std::span<const In* const> inputs, std::span<Out* const> outputs, int64_t total) {
  using C = ComputeType<In>;
  alignas(64) C sum[kBlock];
  std::vector<C> scratch(
      inputs.size() <= 4 ? 0 : kBlock * static_cast<size_t>(std::bit_width(inputs.size())));
  for (int64_t at = 0; at < total; at += kBlock) {
    const int64_t count = std::min(kBlock, total - at);
    ReduceBlock<kOp, In>(inputs, at, count, sum, scratch.data());
    for (Out* output : outputs) {
      Out* __restrict out = output + at;
      if constexpr (std::is_same_v<Out, C>) {
        std::memcpy(out, sum, static_cast<size_t>(count) * sizeof(Out));
      } else {
        for (int64_t i = 0; i < count; ++i) out[i] = static_cast<Out>(sum[i]);
      }
    }
  }
}

template <typename In, typename Out>
void Reduce(ReduceOp op, std::span<const void* const> inputs, std::span<void* const> outputs,
            int64_t count) {
  std::vector<const In*> from;
  for (const void* input : inputs) from.push_back(static_cast<const In*>(input));
  std::vector<Out*> to;
  for (void* output : outputs) to.push_back(static_cast<Out*>(output));
  if (op == ReduceOp::kSum) {
    ReduceRange<ReduceOp::kSum, In, Out>(from, to, count);
  } else {
    ReduceRange<ReduceOp::kMax, In, Out>(from, to, count);
  }
}

// Calls fn with the C++ type of the elements.
template <typename Fn>
void DispatchSums(const char* op_name, DType dtype, const Fn& fn) {
  DispatchAny(dtype, op_name, [&]<typename T>() {
    if constexpr (std::is_integral_v<T>) {
      Throw(op_name, ": sums of integers are not supported; use f32 or f64");
    } else {
      fn.template operator()<T>();
    }
  });
}

}  // namespace

int64_t ShareBegin(int64_t count, size_t index, size_t size, int64_t element_bytes) {
  const int64_t line = 64 / element_bytes;
  const int64_t lines = (count + line - 1) / line;
  return std::min(count, lines * static_cast<int64_t>(index) / static_cast<int64_t>(size) * line);
}

void TreeReduce(const char* op_name, DType dtype, ReduceOp op, std::span<const void* const> inputs,
                std::span<void* const> outputs, int64_t count) {
  DispatchSums(op_name, dtype, [&]<typename T>() { Reduce<T, T>(op, inputs, outputs, count); });
}

DType PartialDType(DType dtype) { return dtype == DType::kF64 ? DType::kF64 : DType::kF32; }

void TreeReducePartial(const char* op_name, DType dtype, ReduceOp op,
                       std::span<const void* const> inputs, void* partial, int64_t count) {
  void* const outputs[] = {partial};
  DispatchSums(op_name, dtype,
               [&]<typename T>() { Reduce<T, ComputeType<T>>(op, inputs, outputs, count); });
}

void TreeReduceFinish(const char* op_name, DType dtype, ReduceOp op,
                      std::span<const void* const> partials, std::span<void* const> outputs,
                      int64_t count) {
  DispatchSums(op_name, dtype,
               [&]<typename T>() { Reduce<ComputeType<T>, T>(op, partials, outputs, count); });
}

}  // namespace apogee::comm
