// SPDX-License-Identifier: Apache-2.0

// Kernel arguments of 8-bit states and projected gradients; see kernels.h.
//
//   OptimKernelsFor(context).adam8(context, args);              // one pass: decode, update, encode
//   OptimKernelsFor(context).percentile_clip(context, clip);    // writes a StepGate per parameter
#ifndef APOGEE_OPTIM_LOWBIT_LOW_BIT_KERNELS_H_
#define APOGEE_OPTIM_LOWBIT_LOW_BIT_KERNELS_H_

#include "apogee/optim/core/update_chunk.h"
#include "apogee/optim/lowbit/code_map.h"

namespace apogee::optim {

// quantize: writes the codes and scales of `values`. dequantize: writes `values`. For a whole
// tensor of n elements in blocks of `block` elements; block 0: one block.
struct QuantizeArgs {
  DType dtype;  // of `values`, f32 or f64
  const CodeMap* map;
  int64_t block, n;
  uint8_t* codes;
  void* scales;
  DType scale_dtype;
  void* values;
};

// Adam with m and v as 8-bit codes, decoded before and encoded after the update:
//   kBefore: w -= decay * w
//   m = beta1 m + (1 - beta1) g
//   v = beta2 v + (1 - beta2) g^2
//   w -= step_size * m / (sqrt(v) + eps), with m and v before they are encoded
//   kAfter: w -= decay * w
// A chunk is elements [first, first + n) of its logical tensor; the scales are those of the blocks
// of that tensor. If new_absmax1 and new_absmax2 are null, the chunk has whole blocks only, and
// adam8 computes and stores their new scales. Otherwise adam8 encodes with the scales in
// new_absmax, which adam8_absmax has computed before, and the caller stores them afterwards.
// adam8_absmax writes nothing else; in a skipped step it writes the old scales.
struct Adam8Chunk : UpdateChunk {
  int64_t first;
  uint8_t* codes1;
  uint8_t* codes2;
  void* absmax1;  // of the kernel's dtype
  void* absmax2;
  void* new_absmax1;
  void* new_absmax2;
  GradFactor grad_scale;
  double step_size, eps;
};
struct Adam8Args {
  DType dtype;
  DecayKind decay_kind;
  double decay, beta1, beta2;
  bool keep_sign;  // CodeMap::SignedCode
  int64_t block;   // 0: one block
  std::span<const Adam8Chunk> chunks;
};

// Percentile clipping: the limit is number `percentile` (from 0) of the last kNormHistory norms,
// sorted. A gradient with a larger norm is scaled down to the limit. At the first step the whole
// history is set to the first norm.
inline constexpr int64_t kNormHistory = 100;
struct PercentileChunk {
  const void* squares;  // total: squared norm of the gradient before grad_scale
  void* history;        // kNormHistory squared norms, after grad_scale
  DType dtype;          // of the history
  int64_t step;         // of the parameter, from 1
  int64_t percentile;
  StepGate* gate;  // out: grad_scale and skip
};
struct PercentileArgs {
  DType stat_dtype;
  GradFactor grad_scale;
  bool store;  // stores the new norm in the history
  std::span<const PercentileChunk> chunks;
};

// Applies an update that was projected back (`grad`), with d = decay * decay_rate:
//   kBefore: w -= d * w
//   w += scale * grad
//   kAfter: w -= d * w
// Does nothing if `gate` says skip.
struct LowRankArgs {
  DType dtype;
  DecayKind decay_kind;
  double scale, decay;
  SizedRate decay_rate;
  const StepGate* gate;
  std::span<const UpdateChunk> chunks;
};

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_LOWBIT_LOW_BIT_KERNELS_H_
