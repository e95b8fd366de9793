// SPDX-License-Identifier: Apache-2.0

// Arguments that several update kernels share. optim/core/kernels.h has the kernels.
//
//   struct LambChunk : UpdateChunk { void* exp_avg; ... };
//   LambChunk chunk = MakeUpdateChunk<LambChunk>(param);              // make_chunks.h
#ifndef APOGEE_OPTIM_CORE_UPDATE_CHUNK_H_
#define APOGEE_OPTIM_CORE_UPDATE_CHUNK_H_

#include <cstdint>
#include <span>

#include "apogee/optim/element_update.h"

namespace apogee::optim {

// A learning rate relative to the size of the weights: rate * max(floor, rms(w)). If weight_sum is
// null: rate.
struct SizedRate {
  double rate;
  const void* weight_sum = nullptr;  // total: sum of w^2, in the device's memory
  DType stat_dtype = DType::kF32;
  int64_t numel = 0;  // of w
  double floor = 0;
};

// Where weight decay acts: on the gradient, or on the weights before or after the update.
enum class DecayKind { kNone, kL2, kBefore, kAfter };

// x clamped to [-limit, limit]; NaN stays NaN.
template <typename C>
APOGEE_HOST_DEVICE C ClampTo(C x, C limit) {
  return x > limit ? limit : x < -limit ? -limit : x;
}

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_CORE_UPDATE_CHUNK_H_
