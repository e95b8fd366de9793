// SPDX-License-Identifier: Apache-2.0

// One Adam step on 8-bit states, shared by AdamW8bit and GaLoreAdamW8bit.
//
//   AppendAdam8Specs(settings, numel, /*low_rank=*/{}, specs);      // states of one parameter
//   Tensor maxima = Adam8AbsMax(settings, param, grad_scale);       // only if NeedsAbsMaxPhase
//   ... reduce maxima over ranks ...
//   const Adam8Param item{&param, grad_scale, maxima};
//   Adam8Update(settings, {&item, 1});
//
// State names are bitsandbytes': state1 and state2 (the moments), absmax1 and absmax2 (their
// scales).
#ifndef APOGEE_OPTIM_LOWBIT_ADAM8_STEP_H_
#define APOGEE_OPTIM_LOWBIT_ADAM8_STEP_H_

#include <array>
#include <optional>
#include <vector>

#include "apogee/optim/adam/moment_fields.h"
#include "apogee/optim/core/update_chunk.h"
#include "apogee/optim/lowbit/quantized_state.h"
#include "apogee/optim/optimizer.h"
#include "apogee/optim/options.h"

namespace apogee::optim {

struct Adam8Settings {
  double lr = 0;
  std::array<double, 2> betas = {};
  double eps = 0, weight_decay = 0;
  int64_t bits = 8, min_8bit_size = 0;
  int64_t block = 256;  // 0: one scale per tensor
  bool cuda = true;     // as kernel = "cuda" in adamw8bit.h

  bool UsesCodes(int64_t numel) const { return bits == 8 && numel >= min_8bit_size; }
  // Shards of the tensor should be cut at multiples of this many elements.
  int64_t CutMultiple(int64_t numel) const { return UsesCodes(numel) && block > 0 ? block : 1; }
  DecayKind decay_kind() const {
    return weight_decay == 0 ? DecayKind::kNone : cuda ? DecayKind::kAfter : DecayKind::kBefore;
  }
};

// The option fields that both optimizers have, but for the last, and the checks of these.
template <typename Options>
std::vector<OptionField<Options>> Adam8Fields() {
  using O = Options;
  using enum OptionCheck;
  return JoinFields<O>(
      {MomentFields<O>("decoupled"),
       {{"bits", &O::bits, {}, "of a state's element: 8 or 32"},
        {"min_8bit_size", &O::min_8bit_size, kAtLeastZero, "smaller tensors have 32 bits"},
        {"block_size", &O::block_size, {}, "elements with one scale; a power of two, 64 to 4096"},
        {"block_wise", &O::block_wise, {}, "false: one scale per tensor"}}});
}
// `settings.block` is the option block_size.
void CheckAdam8(const Adam8Settings& settings, const std::string& kernel, OptionProblems& problems);

// Appends the states of a tensor of `numel` elements: a parameter, or a projected gradient of shape
// `low_rank`.
void AppendAdam8Specs(const Adam8Settings& settings, int64_t numel,
                      const std::optional<Shape>& low_rank, std::vector<StateSpec>& specs);

// Whether the scales of the parameter need a statistics phase, because several ranks may hold parts
// of one block.
bool NeedsAbsMaxPhase(const Adam8Settings& settings, const ParamView& view);
// How many maxima that phase reserves for the parameter: the scales of both moments.
int64_t NumAbsMax(const Adam8Settings& settings, const ParamView& view);
// This rank's maxima (compute dtype): one per block of state1, then one per block of state2.
Tensor Adam8AbsMax(const Adam8Settings& settings, const ActiveParam& param,
                   const GradFactor& grad_scale);

struct Adam8Param {
  const ActiveParam* param;
  GradFactor grad_scale;
  Tensor new_scales;  // Adam8AbsMax reduced over ranks; undefined without the phase
};
// Updates parameters of one group. Their step counts have already advanced.
void Adam8Update(const Adam8Settings& settings, std::span<const Adam8Param> params);

// An Adam step for a low-rank gradient `grad` (compute dtype). Returns the update
// -lr / c1 * m / (sqrt(v / c2) + eps), shaped like `grad`, and updates the moments, which must be
// whole on this rank. No weight decay.
Tensor Adam8LowRankStep(const Adam8Settings& settings, ParamView& view, const Tensor& grad,
                        const GradFactor& grad_scale);

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_LOWBIT_ADAM8_STEP_H_
