// SPDX-License-Identifier: Apache-2.0

// Fused softmax and cross entropy. Forward reads the logits from memory once (LogSumExp). Backward
// is one pass that may run in place. The part kernels do the same for columns that are split into
// parts. They use a part's log-sum-exp instead of its maximum, so that the logits are still read
// once.
#include <cmath>

#include "apogee/tensor/cpu/kernels.h"
#include "apogee/tensor/cpu/loops.h"
#include "apogee/tensor/cpu/row_ops.h"
#include "apogee/tensor/cpu/vec_math.h"

namespace apogee::cpu {
namespace {

// The shift is 0 while the maximum is -inf: exp(-inf - -inf) would be NaN instead of 0.
template <typename T>
ComputeType<T> RowLogSumExp(const T* x, int64_t cols) {
  using C = ComputeType<T>;
  return LogSumExp(x, cols,
                   [](C max) { return max == -std::numeric_limits<C>::infinity() ? C(0) : max; });
}

// The share that these columns have in the logits' mean by the target's probabilities. `target` is
// a column, or a number outside of the columns if another part holds the target.
template <typename T>
ComputeType<T> TargetLogit(const T* logits, int64_t target, int64_t cols,
                           const LabelSmoothing& labels) {
  using C = ComputeType<T>;
  const C at_target = target >= 0 && target < cols ? Load(logits[target]) : C(0);
  if (labels.smoothing == 0) return at_target;
  const C sum = SumOver<C>(cols, [=](int64_t i) { return Load(logits[i]); });
  return C(labels.OfTarget()) * at_target + C(labels.OfEach()) * sum;
}

template <typename T>
void BackwardRow(const T* logits, int64_t target, ComputeType<T> lse, ComputeType<T> grad_scale,
                 const LabelSmoothing& labels, T* dlogits, int64_t cols) {
  const bool held = target >= 0 && target < cols;
  // Computed before the loop, which may overwrite the logits.
  using C = ComputeType<T>;
  const C each = C(labels.OfEach());
  const C at_target =
      held ? FastExp(Load(logits[target]) - lse) - each - C(labels.OfTarget()) : C(0);
#pragma omp simd
  for (int64_t i = 0; i < cols; ++i)
    dlogits[i] = Cast<T>((FastExp(Load(logits[i]) - lse) - each) * grad_scale);
  if (held) dlogits[target] = Cast<T>(at_target * grad_scale);
}

}  // namespace

void cross_entropy_forward(const DeviceContext& context, const CrossEntropyForwardArgs& args) {
  DispatchFloat(args.dtype, "cross_entropy_forward", [&]<typename T>() {
    using C = ComputeType<T>;
    const T* logits = static_cast<const T*>(args.logits);
    C* lse = static_cast<C*>(args.lse);
    C* loss = static_cast<C*>(args.loss);
    ForRows(context, args.rows, args.cols, [=, &args](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const T* row = logits + r * args.cols;
        const int64_t target = args.targets[r];
        lse[r] = RowLogSumExp(row, args.cols);
        const bool ignored = target == args.ignore_index;
        loss[r] = ignored ? C(0) : lse[r] - TargetLogit(row, target, args.cols, args.labels);
      }
    });
  });
}

void cross_entropy_backward(const DeviceContext& context, const CrossEntropyBackwardArgs& args) {
  DispatchFloat(args.dtype, "cross_entropy_backward", [&]<typename T>() {
    using C = ComputeType<T>;
    const T* logits = static_cast<const T*>(args.logits);
    const C* lse = static_cast<const C*>(args.lse);
    T* dlogits = static_cast<T*>(args.dlogits);
    const C grad_scale = static_cast<C>(ReadScalar(args.grad) / args.num_targets);
    const int64_t stride = args.cols + args.padding;
    ForRows(context, args.rows, stride, [=, &args](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const int64_t target = args.targets[r];
        T* to = dlogits + r * stride;
        if (target == args.ignore_index) {
          std::fill(to, to + stride, T(C(0)));
        } else {
          BackwardRow(logits + r * stride, target - args.first, lse[r], grad_scale, args.labels, to,
                      args.cols);
          std::fill(to + args.cols, to + stride, T(C(0)));
        }
      }
    });
  });
}

void cross_entropy_part_forward(const DeviceContext& context,
                                const CrossEntropyPartForwardArgs& args) {
  DispatchFloat(args.dtype, "cross_entropy_part_forward", [&]<typename T>() {
    using C = ComputeType<T>;
    const T* logits = static_cast<const T*>(args.logits);
    C* lse = static_cast<C*>(args.lse);
    C* target_logits = static_cast<C*>(args.target_logits);
    ForRows(context, args.rows, args.cols, [=, &args](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const T* row = logits + r * (args.cols + args.padding);
        lse[r] = RowLogSumExp(row, args.cols);
        target_logits[r] = TargetLogit(row, args.targets[r] - args.first, args.cols, args.labels);
      }
    });
  });
}

void cross_entropy_part_sums(const DeviceContext& context, const CrossEntropyPartSumsArgs& args) {
  DispatchFloat(args.dtype, "cross_entropy_part_sums", [&]<typename T>() {
    using C = ComputeType<T>;
    const T* lse = static_cast<const T*>(args.lse);
    const T* max = static_cast<const T*>(args.max);
    T* sums = static_cast<T*>(args.sums);
    ForElements(context, args.rows, [=](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const C m = Load(max[r]);
        // As in RowLogSumExp: a row of -inf sums to 0, not to NaN.
        const C shift = m == -std::numeric_limits<C>::infinity() ? C(0) : m;
        sums[r] = Cast<T>(FastExp(Load(lse[r]) - shift));
      }
    });
  });
}

void cross_entropy_part_join(const DeviceContext& context, const CrossEntropyPartJoinArgs& args) {
  DispatchFloat(args.dtype, "cross_entropy_part_join", [&]<typename T>() {
    using C = ComputeType<T>;
    const T* max = static_cast<const T*>(args.max);
    const T* sums = static_cast<const T*>(args.sums);
    const T* target_logits = static_cast<const T*>(args.target_logits);
    T* lse = static_cast<T*>(args.lse);
    T* loss = static_cast<T*>(args.loss);
    ForElements(context, args.rows, [=, &args](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const C total = Load(max[r]) + std::log(Load(sums[r]));
        const bool ignored = args.targets[r] == args.ignore_index;
        lse[r] = Cast<T>(total);
        loss[r] = Cast<T>(ignored ? C(0) : total - Load(target_logits[r]));
      }
    });
  });
}

}  // namespace apogee::cpu
