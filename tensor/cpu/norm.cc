// SPDX-License-Identifier: Apache-2.0

// Layer norm and RMS norm. Each row is read from memory once; further passes over it hit the L1
// cache. Backward computes dx and, in the same visit, partial parameter gradients of a fixed block
// of rows. The partials are then added in the order of the blocks, so the result does not depend on
// the number of threads.
#include <cmath>

#include "apogee/tensor/cpu/kernels.h"
#include "apogee/tensor/cpu/loops.h"
#include "apogee/tensor/cpu/row_ops.h"

namespace apogee::cpu {
namespace {

// A value s near the row's mean: the mean of the row's first m of n elements. The mean and the
// variance about s are computed in one pass:
//   var = E[(x - s)^2] - E[x - s]^2
// This loses at most a factor n / m of precision for any row, because the mean of m elements is
// within sqrt(n / m) standard deviations of the mean of all.
template <typename T>
ComputeType<T> Shift(const T* x, int64_t cols) {
  using C = ComputeType<T>;
  constexpr int kCount = 16;
  if (cols < kCount) return Load(x[0]);
  C head[kCount];
  for (int i = 0; i < kCount; ++i) head[i] = Load(x[i]);
  return Tree<kCount>(head, [](C a, C b) { return a + b; }) * C(1.0 / kCount);
}

template <typename T>
void ForwardRow(const NormForwardArgs& args, int64_t r) {
  using C = ComputeType<T>;
  const int64_t cols = args.cols;
  const T* x = static_cast<const T*>(args.x) + r * cols;
  const T* weight = static_cast<const T*>(args.weight);
  T* y = static_cast<T*>(args.y) + r * cols;
  const C inverse_cols = C(1) / static_cast<C>(cols);
  const C eps = static_cast<C>(args.eps);
  const C weight_offset = static_cast<C>(args.weight_offset);
  C* rstd = static_cast<C*>(args.rstd) + r;
  if (args.rms) {
    const C square = SumOver<C>(cols, [=](int64_t i) { return Load(x[i]) * Load(x[i]); });
    const C scale = C(1) / std::sqrt(square * inverse_cols + eps);
    *rstd = scale;
#pragma omp simd
    for (int64_t i = 0; i < cols; ++i) {
      y[i] = Cast<T>(Load(x[i]) * scale * (Load(weight[i]) + weight_offset));
    }
    return;
  }
  const T* bias = static_cast<const T*>(args.bias);
  const C shift = Shift(x, cols);
  const TwoSums<C> sums = SumTwoOver<C>(cols, [=](int64_t i, C& sum, C& square) {
    const C centered = Load(x[i]) - shift;
    sum += centered;
    square += centered * centered;
  });
  const C offset = sums.first * inverse_cols;
  const C mean = shift + offset;
  const C variance = sums.second * inverse_cols - offset * offset;
  const C scale = C(1) / std::sqrt(variance + eps);
  static_cast<C*>(args.mean)[r] = mean;
  *rstd = scale;
  if (bias == nullptr) {
#pragma omp simd
    for (int64_t i = 0; i < cols; ++i) {
      y[i] = Cast<T>((Load(x[i]) - mean) * scale * (Load(weight[i]) + weight_offset));
    }
  } else {
#pragma omp simd
    for (int64_t i = 0; i < cols; ++i) {
      y[i] =
          Cast<T>((Load(x[i]) - mean) * scale * (Load(weight[i]) + weight_offset) + Load(bias[i]));
    }
  }
}

// dx of one row. For an RMS norm the mean is 0, and so is the term q.
template <typename T, bool rms>
void InputGradient(const T* x, const T* weight, ComputeType<T> weight_offset, const T* dy,
                   ComputeType<T> mean, ComputeType<T> rstd, T* dx, int64_t cols) {
  using C = ComputeType<T>;
  const TwoSums<C> sums = SumTwoOver<C>(cols, [=](int64_t i, C& sum, C& dot) {
    const C g = Load(dy[i]) * (Load(weight[i]) + weight_offset);
    sum += g;
    dot += g * (Load(x[i]) - mean);
  });
  // With g = dy * weight and xhat = (x - mean) rstd:
  //   dx = rstd (g - mean(g) - xhat mean(g xhat)) = g rstd - (x - mean) p - q
  const C p = sums.second * rstd * rstd * rstd / static_cast<C>(cols);
  const C q = rms ? C(0) : sums.first * rstd / static_cast<C>(cols);
#pragma omp simd
  for (int64_t i = 0; i < cols; ++i) {
    const C g = Load(dy[i]) * (Load(weight[i]) + weight_offset);
    dx[i] = Cast<T>(g * rstd - (Load(x[i]) - mean) * p - q);
  }
}

// Adds `rows` rows to the block's dweight and dbias. The number of rows is a constant, so that the
// sums are loaded and stored once for all of them.
template <int rows, bool rms, typename T, typename C>
void AddParamGradients(const T* x, const T* dy, const C* mean, const C* rstd, C* dweight, C* dbias,
                       int64_t cols) {
#pragma omp simd
  for (int64_t i = 0; i < cols; ++i) {
    C weight_sum = dweight[i];
    C bias_sum = rms ? C(0) : dbias[i];
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) {
      const C grad = Load(dy[r * cols + i]);
      weight_sum += grad * ((Load(x[r * cols + i]) - (rms ? C(0) : mean[r])) * rstd[r]);
      bias_sum += grad;
    }
    dweight[i] = weight_sum;
    if constexpr (!rms) dbias[i] = bias_sum;
  }
}

// Rows [begin, end). `partial` holds the block's dweight, then its dbias.
template <typename T, bool rms>
void BackwardBlock(const NormBackwardArgs& args, int64_t begin, int64_t end,
                   ComputeType<T>* partial) {
  using C = ComputeType<T>;
  const int64_t cols = args.cols;
  const T* weight = static_cast<const T*>(args.weight);
  const T* x = static_cast<const T*>(args.x);
  const T* dy = static_cast<const T*>(args.dy);
  const C* mean = static_cast<const C*>(args.mean);
  const C* rstd = static_cast<const C*>(args.rstd);
  const bool param_gradients = args.dweight != nullptr || args.dbias != nullptr;
  if (param_gradients) std::fill(partial, partial + 2 * cols, C(0));
  constexpr int64_t kRows = 4;
  for (int64_t group = begin; group < end; group += kRows) {
    const int64_t group_end = std::min(end, group + kRows);
    if (args.dx != nullptr) {
      for (int64_t r = group; r < group_end; ++r) {
        InputGradient<T, rms>(x + r * cols, weight, static_cast<C>(args.weight_offset),
                              dy + r * cols, rms ? C(0) : mean[r], rstd[r],
                              static_cast<T*>(args.dx) + r * cols, cols);
      }
    }
    if (!param_gradients) continue;
    const auto add = [&]<int rows>(int64_t r) {
      AddParamGradients<rows, rms>(x + r * cols, dy + r * cols, rms ? nullptr : mean + r, rstd + r,
                                   partial, partial + cols, cols);
    };
    if (group_end - group == kRows) {
      add.template operator()<kRows>(group);
    } else {
      for (int64_t r = group; r < group_end; ++r) add.template operator()<1>(r);
    }
  }
}

// out[i] = sum over the blocks of partials[block, offset + i].
template <typename G, typename C>
void Combine(const C* partials, int64_t blocks, int64_t stride, G* out, int64_t cols) {
  constexpr int64_t kTile = 256;
  C sums[kTile];
  for (int64_t begin = 0; begin < cols; begin += kTile) {
    const int64_t count = std::min(kTile, cols - begin);
    std::fill(sums, sums + count, C(0));
    for (int64_t b = 0; b < blocks; ++b) {
      const C* partial = partials + b * stride + begin;
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) sums[i] += partial[i];
    }
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) out[begin + i] = Cast<G>(sums[i]);
  }
}

template <typename T>
void Backward(const DeviceContext& context, const NormBackwardArgs& args) {
  using C = ComputeType<T>;
  const int64_t cols = args.cols;
  // At most 64 blocks, so that their partials are small compared to x. The number of blocks depends
  // only on the number of rows.
  const int64_t block = std::max<int64_t>(16, (args.rows + 63) / 64);
  const int64_t blocks = (args.rows + block - 1) / block;
  const bool param_gradients = args.dweight != nullptr || args.dbias != nullptr;
  const Workspace workspace(
      context, param_gradients ? blocks * 2 * cols * static_cast<int64_t>(sizeof(C)) : 0);
  if (context.is_dry()) return;
  C* partials = workspace.data<C>();
  ForRows(context, blocks, block * cols, [=, &args](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const int64_t first = b * block;
      const int64_t last = std::min(args.rows, first + block);
      C* partial = partials + (param_gradients ? b * 2 * cols : 0);
      if (args.rms) {
        BackwardBlock<T, true>(args, first, last, partial);
      } else {
        BackwardBlock<T, false>(args, first, last, partial);
      }
    }
  });
  if (!param_gradients) return;
  DispatchFloat(args.param_grad_dtype, "norm_backward", [&]<typename G>() {
    G* dweight = static_cast<G*>(args.dweight);
    G* dbias = static_cast<G*>(args.dbias);
    if (dweight != nullptr) Combine(partials, blocks, 2 * cols, dweight, cols);
    if (dbias != nullptr) Combine(partials + cols, blocks, 2 * cols, dbias, cols);
  });
}

}  // namespace

void norm_forward(const DeviceContext& context, const NormForwardArgs& args) {
  DispatchFloat(args.dtype, "norm_forward", [&]<typename T>() {
    ForRows(context, args.rows, args.cols, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) ForwardRow<T>(args, r);
    });
  });
}

void norm_backward(const DeviceContext& context, const NormBackwardArgs& args) {
  DispatchFloat(args.dtype, "norm_backward", [&]<typename T>() { Backward<T>(context, args); });
}

}  // namespace apogee::cpu
