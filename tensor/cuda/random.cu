// SPDX-License-Identifier: Apache-2.0

// random and dropout. Each thread draws a whole Philox block, which is four neighbouring elements.
#include <cmath>

#include "apogee/tensor/cuda/device/device.cuh"
#include "apogee/tensor/cuda/device/divisor.cuh"
#include "apogee/tensor/cuda/device/launch.cuh"
#include "apogee/tensor/cuda/device/vector_loop.cuh"
#include "apogee/tensor/cuda/kernels.h"

namespace apogee::cuda {
namespace {

constexpr int kBlock = 4;

// Rows of `row` elements. The first element of row r is element first_element + r * row_stride of
// the stream.
struct Draws {
  PhiloxKey key;
  int64_t first_element, row, row_stride;
  int64_t units;        // the blocks of all rows
  WideDivisor per_row;  // the blocks that a row may touch
  bool whole;           // every row starts with a block and consists of vectors of four
};

// The elements of one block that are in a row: i + k for k in [begin, end).
struct Piece {
  int64_t i;
  int begin, end;
  bool vector;
};

template <typename Fn>
__global__ void DrawKernel(Draws draws, Fn fn) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t u = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; u < draws.units; u += step) {
    const int64_t row = draws.per_row.Divide(u);
    const int64_t element = draws.first_element + row * draws.row_stride;
    const int64_t block = element / kBlock + (u - row * draws.per_row.value);
    const int64_t at = block * kBlock - element;  // within the row, or up to 3 before it
    const int begin = at < 0 ? static_cast<int>(-at) : 0;
    const int end = static_cast<int>(min(draws.row - at, int64_t{kBlock}));
    if (begin >= end) continue;
    const auto [a, b, c, d] = Philox(draws.key, static_cast<uint64_t>(block));
    const uint32_t words[kBlock] = {a, b, c, d};
    fn(Piece{row * draws.row + at, begin, end, draws.whole && end - begin == kBlock}, words);
  }
}

template <typename T, typename... Pointers>
bool FitVectors(const Pointers*... pointers) {
  return ((reinterpret_cast<uintptr_t>(pointers) % sizeof(Vector<T, kBlock>) == 0) && ...);
}

// Calls fn(piece, words) for every block that n elements touch. row = 0: all elements are one row.
template <typename Fn>
void ForEachBlock(const DeviceContext& context, PhiloxKey key, int64_t first_element, int64_t n,
                  int64_t row, int64_t row_stride, bool aligned, const Fn& fn) {
  if (n <= 0) return;
  if (row == row_stride) row = row_stride = n;  // rows follow each other
  const int64_t rows = n / row;
  const bool on_blocks = first_element % kBlock == 0 && (rows == 1 || row_stride % kBlock == 0);
  const bool whole = aligned && on_blocks && (rows == 1 || row % kBlock == 0);
  const int64_t per_row = CeilDiv(row + (on_blocks ? 0 : kBlock - 1), kBlock);
  const int64_t units = rows * per_row;
  Launch(context, {.blocks = {GridBlocks(context, units, 256)}}, &DrawKernel<Fn>,
         Draws{key, first_element, row, row_stride, units, WideDivisor(per_row, units), whole}, fn);
}

template <typename T>
__device__ __forceinline__ void StorePiece(T* y, const Piece& piece,
                                           const Vector<T, kBlock>& values) {
  if (piece.vector) return StoreVector(y + piece.i, values);
#pragma unroll
  for (int k = 0; k < kBlock; ++k) {
    if (k >= piece.begin && k < piece.end) y[piece.i + k] = values.at[k];
  }
}

template <typename T>
__device__ __forceinline__ Vector<T, kBlock> LoadPiece(const T* x, const Piece& piece) {
  if (piece.vector) return LoadVector<kBlock>(x + piece.i);
  Vector<T, kBlock> values = {};
#pragma unroll
  for (int k = 0; k < kBlock; ++k) {
    if (k >= piece.begin && k < piece.end) values.at[k] = x[piece.i + k];
  }
  return values;
}

template <typename T>
void Uniform(const DeviceContext& context, const RandomArgs& args) {
  using C = ComputeType<T>;
  T* y = static_cast<T*>(args.y);
  const C low = static_cast<C>(args.low), span = static_cast<C>(args.high - args.low);
  ForEachBlock(context, args.key, args.first_element, args.n, 0, 0, FitVectors<T>(y),
               [=] __device__(const Piece& piece, const uint32_t* words) {
                 Vector<T, kBlock> values;
#pragma unroll
                 for (int k = 0; k < kBlock; ++k) {
                   values.at[k] = Cast<T>(low + span * C(ToUniform(words[k])));
                 }
                 StorePiece(y, piece, values);
               });
}

__device__ __forceinline__ void SinCosTurns(float turns, float* sine, float* cosine) {
  sincospif(2 * turns, sine, cosine);
}
__device__ __forceinline__ void SinCosTurns(double turns, double* sine, double* cosine) {
  sincospi(2 * turns, sine, cosine);
}

template <typename T>
void Normal(const DeviceContext& context, const RandomArgs& args) {
  using C = ComputeType<T>;
  T* y = static_cast<T*>(args.y);
  const C mean = static_cast<C>(args.low), deviation = static_cast<C>(args.high);
  ForEachBlock(context, args.key, args.first_element, args.n, 0, 0, FitVectors<T>(y),
               [=] __device__(const Piece& piece, const uint32_t* words) {
                 Vector<T, kBlock> values;
#pragma unroll
                 for (int k = 0; k < kBlock; k += 2) {
                   const C radius = std::sqrt(C(-2) * std::log(C(ToUniform(words[k]))));
                   C sine, cosine;
                   SinCosTurns(C(ToUniform(words[k + 1])), &sine, &cosine);
                   values.at[k] = Cast<T>(mean + deviation * (radius * cosine));
                   values.at[k + 1] = Cast<T>(mean + deviation * (radius * sine));
                 }
                 StorePiece(y, piece, values);
               });
}

template <typename T>
void Dropout(const DeviceContext& context, const DropoutArgs& args) {
  using C = ComputeType<T>;
  const T* x = static_cast<const T*>(args.x);
  T* y = static_cast<T*>(args.y);
  const C scale = static_cast<C>(1 / (1 - args.p));
  // ToUniform(word) > p as a comparison of integers. It is exact for the double p.
  const uint32_t threshold = static_cast<uint32_t>(std::floor(args.p * 0x1p24));
  ForEachBlock(context, args.key, args.first_element, args.n, args.row, args.row_stride,
               FitVectors<T>(x, y), [=] __device__(const Piece& piece, const uint32_t* words) {
                 Vector<T, kBlock> values = LoadPiece(x, piece);
#pragma unroll
                 for (int k = 0; k < kBlock; ++k) {
                   const bool keep = words[k] >> 8 >= threshold;
                   values.at[k] = Cast<T>(keep ? Load(values.at + k) * scale : C(0));
                 }
                 StorePiece(y, piece, values);
               });
}

}  // namespace

void random(const DeviceContext& context, const RandomArgs& args) {
  DispatchFloat(args.dtype, "random", [&]<typename T>() {
    if (args.distribution == Distribution::kUniform) {
      Uniform<T>(context, args);
    } else {
      Normal<T>(context, args);
    }
  });
}

void dropout(const DeviceContext& context, const DropoutArgs& args) {
  DispatchFloat(args.dtype, "dropout", [&]<typename T>() { Dropout<T>(context, args); });
}

}  // namespace apogee::cuda
