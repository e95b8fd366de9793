// SPDX-License-Identifier: Apache-2.0

// UpdateChunk: the arguments of an update kernel for one parameter. optim/core/kernels.h has the
// kernels.
//
//   struct LionChunk : UpdateChunk { void* exp_avg; };
//   LionChunk chunk = MakeUpdateChunk<LionChunk>(param);              // make_chunks.h
#ifndef APOGEE_OPTIM_CORE_UPDATE_CHUNK_H_
#define APOGEE_OPTIM_CORE_UPDATE_CHUNK_H_

#include <cstdint>
#include <span>

#include "apogee/core/dtype.h"
#include "apogee/optim/step/step_gate.h"

namespace apogee::optim {

struct UpdateChunk {
  void* weight;  // master weights, of the kernel's dtype
  const void* grad;
  DType grad_dtype;
  void* working;  // out: the weights rounded to working_dtype; or null
  DType working_dtype;
  int64_t n;
};

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

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_CORE_UPDATE_CHUNK_H_
