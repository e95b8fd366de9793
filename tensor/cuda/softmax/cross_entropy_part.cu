// SPDX-License-Identifier: Apache-2.0

// Joins the cross entropy of columns that are split into parts: one kernel between the two
// reductions over the parts, and one after them. Both work row by row.
#include <cmath>

#include "apogee/tensor/cuda/attention/log_sum_exp.cuh"
#include "apogee/tensor/cuda/kernels.h"

namespace apogee::cuda {
namespace {

template <typename T>
void Sums(const DeviceContext& context, const CrossEntropyPartSumsArgs& args) {
  const T* lse = static_cast<const T*>(args.lse);
  const T* max = static_cast<const T*>(args.max);
  T* sums = static_cast<T*>(args.sums);
  ForEach(context, args.rows, [=] __device__(int64_t r) {
    sums[r] = Cast<T>(Exp<T>(Load(lse + r) - ExpShift(Load(max + r))));
  });
}

template <typename T>
void Join(const DeviceContext& context, const CrossEntropyPartJoinArgs& args) {
  using C = ComputeType<T>;
  const T* max = static_cast<const T*>(args.max);
  const T* sums = static_cast<const T*>(args.sums);
  const T* target_logits = static_cast<const T*>(args.target_logits);
  const int64_t* targets = args.targets;
  const int64_t ignore_index = args.ignore_index;
  T* lse = static_cast<T*>(args.lse);
  T* loss = static_cast<T*>(args.loss);
  ForEach(context, args.rows, [=] __device__(int64_t r) {
    const C total = Load(max + r) + std::log(Load(sums + r));
    lse[r] = Cast<T>(total);
    loss[r] = Cast<T>(targets[r] == ignore_index ? C(0) : total - Load(target_logits + r));
  });
}

}  // namespace

void cross_entropy_part_sums(const DeviceContext& context, const CrossEntropyPartSumsArgs& args) {
  DispatchFloat(args.dtype, "cross_entropy_part_sums",
                [&]<typename T>() { Sums<T>(context, args); });
}

void cross_entropy_part_join(const DeviceContext& context, const CrossEntropyPartJoinArgs& args) {
  DispatchFloat(args.dtype, "cross_entropy_part_join",
                [&]<typename T>() { Join<T>(context, args); });
}

}  // namespace apogee::cuda
