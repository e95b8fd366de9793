// SPDX-License-Identifier: Apache-2.0

// The kernels of the optimizers, one table per backend (see tensor/kernel_table.h). A kernel takes
// a list of chunks, one per parameter, so that a parameter group costs one call and one pass over
// memory.
//
//   OptimKernelsFor(context).adam(context, args);
//
// Arithmetic and states have `dtype`, f32 or f64; gradients and working weights may have any
// floating dtype. NaN propagates: the caller has already decided whether to step. The tensors
// of a chunk are contiguous and do not overlap. On a GPU, kernels are queued on the context's
// stream; the one with results in host memory (grad_norm) waits for it.
#ifndef APOGEE_OPTIM_CORE_KERNELS_H_
#define APOGEE_OPTIM_CORE_KERNELS_H_

#include <cstdint>
#include <span>

#include "apogee/layout/layout.h"
#include "apogee/optim/adam/adam_element.h"
#include "apogee/optim/adam/scaled_adam_kernels.h"
#include "apogee/optim/adam/trust_kernels.h"
#include "apogee/optim/averaged/schedule_free_element.h"
#include "apogee/optim/core/update_chunk.h"
#include "apogee/optim/factored/adalomo_kernels.h"
#include "apogee/optim/factored/factored_kernels.h"
#include "apogee/optim/lowbit/low_bit_kernels.h"
#include "apogee/optim/momentum/momentum_elements.h"
#include "apogee/optim/onebit/onebit_kernels.h"
#include "apogee/tensor/kernel_table.h"

namespace apogee::optim {

// The norm of the gradient of each chunk, accumulated in f64 in a fixed order. `result` (out): sum
// of squares (kL2), sum of magnitudes (kL1) or largest magnitude (kMax); NaN if any element is NaN.
struct NormChunk {
  const void* grad;
  DType grad_dtype;
  int64_t n;
  double result;
};
struct NormArgs {
  NormKind kind;
  std::span<NormChunk> chunks;
};

// sum (out): the sum of grad^2, one number of `stat_dtype` in the device's memory.
struct SquareSumChunk {
  const void* grad;
  DType grad_dtype;
  int64_t n;
  void* sum;
};
struct SquareSumArgs {
  DType stat_dtype;
  std::span<const SquareSumChunk> chunks;
};

// grad = clamp(factor * grad, -limit, limit), in place; limit may be infinite.
struct ScaleChunk {
  void* grad;
  DType grad_dtype;
  int64_t n;
};
struct ScaleArgs {
  double factor, limit;
  std::span<const ScaleChunk> chunks;
};

// X(slot name, argument type), one line per kernel. First those that are a loop over the elements
// (element_update.h): nothing else needs to be written for them.
#define APOGEE_FOR_EACH_ELEMENT_KERNEL(X)     \
  X(sgd, SgdArgs)                             \
  X(sgd_momentum, SgdMomentumArgs)            \
  X(lion, LionArgs)                           \
  X(lomo, LomoArgs)                           \
  X(adam, AdamArgs)                           \
  X(adam_amsgrad, AmsgradArgs)                \
  X(frozen_adam, FrozenAdamArgs)              \
  X(local_step, LocalStepArgs)                \
  X(schedule_free_sgd, ScheduleFreeSgdArgs)   \
  X(schedule_free_adam, ScheduleFreeAdamArgs) \
  X(schedule_free_inner, ScheduleFreeInnerArgs)

#define APOGEE_FOR_EACH_OPTIM_KERNEL(X)           \
  APOGEE_FOR_EACH_ELEMENT_KERNEL(X)               \
  X(grad_norm, NormArgs)                          \
  X(square_sums, SquareSumArgs)                   \
  X(grad_scale, ScaleArgs)                        \
  X(factor_moments, FactorArgs)                   \
  X(adafactor_square_sums, AdafactorSumArgs)      \
  X(adafactor_update_sum, AdafactorUpdateSumArgs) \
  X(adafactor, AdafactorArgs)                     \
  X(came_residual_sums, CameArgs)                 \
  X(came, CameArgs)                               \
  X(lamb_sums, LambArgs)                          \
  X(lamb, LambArgs)                               \
  X(lars_sums, LarsArgs)                          \
  X(lars, LarsArgs)                               \
  X(adalomo_sums, AdaLomoArgs)                    \
  X(adalomo_update_norm, AdaLomoArgs)             \
  X(adalomo, AdaLomoArgs)                         \
  X(dots, DotArgs)                                \
  X(adam8, Adam8Args)                             \
  X(adam8_absmax, Adam8Args)                      \
  X(percentile_clip, PercentileArgs)              \
  X(quantize, QuantizeArgs)                       \
  X(dequantize, QuantizeArgs)                     \
  X(low_rank_update, LowRankArgs)                 \
  X(scaled_adam_shares, ScaledAdamSizeArgs)       \
  X(median_clip, MedianClipArgs)                  \
  X(scaled_adam_sizes, ScaledAdamSizeArgs)        \
  X(scaled_adam, ScaledAdamArgs)                  \
  X(blend, BlendArgs)                             \
  X(onebit_lamb_sums, OneBitLambArgs)             \
  X(onebit_lamb, OneBitLambArgs)                  \
  X(norm_clip, NormClipArgs)                      \
  X(adalomo_factors, AdaLomoFactorArgs)

struct OptimKernels {
#define APOGEE_DECLARE_SLOT(name, Args) KernelSlot<Args> name{#name};
  APOGEE_FOR_EACH_OPTIM_KERNEL(APOGEE_DECLARE_SLOT)
#undef APOGEE_DECLARE_SLOT
};

// The table of the context's backend (optim/core/device_backend.h). Calling a kernel that this
// build does not have throws Error.
const OptimKernels& OptimKernelsFor(const DeviceContext& context);

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_CORE_KERNELS_H_
