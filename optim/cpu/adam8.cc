// SPDX-License-Identifier: Apache-2.0

#include <vector>

#include "apogee/optim/cpu/kernels.h"
#include "apogee/optim/cpu/loops/block_codes.h"
#include "apogee/optim/cpu/loops/chunk_loop.h"
#include "apogee/optim/cpu/loops/lanes.h"

namespace apogee::optim::cpu {
namespace {

// One decoded piece of one block.
template <typename C>
struct Stage {
  alignas(64) C moment1[kMaxPiece];
  alignas(64) C moment2[kMaxPiece];
  alignas(64) C grad[kMaxPiece];
};

// The gradient of a piece, converted to C.
template <typename C>
const C* LoadGrad(const Adam8Chunk& chunk, int64_t begin, int64_t n, Stage<C>& stage) {
  if (chunk.grad_dtype == DTypeOf<C>()) return static_cast<const C*>(chunk.grad) + begin;
  LoadBlock(chunk.grad, chunk.grad_dtype, begin, n, stage.grad);
  return stage.grad;
}

// Decodes the moments of a piece and updates them.
template <typename C>
void MoveMoments(const Adam8Args& args, const Adam8Chunk& chunk, int64_t begin, int64_t n,
                 int64_t block, Stage<C>& stage) {
  const C beta1 = static_cast<C>(args.beta1), rest1 = static_cast<C>(1 - args.beta1);
  const C beta2 = static_cast<C>(args.beta2), rest2 = static_cast<C>(1 - args.beta2);
  const C grad_scale = static_cast<C>(chunk.grad_scale);
  const C absmax1 = static_cast<C*>(chunk.absmax1)[block];
  const C absmax2 = static_cast<C*>(chunk.absmax2)[block];
  const CodeMap &map1 = CodeMap::Signed(), &map2 = CodeMap::Unsigned();
  const C* grads = LoadGrad(chunk, begin, n, stage);
  ForEachGroup(
      n, [&](int64_t at, auto count) __attribute__((always_inline)) {
        C* __restrict moment1 = stage.moment1 + at;
        C* __restrict moment2 = stage.moment2 + at;
        const C* __restrict grad = grads + at;
        alignas(64) C old1[kGroup], old2[kGroup];
        DecodeGroup<true>(map1, chunk.codes1 + begin + at, absmax1, count, old1);
        DecodeGroup<false>(map2, chunk.codes2 + begin + at, absmax2, count, old2);
        ForLanes<C>(
            count, [&](int64_t i, auto kind) __attribute__((always_inline)) {
              using V = decltype(kind);
              const V g = grad_scale * Load<V>(grad + i);
              Store(moment1 + i, V(beta1 * Load<V>(old1 + i) + rest1 * g));
              Store(moment2 + i, V(beta2 * Load<V>(old2 + i) + rest2 * g * g));
            });
      });
}

// Updates the weights of a piece and encodes its moments. Both are in one loop because the weights
// wait for divisions, and encoding uses the other execution units meanwhile.
template <typename C>
void MoveWeights(const Adam8Args& args, const Adam8Chunk& chunk, int64_t begin, int64_t n,
                 C absmax1, C absmax2, const Stage<C>& stage) {
  const C eps = static_cast<C>(chunk.eps), step_size = static_cast<C>(chunk.step_size);
  // Multiplying by 1 is exact, so the decay that does not apply needs no branch.
  const C shrink = static_cast<C>(1 - args.decay);
  const C before = args.decay_kind == DecayKind::kBefore ? shrink : C(1);
  const C after = args.decay_kind == DecayKind::kAfter ? shrink : C(1);
  const BlockEncoder<true, C> encoder1(CodeMap::Signed(), absmax1, args.keep_sign);
  const BlockEncoder<false, C> encoder2(CodeMap::Unsigned(), absmax2, /*keep_sign=*/false);
  C* weights = static_cast<C*>(chunk.weight) + begin;
  ForEachGroup(
      n, [&](int64_t at, auto count) __attribute__((always_inline)) {
        const C* __restrict moment1 = stage.moment1 + at;
        const C* __restrict moment2 = stage.moment2 + at;
        C* __restrict weight = weights + at;
        ForLanes<C>(
            count, [&](int64_t i, auto kind) __attribute__((always_inline)) {
              using V = decltype(kind);
              const V root = Root(Load<V>(moment2 + i));
              const V update = step_size * (Load<V>(moment1 + i) / (root + eps));
              Store(weight + i, V((Load<V>(weight + i) * before - update) * after));
            });
        encoder1.Encode(moment1, count, chunk.codes1 + begin + at);
        encoder2.Encode(moment2, count, chunk.codes2 + begin + at);
      });
  if (chunk.working != nullptr) {
    StoreBlock(weights, static_cast<char*>(chunk.working) + begin * DTypeSize(chunk.working_dtype),
               chunk.working_dtype, 0, n);
  }
}

// Calls fn(chunk, piece number within the chunk, begin, count, block) in parallel for all pieces.
template <typename Fn>
void ForEachPiece(const DeviceContext& context, const Adam8Args& args, const Fn& fn) {
  std::vector<int64_t> first = {0};  // piece numbers
  for (const Adam8Chunk& chunk : args.chunks) {
    first.push_back(first.back() + Pieces(chunk.first, chunk.n, args.block).count());
  }
  const int64_t grain = std::max<int64_t>(1, (1 << 15) / Pieces(0, 0, args.block).step());
  ParallelFor(context, first.back(), grain, [&](int64_t begin, int64_t end) {
    for (size_t c = 0; c < args.chunks.size(); ++c) {
      const Adam8Chunk& chunk = args.chunks[c];
      int64_t piece = std::max(begin, first[c]);
      const int64_t last = std::min(end, first[c + 1]);
      if (piece >= last) continue;
      Pieces(chunk.first, chunk.n, args.block)
          .ForEach(piece - first[c], last - first[c],
                   [&](int64_t at, int64_t n, int64_t block) { fn(chunk, piece++, at, n, block); });
    }
  });
}

template <typename C>
void Update(const DeviceContext& context, const Adam8Args& args) {
  ForEachPiece(context, args,
               [&](const Adam8Chunk& chunk, int64_t, int64_t begin, int64_t n, int64_t block) {
                 Stage<C> stage;
                 MoveMoments(args, chunk, begin, n, block, stage);
                 C largest1, largest2;
                 if (chunk.new_absmax1 == nullptr) {
                   largest1 = AbsMax(stage.moment1, n);
                   largest2 = AbsMax(stage.moment2, n);
                   static_cast<C*>(chunk.absmax1)[block] = largest1;
                   static_cast<C*>(chunk.absmax2)[block] = largest2;
                 } else {
                   largest1 = static_cast<const C*>(chunk.new_absmax1)[block];
                   largest2 = static_cast<const C*>(chunk.new_absmax2)[block];
                 }
                 MoveWeights(args, chunk, begin, n, largest1, largest2, stage);
               });
}

// Several pieces may belong to one block, so the pieces' maxima are combined afterwards, in order.
template <typename C>
void FindAbsMax(const DeviceContext& context, const Adam8Args& args) {
  struct Found {
    const Adam8Chunk* chunk;
    int64_t block;
    C largest1, largest2;
  };
  int64_t count = 0;
  for (const Adam8Chunk& chunk : args.chunks) {
    count += Pieces(chunk.first, chunk.n, args.block).count();
  }
  if (context.is_dry()) return;
  std::vector<Found> found(static_cast<size_t>(count));
  ForEachPiece(
      context, args,
      [&](const Adam8Chunk& chunk, int64_t piece, int64_t begin, int64_t n, int64_t block) {
        Stage<C> stage;
        MoveMoments(args, chunk, begin, n, block, stage);
        found[static_cast<size_t>(piece)] = {&chunk, block, AbsMax(stage.moment1, n),
                                             AbsMax(stage.moment2, n)};
      });
  const auto raise = [](void* maxima, int64_t block, C value) {
    C& largest = static_cast<C*>(maxima)[block];
    largest = value > largest || value != value ? value : largest;
  };
  for (const Found& f : found) {
    raise(f.chunk->new_absmax1, f.block, f.largest1);
    raise(f.chunk->new_absmax2, f.block, f.largest2);
  }
}

}  // namespace

void adam8(const DeviceContext& context, const Adam8Args& args) {
  args.dtype == DType::kF64 ? Update<double>(context, args) : Update<float>(context, args);
}

void adam8_absmax(const DeviceContext& context, const Adam8Args& args) {
  args.dtype == DType::kF64 ? FindAbsMax<double>(context, args) : FindAbsMax<float>(context, args);
}

}  // namespace apogee::optim::cpu
