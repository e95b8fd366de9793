// SPDX-License-Identifier: Apache-2.0

// Rotary position embedding. All heads use the same angles for a token, and so do all samples
// unless tokens have positions of their own. Cosines and sines are put into a table first. Then
// each thread rotates a few neighbouring pairs, or copies a few elements that don't rotate.
#include <algorithm>

#include "apogee/tensor/cuda/device/device.cuh"
#include "apogee/tensor/cuda/device/divisor.cuh"
#include "apogee/tensor/cuda/device/launch.cuh"
#include "apogee/tensor/cuda/device/vector_loop.cuh"
#include "apogee/tensor/cuda/kernels.h"

namespace apogee::cuda {
namespace {

// The turns per token of some neighbouring pairs. The host computes them, with the same bits as for
// the CPU, because large positions multiply their rounding errors. They are a kernel parameter.
struct Frequencies {
  static constexpr int64_t kMost = 128;
  double turns[kMost];
};

// Fills rows of the table, 2 * half elements each: cosines, then sines (negated for the inverse).
// This call fills pairs [first, first + count).
template <typename C>
void FillTable(const DeviceContext& context, const RotaryArgs& args, int64_t first, int64_t count,
               C* table) {
  Frequencies frequencies;
  for (int64_t i = 0; i < count; ++i) frequencies.turns[i] = args.TurnsPerToken(first + i);
  const int64_t half = args.num_pairs(), jump_at = args.jump_at, jump = args.jump;
  const int64_t first_position = args.first_position;
  const int64_t* const positions = args.positions;
  const double sign = args.inverse ? -1 : 1;
  ForEach(context, args.num_angles() * count, [=] __device__(int64_t at) {
    const int64_t t = at / count, i = at % count;
    const double position = static_cast<double>(
        positions == nullptr ? first_position + t + (t >= jump_at ? jump : 0) : positions[t]);
    double sine, cosine;
    sincospi(2 * (position * frequencies.turns[i]), &sine, &cosine);
    table[t * 2 * half + first + i] = static_cast<C>(cosine);
    table[t * 2 * half + half + first + i] = static_cast<C>(sign * sine);
  });
}

struct Operands {
  int64_t x_strides[3], y_strides[3];  // of batch, tokens, heads
  int64_t half;
  bool own_positions;                  // samples differ
  WideDivisor vectors, heads, tokens;  // vectors: those of one head's pairs, and of its rest
};

// Whether a thread may take kCount pairs, or elements of the rest, at a time: both halves and the
// rest of every head consist of aligned vectors.
template <int kCount>
bool RotaryFitsVectors(const RotaryArgs& args) {
  if (!IsAligned16(args.x, args.y) || args.num_pairs() % kCount != 0) return false;
  if (args.head_dim % kCount != 0) return false;
  for (int d = 0; d < 3; ++d) {
    if (args.x_strides[d] % kCount != 0 || args.y_strides[d] % kCount != 0) return false;
  }
  return true;
}

template <typename T, int kCount>
void Rotate(const DeviceContext& context, const RotaryArgs& args, const ComputeType<T>* table) {
  using C = ComputeType<T>;
  const T* x = static_cast<const T*>(args.x);
  T* y = static_cast<T*>(args.y);
  const int64_t half = args.num_pairs(), vectors = (args.head_dim - half) / kCount;
  const int64_t n = args.batch * args.tokens * args.heads * vectors;
  const Operands of{{args.x_strides[0], args.x_strides[1], args.x_strides[2]},
                    {args.y_strides[0], args.y_strides[1], args.y_strides[2]},
                    half,
                    args.positions != nullptr,
                    WideDivisor(vectors, n),
                    WideDivisor(args.heads, n),
                    WideDivisor(args.tokens, n)};
  ForEach(context, n, [=] __device__(int64_t at) {
    const int64_t head = of.vectors.Divide(at), i = (at - head * of.vectors.value) * kCount;
    const int64_t token = of.heads.Divide(head), h = head - token * of.heads.value;
    const int64_t b = of.tokens.Divide(token), t = token - b * of.tokens.value;
    const T* from = x + b * of.x_strides[0] + t * of.x_strides[1] + h * of.x_strides[2] + i;
    T* to = y + b * of.y_strides[0] + t * of.y_strides[1] + h * of.y_strides[2] + i;
    const Vector<T, kCount> upper = LoadVector<kCount>(from + of.half);
    if (i >= of.half) return StoreVector(to + of.half, upper);  // the rest
    const C* cosines = table + (of.own_positions ? token : t) * 2 * of.half + i;
    const Vector<T, kCount> lower = LoadVector<kCount>(from);
    Vector<T, kCount> new_lower, new_upper;
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const C p = Load(lower.at + k), q = Load(upper.at + k);
      const C cosine = cosines[k], sine = cosines[of.half + k];
      new_lower.at[k] = Cast<T>(p * cosine - q * sine);
      new_upper.at[k] = Cast<T>(q * cosine + p * sine);
    }
    StoreVector(to, new_lower);
    StoreVector(to + of.half, new_upper);
  });
}

template <typename T>
void Rotary(const DeviceContext& context, const RotaryArgs& args) {
  using C = ComputeType<T>;
  const int64_t half = args.num_pairs();
  const Workspace angles(context, args.num_angles() * 2 * half * static_cast<int64_t>(sizeof(C)));
  for (int64_t first = 0; first < half; first += Frequencies::kMost) {
    FillTable(context, args, first, std::min(Frequencies::kMost, half - first), angles.data<C>());
  }
  if (RotaryFitsVectors<kWidth<T>>(args)) {
    Rotate<T, kWidth<T>>(context, args, angles.data<C>());
  } else {
    Rotate<T, 1>(context, args, angles.data<C>());
  }
}

}  // namespace

void rotary(const DeviceContext& context, const RotaryArgs& args) {
  if (args.batch * args.tokens * args.heads * args.head_dim == 0) return;
  DispatchFloat(args.dtype, "rotary", [&]<typename T>() { Rotary<T>(context, args); });
}

}  // namespace apogee::cuda
