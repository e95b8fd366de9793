// SPDX-License-Identifier: Apache-2.0

// Kernel arguments of quantized states and projected gradients; see kernels.h.
#ifndef APOGEE_OPTIM_LOW_BIT_KERNELS_H_
#define APOGEE_OPTIM_LOW_BIT_KERNELS_H_

#include "apogee/optim/code_map.h"
#include "apogee/optim/update_chunk.h"

namespace apogee::optim {

// values <-> codes and scales of a whole tensor; block 0: one block.
struct QuantizeArgs {
  DType dtype;  // of `values`, f32 or f64
  const CodeMap* map;
  int64_t block, n;
  uint8_t* codes;
  void* scales;
  DType scale_dtype;
  void* values;
};

// m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2, decoded from and encoded to codes;
// w -= decay * w (kBefore);  w -= step_size * m / (sqrt(v) + eps), with m and v before they are
// encoded; w -= decay * w (kAfter). The chunk is elements [first, first + n) of its logical tensor,
// whose blocks the scales belong to. With new_absmax null its blocks are complete here: their new
// scales are computed and stored. Otherwise the new scales were found by adam8_absmax, which leaves
// everything else alone (in a step that is skipped they are the old ones), and are stored
// afterwards by the caller.
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

// Percentile clipping: a gradient whose norm is above the one that `percentile` of the last
// kNormHistory are below is scaled down to that. The history begins as full of the first norm.
inline constexpr int64_t kNormHistory = 100;
struct PercentileChunk {
  const void* squares;  // total: of the gradient before grad_scale
  void* history;        // squared norms behind it
  DType dtype;          // of the history
  int64_t step;         // of the parameter, from 1
  int64_t percentile;
  StepGate* gate;  // out: grad_scale and skip
};
struct PercentileArgs {
  DType stat_dtype;
  GradFactor grad_scale;
  bool store;  // the history takes the norm in
  std::span<const PercentileChunk> chunks;
};

// w -= decay * w (kBefore);  w += scale * grad;  w -= decay * w (kAfter), where the decay is that
// times decay_rate. `grad` is the update projected back. Nothing happens where `gate` says skip.
struct LowRankArgs {
  DType dtype;
  DecayKind decay_kind;
  double scale, decay;
  SizedRate decay_rate;
  const StepGate* gate;
  std::span<const UpdateChunk> chunks;
};

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_LOW_BIT_KERNELS_H_
