// SPDX-License-Identifier: Apache-2.0

// extreme: the largest or smallest along the middle dim of [outer, reduce, inner], and its place. A
// thread has rows (inner is 1), or tiles of columns whose partial results stay in the L1 cache.
#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

#include "apogee/tensor/cpu/kernels.h"
#include "apogee/tensor/cpu/loops.h"
#include "apogee/tensor/cpu/row_ops.h"

namespace apogee::cpu {
namespace {

constexpr int64_t kExtremeTile = 1024;  // columns

// The extreme of two numbers; NaN if either is. Without branches, so that loops vectorise.
template <Extreme kind, typename C>
bool Stays(C a, C b) {
  return static_cast<bool>((a != a) | (kind == Extreme::kMax ? a >= b : a <= b));
}
template <Extreme kind, typename C>
C ExtremeOf(C a, C b) {
  return Stays<kind>(a, b) ? a : b;
}

// A register of numbers, and one of places: a comparison of numbers gives a register of places that
// are 0 or -1. GCC makes slow code of loops that choose both.
template <typename C>
struct Register {
  static constexpr int kSize = 64 / sizeof(C);
  using Place = std::conditional_t<sizeof(C) == 8, int64_t, int32_t>;
  typedef C Numbers __attribute__((vector_size(64)));
  typedef Place Places __attribute__((vector_size(64)));
};
template <typename C, typename T>
typename Register<C>::Numbers LoadRegister(const T* x) {
  C numbers[Register<C>::kSize];
#pragma omp simd
  for (int l = 0; l < Register<C>::kSize; ++l) numbers[l] = Load(x[l]);
  typename Register<C>::Numbers all;
  std::memcpy(&all, numbers, sizeof(all));
  return all;
}

template <Extreme kind, typename Numbers>
auto Stay(const Numbers& a, const Numbers& b) {
  return (a != a) | (kind == Extreme::kMax ? a >= b : a <= b);
}

// The place of the first extreme, or of the first NaN, in num_blocks blocks of kLanes elements.
// Each lane keeps the extreme of its elements, and the number of the first block that has it.
template <Extreme kind, typename T>
int64_t PlaceInBlocks(const T* x, int64_t num_blocks) {
  using C = ComputeType<T>;
  using Place = typename Register<C>::Place;
  using Places = typename Register<C>::Places;
  constexpr int kSize = Register<C>::kSize, kRegisters = kLanes / kSize;
  typename Register<C>::Numbers best[kRegisters];
  Places blocks[kRegisters] = {};
  for (int k = 0; k < kRegisters; ++k) best[k] = LoadRegister<C>(x + k * kSize);
  for (int64_t block = 1; block < num_blocks; ++block) {
#pragma GCC unroll 8
    for (int k = 0; k < kRegisters; ++k) {
      const auto next = LoadRegister<C>(x + block * kLanes + k * kSize);
      const auto stays = Stay<kind>(best[k], next);
      best[k] = stays ? best[k] : next;
      blocks[k] = stays ? blocks[k] : Places{} + static_cast<Place>(block);
    }
  }
  auto most = best[0];
  for (int k = 1; k < kRegisters; ++k) most = Stay<kind>(most, best[k]) ? most : best[k];
  C found = most[0];
  for (int l = 1; l < kSize; ++l) found = ExtremeOf<kind>(found, static_cast<C>(most[l]));
  // The smallest place of `found`, or of a NaN.
  Places lanes = {}, places = Places{} + std::numeric_limits<Place>::max(), firsts = places;
  for (int l = 0; l < kSize; ++l) lanes[l] = static_cast<Place>(l);
  const auto is_found = [&](int k) { return (best[k] == found) | (best[k] != best[k]); };
  const auto smallest = [](const Places& x) {
    Place place = x[0];
    for (int l = 1; l < kSize; ++l) place = std::min(place, static_cast<Place>(x[l]));
    return place;
  };
  for (int k = 0; k < kRegisters; ++k) {
    firsts = (is_found(k) & (blocks[k] < firsts)) ? blocks[k] : firsts;
  }
  const Place block = smallest(firsts);
  for (int k = kRegisters - 1; k >= 0; --k) {
    places = (is_found(k) & (blocks[k] == block)) ? lanes + static_cast<Place>(k * kSize) : places;
  }
  return int64_t{block} * kLanes + smallest(places);
}

template <Extreme kind, typename T>
void ExtremeOfRow(const T* x, int64_t n, T* y, int64_t* index) {
  int64_t place = n < kLanes ? 0 : PlaceInBlocks<kind>(x, n / kLanes);
  for (int64_t i = n < kLanes ? 1 : n / kLanes * kLanes; i < n; ++i) {
    if (!Stays<kind>(Load(x[place]), Load(x[i]))) place = i;
  }
  *y = x[place];
  if (index != nullptr) *index = place;
}

template <Extreme kind, typename T, typename C>
void AddRow(const T* __restrict row, int32_t place, int64_t cols, C* __restrict best,
            int32_t* __restrict places) {
#pragma omp simd
  for (int64_t i = 0; i < cols; ++i) {
    const C value = Load(row[i]);
    const bool stays = Stays<kind>(best[i], value);
    best[i] = stays ? best[i] : value;
    places[i] = stays ? places[i] : place;
  }
}

template <Extreme kind, typename T>
void ExtremeOfTile(const T* x, int64_t rows, int64_t stride, int64_t cols, T* y, int64_t* index) {
  ComputeType<T> best[kExtremeTile];
  int32_t places[kExtremeTile] = {};
  for (int64_t i = 0; i < cols; ++i) best[i] = Load(x[i]);
  for (int64_t r = 1; r < rows; ++r) {
    AddRow<kind>(x + r * stride, static_cast<int32_t>(r), cols, best, places);
  }
  for (int64_t i = 0; i < cols; ++i) y[i] = Cast<T>(best[i]);
  for (int64_t i = 0; index != nullptr && i < cols; ++i) index[i] = places[i];
}

template <Extreme kind, typename T>
void ExtremeKernel(const DeviceContext& context, const ExtremeArgs& args) {
  const T* x = static_cast<const T*>(args.x);
  T* y = static_cast<T*>(args.y);
  int64_t* index = args.index;
  const int64_t n = args.reduce, inner = args.inner;
  ForTiles<kExtremeTile>(
      context, args.outer, n, inner, [=](int64_t o, int64_t first, int64_t count) {
        const int64_t at = o * inner + first;
        int64_t* const places = index == nullptr ? nullptr : index + at;
        if (inner == 1) return ExtremeOfRow<kind>(x + o * n, n, y + at, places);
        ExtremeOfTile<kind>(x + o * n * inner + first, n, inner, count, y + at, places);
      });
}

}  // namespace

void extreme(const DeviceContext& context, const ExtremeArgs& args) {
  DispatchFloat(args.dtype, "extreme", [&]<typename T>() {
    if (args.kind == Extreme::kMax) return ExtremeKernel<Extreme::kMax, T>(context, args);
    ExtremeKernel<Extreme::kMin, T>(context, args);
  });
}

}  // namespace apogee::cpu
