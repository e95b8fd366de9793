// SPDX-License-Identifier: Apache-2.0

// Fused softmax and cross entropy. Forward reads the logits once; backward is one pass that may run
// in place. The part kernels do the same for columns that are split into parts. They use a part's
// log-sum-exp instead of its maximum, so that the logits are still read once.
#include <cmath>

#include "apogee/tensor/cuda/attention/log_sum_exp.cuh"
#include "apogee/tensor/cuda/device/rows.cuh"
#include "apogee/tensor/cuda/kernels.h"

namespace apogee::cuda {
namespace {

// Rows of `cols` logits, `stride` apart. A target's column is target - first; if another part holds
// it, its logit counts as 0. Stores lse - that logit if `loss` (0 for ignore_index), else the
// logit.
template <typename T>
struct ForwardRows {
  const T* logits;
  const int64_t* targets;
  ComputeType<T>* lse;
  ComputeType<T>* out;
  int64_t rows, cols, stride, first, ignore_index;
  bool loss;
  ComputeType<T> of_each, of_target;  // probabilities (LabelSmoothing)
};

template <typename T, int kWidth, int kTeam>
__global__ void __launch_bounds__(kRowThreads) ForwardKernel(ForwardRows<T> args) {
  using C = ComputeType<T>;
  for (int64_t r = FirstRow<kTeam>(); r < args.rows; r += RowStep<kTeam>()) {
    const T* row = args.logits + r * args.stride;
    LogSumExp<T> sum;
    const RowPart<T, kWidth, kTeam> part(row, args.cols);
    part.ForEach([&]<int n>(const Vector<T, n>& v, int64_t) { sum.Add(v); });
    sum.template OverTeam<kTeam>();
    C share = 0;  // of all classes in the logits' mean
    if (args.of_each != 0) {
      part.ForEach([&]<int n>(const Vector<T, n>& v, int64_t) {
#pragma unroll
        for (int j = 0; j < n; ++j) share += Load(v.at + j);
      });
      share = args.of_each * TeamReduce<kTeam>(share, Sum());
    }
    if (TeamLane<kTeam>() != 0) continue;
    const C lse = sum.max + std::log(sum.sum);
    const int64_t target = args.targets[r], column = target - args.first;
    const bool held = column >= 0 && column < args.cols;
    const C at_target = (held ? args.of_target * Load(row + column) : C(0)) + share;
    args.lse[r] = lse;
    args.out[r] = !args.loss ? at_target : target == args.ignore_index ? C(0) : lse - at_target;
  }
}

template <typename T>
void CrossEntropyForward(const DeviceContext& context, const ForwardRows<T>& rows) {
  DispatchRows<T>(rows.cols, true, [&]<int kWidth, int kTeam>() {
    Launch(context, RowGrid<kTeam>(context, rows.rows), &ForwardKernel<T, kWidth, kTeam>, rows);
  });
}

// The columns from `cols` to `stride` are padding, and are written, too.
template <typename T>
struct BackwardRows {
  const T* logits;
  const int64_t* targets;
  const ComputeType<T>* lse;
  T* dlogits;
  int64_t rows, cols, stride, first, ignore_index;
  double num_targets;
  DeviceScalar grad;
  ComputeType<T> of_each, of_target;
};

template <typename T, int kWidth, int kTeam>
__global__ void __launch_bounds__(kRowThreads) BackwardKernel(BackwardRows<T> args) {
  using C = ComputeType<T>;
  const C grad_scale = static_cast<C>(ReadScalar(args.grad) / args.num_targets);
  for (int64_t r = FirstRow<kTeam>(); r < args.rows; r += RowStep<kTeam>()) {
    T* to = args.dlogits + r * args.stride;
    const RowPart<T, kWidth, kTeam> part(args.logits + r * args.stride, args.stride);
    const int64_t target = args.targets[r], column = target - args.first;
    const bool ignored = target == args.ignore_index;
    const C lse = args.lse[r];
    part.ForEach([&]<int n>(const Vector<T, n>& v, int64_t i) {
      Vector<T, n> out;
#pragma unroll
      for (int j = 0; j < n; ++j) {
        const C onehot = i + j == column ? args.of_target : C(0);
        const C gradient = (Exp<T>(Load(v.at + j) - lse) - args.of_each - onehot) * grad_scale;
        out.at[j] = Cast<T>(ignored || i + j >= args.cols ? C(0) : gradient);
      }
      StoreVector(to + i, out);
    });
  }
}

template <typename T>
void CrossEntropyBackward(const DeviceContext& context, const BackwardRows<T>& rows) {
  DispatchRows<T>(rows.stride, LieAlike(rows.logits, rows.dlogits), [&]<int kWidth, int kTeam>() {
    Launch(context, RowGrid<kTeam>(context, rows.rows), &BackwardKernel<T, kWidth, kTeam>, rows);
  });
}

}  // namespace

void cross_entropy_forward(const DeviceContext& context, const CrossEntropyForwardArgs& args) {
  if (args.rows == 0) return;
  DispatchFloat(args.dtype, "cross_entropy_forward", [&]<typename T>() {
    using C = ComputeType<T>;
    CrossEntropyForward<T>(context, {.logits = static_cast<const T*>(args.logits),
                                     .targets = args.targets,
                                     .lse = static_cast<C*>(args.lse),
                                     .out = static_cast<C*>(args.loss),
                                     .rows = args.rows,
                                     .cols = args.cols,
                                     .stride = args.cols,
                                     .first = 0,
                                     .ignore_index = args.ignore_index,
                                     .loss = true,
                                     .of_each = static_cast<C>(args.labels.OfEach()),
                                     .of_target = static_cast<C>(args.labels.OfTarget())});
  });
}

void cross_entropy_part_forward(const DeviceContext& context,
                                const CrossEntropyPartForwardArgs& args) {
  if (args.rows == 0) return;
  DispatchFloat(args.dtype, "cross_entropy_part_forward", [&]<typename T>() {
    using C = ComputeType<T>;
    CrossEntropyForward<T>(context, {.logits = static_cast<const T*>(args.logits),
                                     .targets = args.targets,
                                     .lse = static_cast<C*>(args.lse),
                                     .out = static_cast<C*>(args.target_logits),
                                     .rows = args.rows,
                                     .cols = args.cols,
                                     .stride = args.cols + args.padding,
                                     .first = args.first,
                                     .ignore_index = 0,
                                     .loss = false,
                                     .of_each = static_cast<C>(args.labels.OfEach()),
                                     .of_target = static_cast<C>(args.labels.OfTarget())});
  });
}

void cross_entropy_backward(const DeviceContext& context, const CrossEntropyBackwardArgs& args) {
  if (args.rows == 0 || args.cols + args.padding == 0) return;
  DispatchFloat(args.dtype, "cross_entropy_backward", [&]<typename T>() {
    using C = ComputeType<T>;
    CrossEntropyBackward<T>(context, {.logits = static_cast<const T*>(args.logits),
                                      .targets = args.targets,
                                      .lse = static_cast<const C*>(args.lse),
                                      .dlogits = static_cast<T*>(args.dlogits),
                                      .rows = args.rows,
                                      .cols = args.cols,
                                      .stride = args.cols + args.padding,
                                      .first = args.first,
                                      .ignore_index = args.ignore_index,
                                      .num_targets = args.num_targets,
                                      .grad = args.grad,
                                      .of_each = static_cast<C>(args.labels.OfEach()),
                                      .of_target = static_cast<C>(args.labels.OfTarget())});
  });
}

}  // namespace apogee::cuda
