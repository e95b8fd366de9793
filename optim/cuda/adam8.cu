// SPDX-License-Identifier: Apache-2.0

// Adam with 8-bit states. A warp decodes, updates and encodes a block of codes, with its moments in
// registers; a large block is done by a block of threads.
#include "apogee/optim/cuda/device/code_tables.cuh"
#include "apogee/optim/cuda/device/gate.cuh"
#include "apogee/optim/cuda/device/runs.cuh"
#include "apogee/optim/cuda/kernels.h"

namespace apogee::optim::cuda {
namespace {

using apogee::cuda::BlockReduce;
using apogee::cuda::kWarp;
using apogee::cuda::WarpReduce;

constexpr int kPack = 4;
constexpr int kPacks = 4;
// The most codes of a block that a warp can hold.
constexpr int64_t kMostOfAWarp = int64_t{kWarp} * kPack * kPacks;
// Elements that a block of threads processes with one copy of the tables.
constexpr int64_t kElementsPerTile = 16384;

// A piece: the part of one block that is in the chunk. If the whole tensor is one block: 2048
// elements.
struct Pieces {
  int64_t block;

  __host__ __device__ int64_t step() const { return block == 0 ? 2048 : block; }
  __host__ __device__ int64_t per_tile() const {
    return step() < kElementsPerTile ? kElementsPerTile / step() : 1;
  }
  __host__ __device__ int64_t Count(const Adam8Chunk& chunk) const {
    return chunk.n == 0 ? 0 : (chunk.first + chunk.n - 1) / step() - chunk.first / step() + 1;
  }
};

// a b + c, rounded once. If the compiler chose which products to round, aligned and other chunks
// could differ, but a shard must have the same bits as the whole parameter.
template <typename C>
__device__ __forceinline__ C MultiplyAdd(C a, C b, C c) {
  if constexpr (sizeof(C) == 4) {
    return __fmaf_rn(a, b, c);
  } else {
    return fma(a, b, c);
  }
}

// kGroup: number of threads per piece, a warp or the whole block.
template <typename C, int kGroup, bool kUpdate>
struct Adam8Body {
  CodeAddresses signed_codes, unsigned_codes;
  Pieces pieces;
  DecayKind decay_kind;
  bool keep_sign;
  C shrink, beta1, rest1, beta2, rest2;

  __device__ void operator()(const Adam8Chunk& chunk, int64_t tile) const {
    __shared__ CodeTable tables[2];
    CopyTable<kTileThreads>(signed_codes, tables[0]);
    CopyTable<kTileThreads>(unsigned_codes, tables[1]);
    __syncthreads();
    const int64_t count = pieces.Count(chunk), per_tile = pieces.per_tile();
    const int64_t last = (tile + 1) * per_tile < count ? (tile + 1) * per_tile : count;
    for (int64_t p = tile * per_tile + threadIdx.x / kGroup; p < last; p += kTileThreads / kGroup) {
      DoPiece(chunk, p, tables);
    }
  }

  __device__ void DoPiece(const Adam8Chunk& chunk, int64_t p, const CodeTable* tables) const {
    const int64_t step = pieces.step(), number = chunk.first / step + p;
    const int64_t from = number * step - chunk.first, to = from + step;
    const int64_t begin = from < 0 ? 0 : from, end = to < chunk.n ? to : chunk.n;
    const int64_t block = pieces.block == 0 ? 0 : number;
    const bool aligned = begin % kPack == 0 && AreAligned(chunk.weight, chunk.grad, chunk.working,
                                                          chunk.codes1, chunk.codes2);
    const int64_t lane = threadIdx.x % kGroup;
    Pack<C, kPack> moment1[kPacks] = {}, moment2[kPacks] = {};
    const C absmax1 = static_cast<const C*>(chunk.absmax1)[block];
    const C absmax2 = static_cast<const C*>(chunk.absmax2)[block];
    DeviceScale<C> grad_scale(chunk.grad_scale);
    if (!grad_scale.Open()) {
      if constexpr (!kUpdate) {
        RaiseTo(chunk.new_absmax1, block, BitsOfMagnitude(absmax1));
        RaiseTo(chunk.new_absmax2, block, BitsOfMagnitude(absmax2));
      }
      return;
    }
#pragma unroll
    for (int q = 0; q < kPacks; ++q) {
      ForRun<kPack>(begin + (q * kGroup + lane) * kPack, end, aligned, [&](const auto& at) {
        const Pack<int, kPack> code1 = at.template Load<int>(chunk.codes1);
        const Pack<int, kPack> code2 = at.template Load<int>(chunk.codes2);
        const Pack<C, kPack> grad = LoadAs<C>(at, chunk.grad, chunk.grad_dtype);
#pragma unroll
        for (int k = 0; k < kPack; ++k) {
          if (!at.Has(k)) continue;
          const C g = grad_scale * grad.at[k];
          const C old1 = static_cast<C>(tables[0].values[code1.at[k]]) * absmax1;
          const C old2 = static_cast<C>(tables[1].values[code2.at[k]]) * absmax2;
          moment1[q].at[k] = MultiplyAdd(beta1, old1, rest1 * g);
          moment2[q].at[k] = MultiplyAdd(beta2, old2, rest2 * g * g);
        }
      });
    }
    if constexpr (!kUpdate) {
      RaiseTo(chunk.new_absmax1, block, Largest(moment1));
      RaiseTo(chunk.new_absmax2, block, Largest(moment2));
    } else {
      C largest1, largest2;
      if (chunk.new_absmax1 == nullptr) {
        largest1 = std::bit_cast<C>(Largest(moment1));
        largest2 = std::bit_cast<C>(Largest(moment2));
        if (lane == 0) {
          static_cast<C*>(chunk.absmax1)[block] = largest1;
          static_cast<C*>(chunk.absmax2)[block] = largest2;
        }
      } else {
        largest1 = static_cast<const C*>(chunk.new_absmax1)[block];
        largest2 = static_cast<const C*>(chunk.new_absmax2)[block];
      }
      const BlockEncoder<true, C> encode1(largest1, keep_sign);
      const BlockEncoder<false, C> encode2(largest2, false);
#pragma unroll
      for (int q = 0; q < kPacks; ++q) {
        ForRun<kPack>(begin + (q * kGroup + lane) * kPack, end, aligned, [&](const auto& at) {
          MoveWeights(chunk, at, moment1[q], moment2[q]);
          Pack<int, kPack> code1, code2;
#pragma unroll
          for (int k = 0; k < kPack; ++k) {
            code1.at[k] = encode1(tables[0], moment1[q].at[k]);
            code2.at[k] = encode2(tables[1], moment2[q].at[k]);
          }
          at.Store(chunk.codes1, code1);
          at.Store(chunk.codes2, code2);
        });
      }
    }
  }

  template <typename At>
  __device__ void MoveWeights(const Adam8Chunk& chunk, const At& at, const Pack<C, kPack>& moment1,
                              const Pack<C, kPack>& moment2) const {
    const C eps = static_cast<C>(chunk.eps), step_size = static_cast<C>(chunk.step_size);
    // Multiplying by 1 is exact, so the decay that does not apply needs no branch.
    const C before = decay_kind == DecayKind::kBefore ? shrink : C(1);
    const C after = decay_kind == DecayKind::kAfter ? shrink : C(1);
    C* weight = static_cast<C*>(chunk.weight);
    Pack<C, kPack> w = at.template Load<C>(weight);
#pragma unroll
    for (int k = 0; k < kPack; ++k) {
      const C update = step_size * (moment1.at[k] / (sqrt(moment2.at[k]) + eps));
      w.at[k] = MultiplyAdd(w.at[k], before, -update) * after;
    }
    at.Store(weight, w);
    if (chunk.working != nullptr) StoreAs(at, chunk.working, chunk.working_dtype, w);
  }

  // The largest magnitude over the group of threads.
  static __device__ MagnitudeBits<C> Largest(const Pack<C, kPack> (&moments)[kPacks]) {
    MagnitudeBits<C> largest = 0;
#pragma unroll
    for (int q = 0; q < kPacks; ++q) {
#pragma unroll
      for (int k = 0; k < kPack; ++k) {
        largest = MaxBits()(largest, BitsOfMagnitude(moments[q].at[k]));
      }
    }
    if constexpr (kGroup == kWarp) {
      return WarpReduce(largest, MaxBits());
    } else {
      return BlockReduce<kGroup>(largest, MaxBits());
    }
  }
  // Several pieces may belong to one block.
  static __device__ void RaiseTo(void* maxima, int64_t block, MagnitudeBits<C> value) {
    if (threadIdx.x % kGroup == 0) atomicMax(static_cast<MagnitudeBits<C>*>(maxima) + block, value);
  }
};

template <typename C, int kGroup, bool kUpdate>
void RunWith(const DeviceContext& context, const Adam8Args& args) {
  const CodeAddresses signed_codes = CodesOnGpu(context, CodeMap::Signed());
  const CodeAddresses unsigned_codes = CodesOnGpu(context, CodeMap::Unsigned());
  const Pieces pieces{args.block};
  ForEachTile(
      context, args.chunks,
      [=](const Adam8Chunk& chunk) { return CeilDiv(pieces.Count(chunk), pieces.per_tile()); },
      Adam8Body<C, kGroup, kUpdate>{signed_codes, unsigned_codes, pieces, args.decay_kind,
                                    args.keep_sign, static_cast<C>(1 - args.decay),
                                    static_cast<C>(args.beta1), static_cast<C>(1 - args.beta1),
                                    static_cast<C>(args.beta2), static_cast<C>(1 - args.beta2)});
}

template <typename C, bool kUpdate>
void Run8(const DeviceContext& context, const Adam8Args& args) {
  if (Pieces{args.block}.step() <= kMostOfAWarp) {
    RunWith<C, kWarp, kUpdate>(context, args);
  } else {
    RunWith<C, kTileThreads, kUpdate>(context, args);
  }
}

}  // namespace

void adam8(const DeviceContext& context, const Adam8Args& args) {
  args.dtype == DType::kF64 ? Run8<double, true>(context, args) : Run8<float, true>(context, args);
}

void adam8_absmax(const DeviceContext& context, const Adam8Args& args) {
  args.dtype == DType::kF64 ? Run8<double, false>(context, args)
                            : Run8<float, false>(context, args);
}

}  // namespace apogee::optim::cuda
