// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <optional>
#include <vector>

#include "apogee/comm/device_backend.h"
#include "apogee/tensor/cuda/device/device.cuh"
#include "apogee/tensor/cuda/device/launch.cuh"

namespace apogee::comm::cuda {
namespace {

using apogee::cuda::CeilDiv;
using apogee::cuda::ForEach;
using apogee::cuda::IsAligned16;
using apogee::cuda::LoadVector;
using apogee::cuda::StoreVector;
using apogee::cuda::Vector;

// Inputs of one pass, a power of two, so that blocks of this many ranks are branches of the tree.
// More inputs take one pass per block, and one over the blocks' unrounded results.
constexpr int kMostInputs = 64;
constexpr int kMostOutputs = 64;
// Inputs that a thread loads at once.
constexpr int kLeaves = 4;
constexpr int kLevels = 5;  // log2(kMostInputs / kLeaves) + 1

struct Pointers {
  const void* inputs[kMostInputs];
  void* outputs[kMostOutputs];
  int num_inputs, num_outputs;
};

template <ReduceOp kOp, typename C>
__device__ __forceinline__ C Combine(C a, C b) {
  if constexpr (kOp == ReduceOp::kSum) {
    return a + b;
  } else {
    return a != a || a > b ? a : b;  // NaN wins
  }
}
template <ReduceOp kOp, typename C, int kWidth>
__device__ __forceinline__ void CombineInto(const Vector<C, kWidth>& a, Vector<C, kWidth>& b) {
#pragma unroll
  for (int k = 0; k < kWidth; ++k) b.at[k] = Combine<kOp>(a.at[k], b.at[k]);
}

// `kWidth` elements from `at` on, of those of the inputs [first, first + kLeaves) that exist.
template <ReduceOp kOp, typename In, typename C, int kWidth>
__device__ __forceinline__ Vector<C, kWidth> Branch(const Pointers& p, int first, int64_t at) {
  Vector<In, kWidth> raw[kLeaves] = {};
  const int count = p.num_inputs - first;
#pragma unroll
  for (int r = 0; r < kLeaves; ++r) {
    if (r < count) {
      raw[r] = LoadVector<kWidth>(static_cast<const In*>(p.inputs[first + r]) + at);
    }
  }
  Vector<C, kWidth> leaves[kLeaves];
#pragma unroll
  for (int r = 0; r < kLeaves; ++r) {
#pragma unroll
    for (int k = 0; k < kWidth; ++k) leaves[r].at[k] = static_cast<C>(raw[r].at[k]);
  }
  if (count == 1) return leaves[0];
  CombineInto<kOp>(leaves[0], leaves[1]);
  if (count == 2) return leaves[1];
  Vector<C, kWidth> right = leaves[2];
  if (count > 3) {
    CombineInto<kOp>(leaves[2], leaves[3]);
    right = leaves[3];
  }
  CombineInto<kOp>(leaves[1], right);
  return right;
}

// The tree over all inputs. Level l of `pending` is the branch over 2^l groups of leaves that waits
// for its right neighbour; it is in use if bit l of the number of finished groups is 1.
template <ReduceOp kOp, typename In, typename Out, int kWidth>
__device__ __forceinline__ void ReduceElements(const Pointers& p, int64_t at) {
  using C = ComputeType<In>;
  Vector<C, kWidth> pending[kLevels] = {};
  Vector<C, kWidth> sum = Branch<kOp, In, C, kWidth>(p, 0, at);
  for (int branch = 1; branch * kLeaves < p.num_inputs; ++branch) {
    // `sum` is group branch - 1: it moves up the tree until it is a left branch.
    bool stored = false;
#pragma unroll
    for (int level = 0; level < kLevels; ++level) {
      if (stored) continue;
      if (((branch - 1) >> level & 1) != 0) {
        CombineInto<kOp>(pending[level], sum);
      } else {
        pending[level] = sum;
        stored = true;
      }
    }
    sum = Branch<kOp, In, C, kWidth>(p, branch * kLeaves, at);
  }
  const int last = (p.num_inputs - 1) / kLeaves;
#pragma unroll
  for (int level = 0; level < kLevels; ++level) {
    if ((last >> level & 1) != 0) CombineInto<kOp>(pending[level], sum);
  }
  Vector<Out, kWidth> rounded;
#pragma unroll
  for (int k = 0; k < kWidth; ++k) rounded.at[k] = static_cast<Out>(sum.at[k]);
  for (int o = 0; o < p.num_outputs; ++o) {
    StoreVector(static_cast<Out*>(p.outputs[o]) + at, rounded);
  }
}

// At most kMostOutputs outputs. If there are more inputs than one pass takes, `inputs` are those of
// one pass.
template <ReduceOp kOp, typename In, typename Out>
void Pass(const DeviceContext& context, std::span<const void* const> inputs,
          std::span<void* const> outputs, int64_t count) {
  Pointers p{};
  std::copy(inputs.begin(), inputs.end(), p.inputs);
  std::copy(outputs.begin(), outputs.end(), p.outputs);
  p.num_inputs = static_cast<int>(inputs.size());
  p.num_outputs = static_cast<int>(outputs.size());
  const auto aligned = [](const void* pointer) { return IsAligned16(pointer); };
  if (std::ranges::all_of(inputs, aligned) && std::ranges::all_of(outputs, aligned)) {
    constexpr int kWidth = 16 / std::max(sizeof(In), sizeof(Out));
    ForEach(context, CeilDiv(count, kWidth), [=] __device__(int64_t i) {
      const int64_t at = i * kWidth;
      if (at + kWidth <= count) {
        ReduceElements<kOp, In, Out, kWidth>(p, at);
      } else {
        for (int64_t k = at; k < count; ++k) ReduceElements<kOp, In, Out, 1>(p, k);
      }
    });
  } else {
    ForEach(context, count, [=] __device__(int64_t i) { ReduceElements<kOp, In, Out, 1>(p, i); });
  }
}

template <ReduceOp kOp, typename In, typename Out>
void Reduce(const DeviceContext& context, std::span<const void* const> inputs,
            std::span<void* const> outputs, int64_t count) {
  using C = ComputeType<In>;
  const size_t num_inputs = inputs.size();
  if (num_inputs <= kMostInputs && outputs.size() <= kMostOutputs) {
    return Pass<kOp, In, Out>(context, inputs, outputs, count);
  }
  const size_t blocks = (num_inputs + kMostInputs - 1) / kMostInputs;
  const int64_t bytes = CeilDiv(count * static_cast<int64_t>(sizeof(C)), 16) * 16;
  const Workspace partials(context, bytes * static_cast<int64_t>(blocks));
  std::vector<const void*> unrounded;
  for (size_t b = 0; b < blocks; ++b) {
    const size_t first = b * kMostInputs;
    void* const partial = partials.data<char>() + static_cast<int64_t>(b) * bytes;
    unrounded.push_back(partial);
    Pass<kOp, In, C>(context,
                     inputs.subspan(first, std::min(size_t{kMostInputs}, num_inputs - first)),
                     {&partial, 1}, count);
  }
  if (blocks > kMostInputs) return Reduce<kOp, C, Out>(context, unrounded, outputs, count);
  for (size_t first = 0; first < outputs.size(); first += kMostOutputs) {
    Pass<kOp, C, Out>(
        context, unrounded,
        outputs.subspan(first, std::min(size_t{kMostOutputs}, outputs.size() - first)), count);
  }
}

}  // namespace

void TreeReduceOn(const DeviceContext& context, const char* op_name, DType dtype, ReduceOp op,
                  std::span<const void* const> inputs, std::span<void* const> outputs,
                  int64_t count) {
  APOGEE_CHECK(IsFloat(dtype), op_name, ": sums of integers are not supported; use f32 or f64");
  if (count == 0) return;
  DispatchFloat(dtype, op_name, [&]<typename T>() {
    if (op == ReduceOp::kSum) {
      Reduce<ReduceOp::kSum, T, T>(context, inputs, outputs, count);
    } else {
      Reduce<ReduceOp::kMax, T, T>(context, inputs, outputs, count);
    }
  });
}

}  // namespace apogee::comm::cuda
