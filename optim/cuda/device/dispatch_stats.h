// SPDX-License-Identifier: Apache-2.0

// Chooses the types of a kernel with statistics. Private to optim/cuda.
//
//   DispatchStats(args.dtype, args.stat_dtype, [&]<typename C, typename S>() { ... });
#ifndef APOGEE_OPTIM_CUDA_DEVICE_DISPATCH_STATS_H_
#define APOGEE_OPTIM_CUDA_DEVICE_DISPATCH_STATS_H_

#include "apogee/core/dtype.h"

namespace apogee::optim::cuda {

// Calls run.template operator()<C, S>() with C for the compute dtype and S for that of the
// statistics.
template <typename Run>
void DispatchStats(DType dtype, DType stat_dtype, const Run& run) {
  if (dtype == DType::kF64) return run.template operator()<double, double>();
  if (stat_dtype == DType::kF64) return run.template operator()<float, double>();
  run.template operator()<float, float>();
}

}  // namespace apogee::optim::cuda

#endif  // APOGEE_OPTIM_CUDA_DEVICE_DISPATCH_STATS_H_
