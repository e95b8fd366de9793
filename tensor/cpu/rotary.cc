// SPDX-License-Identifier: Apache-2.0

// Rotary position embedding. All heads use the same angles for a token, and so do all samples
// unless tokens have positions of their own. Sines and cosines are put into a table first.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "apogee/tensor/cpu/kernels.h"
#include "apogee/tensor/cpu/loops.h"
#include "apogee/tensor/cpu/vec_math.h"

namespace apogee::cpu {
namespace {

// Fills rows of the table, 2 * half elements each: cosines, then sines (negated for the inverse).
template <typename C>
void FillTable(const RotaryArgs& args, const double* turns_per_token, C* table, int64_t begin,
               int64_t end) {
  const int64_t half = args.num_pairs();
  const C sign = args.inverse ? C(-1) : C(1);
  for (int64_t t = begin; t < end; ++t) {
    C* cosines = table + t * 2 * half;
    C* sines = cosines + half;
    const int64_t jump = t >= args.jump_at ? args.jump : 0;
    const double position = static_cast<double>(
        args.positions == nullptr ? args.first_position + t + jump : args.positions[t]);
    if constexpr (std::is_same_v<C, double>) {
      for (int64_t i = 0; i < half; ++i) {
        const double angle = position * turns_per_token[i] * (2 * std::numbers::pi);
        cosines[i] = std::cos(angle);
        sines[i] = sign * std::sin(angle);
      }
    } else {
#pragma omp simd
      for (int64_t i = 0; i < half; ++i) {
        const SinCos angle = FastSinCosTurns(position * turns_per_token[i]);
        cosines[i] = angle.cos;
        sines[i] = sign * angle.sin;
      }
    }
  }
}

// Rotates half pairs and copies the rest of the head.
template <typename T>
void RotateHead(const T* x, const ComputeType<T>* cosines, const ComputeType<T>* sines, T* y,
                int64_t half, int64_t head_dim) {
#pragma omp simd
  for (int64_t i = 0; i < half; ++i) {
    const auto a = Load(x[i]);
    const auto b = Load(x[i + half]);
    y[i] = Cast<T>(a * cosines[i] - b * sines[i]);
    y[i + half] = Cast<T>(b * cosines[i] + a * sines[i]);
  }
  std::copy(x + 2 * half, x + head_dim, y + 2 * half);
}

template <typename T>
void Rotate(const DeviceContext& context, const RotaryArgs& args) {
  using C = ComputeType<T>;
  const int64_t half = args.num_pairs();
  const Workspace frequencies(context, half * static_cast<int64_t>(sizeof(double)));
  const int64_t rows = args.num_angles();
  const Workspace angles(context, rows * 2 * half * static_cast<int64_t>(sizeof(C)));
  double* turns_per_token = frequencies.data<double>();
  C* table = angles.data<C>();
  for (int64_t i = 0; i < half; ++i) turns_per_token[i] = args.TurnsPerToken(i);
  // An angle costs about as much as eight copied elements.
  ForRows(context, rows, 8 * half, [=, &args](int64_t begin, int64_t end) {
    FillTable(args, turns_per_token, table, begin, end);
  });
  const T* x = static_cast<const T*>(args.x);
  T* y = static_cast<T*>(args.y);
  ForRows(context, args.batch * args.tokens, args.heads * args.head_dim,
          [=, &args](int64_t begin, int64_t end) {
            for (int64_t row = begin; row < end; ++row) {
              const int64_t b = row / args.tokens;
              const int64_t t = row % args.tokens;
              const T* from = x + b * args.x_strides[0] + t * args.x_strides[1];
              T* to = y + b * args.y_strides[0] + t * args.y_strides[1];
              const C* cosines = table + (args.positions == nullptr ? t : row) * 2 * half;
              for (int64_t h = 0; h < args.heads; ++h) {
                RotateHead(from + h * args.x_strides[2], cosines, cosines + half,
                           to + h * args.y_strides[2], half, args.head_dim);
              }
            }
          });
}

}  // namespace

void rotary(const DeviceContext& context, const RotaryArgs& args) {
  DispatchFloat(args.dtype, "rotary", [&]<typename T>() { Rotate<T>(context, args); });
}

}  // namespace apogee::cpu
