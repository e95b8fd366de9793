// SPDX-License-Identifier: Apache-2.0

// One Adam step on 8-bit states, for the optimizers that have it (AdamW8bit, GaLoreAdamW8bit).
//
//   AppendAdam8Specs(settings, numel, /*low_rank=*/{}, specs);            // states of one
//   parameter Adam8AbsMax(settings, param, grad_scale, maxima);                     // where shards
//   may cut blocks Adam8Update(settings, params, grad_scales, new_scales);
//
// State names are bitsandbytes': state1, state2, absmax1, absmax2.
#ifndef APOGEE_OPTIM_ADAM8_STEP_H_
#define APOGEE_OPTIM_ADAM8_STEP_H_

#include <array>
#include <optional>
#include <vector>

#include "apogee/optim/check_options.h"
#include "apogee/optim/optimizer.h"
#include "apogee/optim/quantized_state.h"

namespace apogee::optim {

struct Adam8Settings {
  double lr = 0;
  std::array<double, 2> betas = {};
  double eps = 0, weight_decay = 0;
  int64_t bits = 8, min_8bit_size = 0;
  int64_t block = 256;  // 0: one scale per tensor
  bool cuda = true;     // decay after the update, signs kept

  bool UsesCodes(int64_t numel) const { return bits == 8 && numel >= min_8bit_size; }
  // Elements that a cut through a tensor should be a multiple of.
  int64_t CutMultiple(int64_t numel) const { return UsesCodes(numel) && block > 0 ? block : 1; }
  DecayKind decay_kind() const {
    return weight_decay == 0 ? DecayKind::kNone : cuda ? DecayKind::kAfter : DecayKind::kBefore;
  }
};

// Checks that both optimizers' options share.
void CheckAdam8(const Adam8Settings& settings, const std::string& kernel, OptionProblems& problems);

// The two moments of a tensor of `numel` elements: of the parameter, or of the shape `low_rank`.
void AppendAdam8Specs(const Adam8Settings& settings, int64_t numel,
                      const std::optional<Shape>& low_rank, std::vector<StateSpec>& specs);

// True when the scales of `param` take a statistics phase.
bool NeedsAbsMaxPhase(const Adam8Settings& settings, const ParamView& view);
// Numbers that the phase reserves for it: the scales of both moments.
int64_t NumAbsMax(const Adam8Settings& settings, const ParamView& view);
// This rank's maxima, state1's blocks then state2's, in the view's compute dtype.
Tensor Adam8AbsMax(const Adam8Settings& settings, const ActiveParam& param,
                   const GradFactor& grad_scale);

struct Adam8Param {
  const ActiveParam* param;
  GradFactor grad_scale;
  Tensor new_scales;  // as Adam8AbsMax, reduced; undefined without a phase
};
// Updates parameters of one group; their steps have been advanced.
void Adam8Update(const Adam8Settings& settings, std::span<const Adam8Param> params);

// An Adam step of a low-rank gradient: returns the update -lr / c1 * m / (sqrt(v / c2) + eps),
// shaped like `grad` (compute dtype), and moves the moments, which are whole on every rank. No
// decay.
Tensor Adam8LowRankStep(const Adam8Settings& settings, ParamView& view, const Tensor& grad,
                        const GradFactor& grad_scale);

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_ADAM8_STEP_H_
