// SPDX-License-Identifier: Apache-2.0

// Embedding lookup and its gradient. Backward groups the tokens by id (a counting sort), so that
// each row of the table adds up its own tokens in order. dweight is written once, dy is read once,
// and no floating-point number is added by an atomic operation.
#include "apogee/tensor/cuda/device/device.cuh"
#include "apogee/tensor/cuda/device/divisor.cuh"
#include "apogee/tensor/cuda/device/launch.cuh"
#include "apogee/tensor/cuda/device/vector_loop.cuh"
#include "apogee/tensor/cuda/kernels.h"

namespace apogee::cuda {
namespace {

// The rows of the table that this part holds.
struct Held {
  const int64_t* ids;
  int64_t first, vocab;
  int64_t padding_id = -1;

  // The row of token i. It is outside of [0, vocab) if it is in another part, or for padding.
  __device__ int64_t Row(int64_t i) const {
    const int64_t id = ids[i];
    return id == padding_id ? -1 : id - first;
  }
  __device__ bool Has(int64_t row) const { return row >= 0 && row < vocab; }
};

// Copies rows of the table without conversion, in elements of type Unit.
template <typename Unit>
void Gather(const DeviceContext& context, const EmbeddingForwardArgs& args, int64_t row_bytes) {
  const Unit* weight = static_cast<const Unit*>(args.weight);
  Unit* y = static_cast<Unit*>(args.y);
  const int64_t units = row_bytes / static_cast<int64_t>(sizeof(Unit));
  const Held held{args.ids, args.first, args.vocab};
  const WideDivisor per_row(units, args.n * units);
  ForEach(context, args.n * units, [=] __device__(int64_t at) {
    const int64_t i = per_row.Divide(at), column = at - i * per_row.value;
    const int64_t row = held.Row(i);
    y[at] = held.Has(row) ? weight[row * per_row.value + column] : Unit{};
  });
}

constexpr int kScanThreads = 1024;

// offsets[v] = counts[0] + ... + counts[v - 1] for v in [0, vocab], by one block. Each thread adds
// up its stretch, then the threads' sums are scanned in shared memory.
__global__ void __launch_bounds__(kScanThreads)
    ScanKernel(const uint32_t* counts, uint32_t* offsets, int64_t vocab) {
  __shared__ uint32_t before[kScanThreads];
  const int64_t stretch = (vocab + kScanThreads - 1) / kScanThreads;
  const int64_t begin = min(threadIdx.x * stretch, vocab), end = min(begin + stretch, vocab);
  uint32_t mine = 0;
#pragma unroll 8
  for (int64_t v = begin; v < end; ++v) mine += counts[v];
  before[threadIdx.x] = mine;
  __syncthreads();
  for (unsigned distance = 1; distance < kScanThreads; distance *= 2) {
    const uint32_t more = threadIdx.x >= distance ? before[threadIdx.x - distance] : 0;
    __syncthreads();
    before[threadIdx.x] += more;
    __syncthreads();
  }
  uint32_t offset = before[threadIdx.x] - mine;
#pragma unroll 8
  for (int64_t v = begin; v < end; ++v) {
    offsets[v] = offset;
    offset += counts[v];
  }
  if (threadIdx.x == kScanThreads - 1) offsets[vocab] = offset;
}

// The tokens of row v are tokens[offsets[v]] to tokens[offsets[v + 1] - 1], ascending. 32 bits are
// enough to count tokens: the ids of 2^32 tokens would take 32 GB.
struct Groups {
  uint32_t* counts;
  uint32_t* offsets;
  uint32_t* places;  // of token i within its row, in arbitrary order
  uint32_t* unordered;
  uint32_t* tokens;

  static int64_t Words(int64_t n, int64_t vocab) { return 2 * vocab + 1 + 3 * n; }
  Groups(uint32_t* words, int64_t n, int64_t vocab)
      : counts(words),
        offsets(counts + vocab),
        places(offsets + vocab + 1),
        unordered(places + n),
        tokens(unordered + n) {}
};

void GroupById(const DeviceContext& context, const Held& held, int64_t n, const Groups& groups) {
  const StreamContext& gpu = StreamContext::Of(context);
  gpu.Use();
  CheckCuda(cudaMemsetAsync(groups.counts, 0, static_cast<size_t>(held.vocab) * sizeof(uint32_t),
                            gpu.stream()),
            "cudaMemsetAsync");
  ForEach(context, n, [=] __device__(int64_t i) {
    const int64_t row = held.Row(i);
    if (held.Has(row)) groups.places[i] = atomicAdd(groups.counts + row, 1u);
  });
  Launch(context, {.blocks = {1}, .threads = {kScanThreads}}, &ScanKernel, groups.counts,
         groups.offsets, held.vocab);
  ForEach(context, n, [=] __device__(int64_t i) {
    const int64_t row = held.Row(i);
    if (held.Has(row)) groups.unordered[groups.offsets[row] + groups.places[i]] = uint32_t(i);
  });
  // A token's final place is the number of earlier tokens in its row.
  ForEach(context, n, [=] __device__(int64_t i) {
    const int64_t row = held.Row(i);
    if (!held.Has(row)) return;
    const uint32_t begin = groups.offsets[row], end = groups.offsets[row + 1];
    uint32_t earlier = 0;
#pragma unroll 8
    for (uint32_t p = begin; p < end; ++p) earlier += groups.unordered[p] < i ? 1 : 0;
    groups.tokens[begin + earlier] = uint32_t(i);
  });
}

// A thread per kCount columns of a row. Every row is written, so dweight need not be zeroed first.
template <typename T, typename G, int kCount>
__global__ void __launch_bounds__(256)
    SumTokensKernel(const T* dy, G* dweight, const uint32_t* offsets, const uint32_t* tokens,
                    int64_t n, WideDivisor vectors) {
  using C =
      std::conditional_t<std::is_same_v<T, double> || std::is_same_v<G, double>, double, float>;
  constexpr int kBatch = 8;  // tokens whose loads are in flight at once
  const int64_t at = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (at >= n) return;
  const int64_t row = vectors.Divide(at);
  const int64_t dim = vectors.value * kCount;
  dy += (at - row * vectors.value) * kCount;
  const uint32_t end = offsets[row + 1];
  uint32_t p = offsets[row];
  C sums[kCount] = {};
  for (; p + kBatch <= end; p += kBatch) {
    Vector<T, kCount> values[kBatch];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) values[j] = LoadVector<kCount>(dy + tokens[p + j] * dim);
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
#pragma unroll
      for (int k = 0; k < kCount; ++k) sums[k] += static_cast<C>(Load(values[j].at + k));
    }
  }
  for (; p < end; ++p) {
    const Vector<T, kCount> values = LoadVector<kCount>(dy + tokens[p] * dim);
#pragma unroll
    for (int k = 0; k < kCount; ++k) sums[k] += static_cast<C>(Load(values.at + k));
  }
  Vector<G, kCount> result;
#pragma unroll
  for (int k = 0; k < kCount; ++k) result.at[k] = Cast<G>(sums[k]);
  StoreVector(dweight + at * kCount, result);
}

template <typename T, typename G>
void EmbeddingBackward(const DeviceContext& context, const EmbeddingBackwardArgs& args) {
  const T* dy = static_cast<const T*>(args.dy);
  G* dweight = static_cast<G*>(args.dweight);
  const Workspace workspace(
      context, Groups::Words(args.n, args.vocab) * static_cast<int64_t>(sizeof(uint32_t)));
  const Groups groups(workspace.data<uint32_t>(), args.n, args.vocab);
  GroupById(context, {args.ids, args.first, args.vocab, args.padding_id}, args.n, groups);
  const auto launch = [&](auto kernel, int count) {
    const int64_t vectors = args.dim / count, n = args.vocab * vectors;
    Launch(context, {.blocks = {static_cast<unsigned>(CeilDiv(n, 256))}}, kernel, dy, dweight,
           groups.offsets, groups.tokens, n, WideDivisor(vectors, n));
  };
  constexpr int kCount = kWidth<T, G>;
  if (IsAligned16(dy, dweight) && args.dim % kCount == 0) {
    launch(&SumTokensKernel<T, G, kCount>, kCount);
  } else {
    launch(&SumTokensKernel<T, G, 1>, 1);
  }
}

}  // namespace

void embedding_forward(const DeviceContext& context, const EmbeddingForwardArgs& args) {
  if (args.n == 0 || args.dim == 0) return;
  const int64_t row_bytes = args.dim * DTypeSize(args.dtype);
  if (IsAligned16(args.weight, args.y) && row_bytes % 16 == 0) {
    return Gather<uint4>(context, args, row_bytes);
  }
  switch (DTypeSize(args.dtype)) {
    case 2:
      return Gather<uint16_t>(context, args, row_bytes);
    case 4:
      return Gather<uint32_t>(context, args, row_bytes);
    default:
      return Gather<uint64_t>(context, args, row_bytes);
  }
}

void embedding_backward(const DeviceContext& context, const EmbeddingBackwardArgs& args) {
  if (args.vocab == 0 || args.dim == 0) return;
  DispatchFloat(args.dtype, "embedding_backward", [&]<typename T>() {
    DispatchFloat(args.grad_dtype, "embedding_backward",
                  [&]<typename G>() { EmbeddingBackward<T, G>(context, args); });
  });
}

}  // namespace apogee::cuda
