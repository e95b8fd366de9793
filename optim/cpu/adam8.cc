#include <vector>

#include "apogee/optim/cpu/block_codes.h"
#include "apogee/optim/cpu/chunk_loop.h"
#include "apogee/optim/cpu/kernels.h"

namespace apogee::optim::cpu {
namespace {

// One piece of one block, decoded.
template <typename C>
struct Stage {
  alignas(64) C moment1[kMaxPiece];
  alignas(64) C moment2[kMaxPiece];
  alignas(64) C grad[kMaxPiece];
};

template <typename C, bool kUpdate>
void MomentLoop(int64_t n, const Adam8Args& args, const Adam8Chunk& chunk, const C* __restrict grad,
                C* __restrict moment1, C* __restrict moment2, C* __restrict weight) {
  const C beta1 = static_cast<C>(args.beta1), rest1 = static_cast<C>(1 - args.beta1);
  const C beta2 = static_cast<C>(args.beta2), rest2 = static_cast<C>(1 - args.beta2);
  const C grad_scale = static_cast<C>(chunk.grad_scale), eps = static_cast<C>(chunk.eps);
  const C step_size = static_cast<C>(chunk.step_size);
  // Shrinking by 1 is exact, so the decay that does not apply needs no branch.
  const C shrink = static_cast<C>(1 - args.decay);
  const C before = args.decay_kind == DecayKind::kBefore ? shrink : C(1);
  const C after = args.decay_kind == DecayKind::kAfter ? shrink : C(1);
  for (int64_t i = 0; i < n; ++i) {
    const C g = grad_scale * grad[i];
    const C m = beta1 * moment1[i] + rest1 * g;
    const C v = beta2 * moment2[i] + rest2 * g * g;
    moment1[i] = m;
    moment2[i] = v;
    if constexpr (kUpdate) {
      weight[i] = (weight[i] * before - step_size * (m / (std::sqrt(v) + eps))) * after;
    }
  }
}

// Decodes a piece and brings its moments up to date; with kUpdate the weights too.
template <typename C, bool kUpdate>
void Advance(const Adam8Args& args, const Adam8Chunk& chunk, int64_t begin, int64_t n,
             int64_t block, Stage<C>& stage) {
  Decode(CodeMap::Signed().values(), chunk.codes1 + begin, static_cast<C*>(chunk.absmax1)[block], n,
         stage.moment1);
  Decode(CodeMap::Unsigned().values(), chunk.codes2 + begin, static_cast<C*>(chunk.absmax2)[block],
         n, stage.moment2);
  const C* grad = static_cast<const C*>(chunk.grad) + begin;
  if (chunk.grad_dtype != DTypeOf<C>()) {
    LoadBlock(chunk.grad, chunk.grad_dtype, begin, n, stage.grad);
    grad = stage.grad;
  }
  C* weight = static_cast<C*>(chunk.weight) + begin;
  MomentLoop<C, kUpdate>(n, args, chunk, grad, stage.moment1, stage.moment2, weight);
  if (kUpdate && chunk.working != nullptr) {
    StoreBlock(weight, static_cast<char*>(chunk.working) + begin * DTypeSize(chunk.working_dtype),
               chunk.working_dtype, 0, n);
  }
}

// Calls fn(chunk, piece number within the chunk, begin, count, block), in parallel over all pieces.
template <typename Fn>
void ForEachPiece(const DeviceContext& context, const Adam8Args& args, const Fn& fn) {
  std::vector<int64_t> first = {0};  // piece numbers
  for (const Adam8Chunk& chunk : args.chunks) {
    first.push_back(first.back() + Pieces(chunk.first, chunk.n, args.block).count());
  }
  const int64_t grain = std::max<int64_t>(1, (1 << 15) / Pieces(0, 0, args.block).step());
  ParallelFor(context.num_threads(), first.back(), grain, [&](int64_t begin, int64_t end) {
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
                 Advance<C, true>(args, chunk, begin, n, block, stage);
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
                 Encode<true>(CodeMap::Signed(), stage.moment1, largest1, args.keep_sign, n,
                              chunk.codes1 + begin);
                 Encode<false>(CodeMap::Unsigned(), stage.moment2, largest2, false, n,
                               chunk.codes2 + begin);
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
  std::vector<Found> found(static_cast<size_t>(count));
  ForEachPiece(
      context, args,
      [&](const Adam8Chunk& chunk, int64_t piece, int64_t begin, int64_t n, int64_t block) {
        Stage<C> stage;
        Advance<C, false>(args, chunk, begin, n, block, stage);
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
