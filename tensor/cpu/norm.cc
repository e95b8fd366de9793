// Layer norm and RMS norm. Each row is read once from memory; the passes over it hit the L1 cache.
// Backward computes dx and, in the same visit, partial parameter gradients of a fixed block of rows; the
// partials are then added in the order of the blocks, so the result does not depend on the threads.
#include <cmath>

#include "apogee/tensor/cpu/kernels.h"
#include "apogee/tensor/cpu/loops.h"
#include "apogee/tensor/cpu/row_ops.h"

namespace apogee::cpu {
namespace {

template <typename T>
void ForwardRow(const NormForwardArgs& args, int64_t r) {
  using C = ComputeType<T>;
  const int64_t cols = args.cols;
  const T* x = static_cast<const T*>(args.x) + r * cols;
  const T* weight = static_cast<const T*>(args.weight);
  T* y = static_cast<T*>(args.y) + r * cols;
  const C inverse_cols = C(1) / static_cast<C>(cols);
  const C eps = static_cast<C>(args.eps);
  C* rstd = static_cast<C*>(args.rstd) + r;
  if (args.rms) {
    const C square = SumOver<C>(cols, [=](int64_t i) { return Load(x[i]) * Load(x[i]); });
    const C scale = C(1) / std::sqrt(square * inverse_cols + eps);
    *rstd = scale;
#pragma omp simd
    for (int64_t i = 0; i < cols; ++i) y[i] = Cast<T>(Load(x[i]) * scale * Load(weight[i]));
    return;
  }
  const T* bias = static_cast<const T*>(args.bias);
  const C mean = SumOver<C>(cols, [=](int64_t i) { return Load(x[i]); }) * inverse_cols;
  // A second pass, not the mean of squares, which would cancel for rows far from zero.
  const C square = SumOver<C>(cols, [=](int64_t i) {
    const C centered = Load(x[i]) - mean;
    return centered * centered;
  });
  const C scale = C(1) / std::sqrt(square * inverse_cols + eps);
  static_cast<C*>(args.mean)[r] = mean;
  *rstd = scale;
  if (bias == nullptr) {
#pragma omp simd
    for (int64_t i = 0; i < cols; ++i) y[i] = Cast<T>((Load(x[i]) - mean) * scale * Load(weight[i]));
  } else {
#pragma omp simd
    for (int64_t i = 0; i < cols; ++i) {
      y[i] = Cast<T>((Load(x[i]) - mean) * scale * Load(weight[i]) + Load(bias[i]));
    }
  }
}

// dx of one row; mean is 0 for RMS norm, and so is the term of the mean gradient.
template <typename T, bool rms>
void InputGradient(const T* x, const T* weight, const T* dy, ComputeType<T> mean,
                   ComputeType<T> rstd, T* dx, int64_t cols) {
  using C = ComputeType<T>;
  const C dot = SumOver<C>(
      cols, [=](int64_t i) { return Load(dy[i]) * Load(weight[i]) * (Load(x[i]) - mean); });
  const C sum =
      rms ? C(0) : SumOver<C>(cols, [=](int64_t i) { return Load(dy[i]) * Load(weight[i]); });
  // dx = rstd (g - mean(g) - xhat mean(g xhat)) with g = dy weight, as g rstd - (x - mean) p - q.
  const C p = dot * rstd * rstd * rstd / static_cast<C>(cols);
  const C q = sum * rstd / static_cast<C>(cols);
#pragma omp simd
  for (int64_t i = 0; i < cols; ++i) {
    dx[i] = Cast<T>(Load(dy[i]) * Load(weight[i]) * rstd - (Load(x[i]) - mean) * p - q);
  }
}

template <typename T>
void AddParamGradients(const T* x, const T* dy, ComputeType<T> mean, ComputeType<T> rstd,
                       ComputeType<T>* dweight, ComputeType<T>* dbias, int64_t cols) {
#pragma omp simd
  for (int64_t i = 0; i < cols; ++i) dweight[i] += Load(dy[i]) * ((Load(x[i]) - mean) * rstd);
  if (dbias == nullptr) return;
#pragma omp simd
  for (int64_t i = 0; i < cols; ++i) dbias[i] += Load(dy[i]);
}

// Rows [begin, end). `partial` holds the block's dweight, then its dbias.
template <typename T, bool rms>
void BackwardBlock(const NormBackwardArgs& args, int64_t begin, int64_t end,
                   ComputeType<T>* partial) {
  using C = ComputeType<T>;
  const int64_t cols = args.cols;
  const T* weight = static_cast<const T*>(args.weight);
  const bool param_gradients = args.dweight != nullptr || args.dbias != nullptr;
  if (param_gradients) std::fill(partial, partial + 2 * cols, C(0));
  for (int64_t r = begin; r < end; ++r) {
    const T* x = static_cast<const T*>(args.x) + r * cols;
    const T* dy = static_cast<const T*>(args.dy) + r * cols;
    const C mean = rms ? C(0) : static_cast<const C*>(args.mean)[r];
    const C rstd = static_cast<const C*>(args.rstd)[r];
    if (args.dx != nullptr) {
      T* dx = static_cast<T*>(args.dx) + r * cols;
      InputGradient<T, rms>(x, weight, dy, mean, rstd, dx, cols);
    }
    if (param_gradients) {
      C* dbias = args.dbias != nullptr ? partial + cols : nullptr;
      AddParamGradients(x, dy, mean, rstd, partial, dbias, cols);
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
  // At most 64 blocks: their partials stay small beside x, and their number depends on the rows only.
  const int64_t block = std::max<int64_t>(16, (args.rows + 63) / 64);
  const int64_t blocks = (args.rows + block - 1) / block;
  const bool param_gradients = args.dweight != nullptr || args.dbias != nullptr;
  const Workspace workspace(
      context, param_gradients ? blocks * 2 * cols * static_cast<int64_t>(sizeof(C)) : 0);
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
