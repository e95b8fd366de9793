// SPDX-License-Identifier: Apache-2.0

// Updates shared by the optimizers with 1-bit messages. Each is one kernel call per compute dtype.
//
//   AdamWithoutCorrection(params, {.lr = 1e-3, .grad_scale = 1});    // m, v and the weights
//   Tensor m = BlendMomentum(param, 0.9, 0.1);                       // a new tensor
#ifndef APOGEE_OPTIM_ONEBIT_ONEBIT_UPDATES_H_
#define APOGEE_OPTIM_ONEBIT_ONEBIT_UPDATES_H_

#include <array>
#include <span>
#include <string>
#include <vector>

#include "apogee/optim/adam/moment_fields.h"
#include "apogee/optim/optimizer.h"
#include "apogee/optim/options.h"

namespace apogee::optim {

struct PlainAdamRule {
  double lr;
  std::array<double, 2> betas;
  double eps, weight_decay, grad_scale;
};

// AdamW with correct_bias = false, on the states exp_avg and exp_avg_sq.
void AdamWithoutCorrection(std::span<const ActiveParam> params, const PlainAdamRule& rule);

// Returns beta m + weight g as a new tensor of the compute dtype, with the bits of Adam's kernel. m
// is the state exp_avg.
Tensor BlendMomentum(const ActiveParam& param, double beta, double weight);
// m = beta m + weight g, in place in the state exp_avg.
void UpdateMomentum(const ActiveParam& param, double beta, double weight);
// Returns weight g as a new tensor of the compute dtype.
Tensor ScaledGrad(const ActiveParam& param, double weight);
// to = weight x, of the same dtype. They may be the same tensor.
void ScaleTo(const Tensor& to, const Tensor& x, double weight);

// For each parameter with its tensor x:
//   m = beta m + weight x
//   w -= step_size (m / (sqrt(v) + eps) + decay w)
struct FrozenRule {
  double beta, weight, step_size, eps, decay;
};
void FrozenAdamUpdate(std::span<const ActiveParam> params, std::span<const Tensor> x,
                      const FrozenRule& rule);

// The option fields that all 1-bit optimizers have, with `more` before the flags, and their checks.
template <typename Options>
std::vector<OptionField<Options>> OneBitFields(const std::vector<OptionField<Options>>& more = {}) {
  using O = Options;
  return JoinFields<O>(
      {MomentFields<O>("decoupled"),
       {{"freeze_step", &O::freeze_step, {}, "number of updates of the warm-up"}},
       more,
       {{"non_freeze", &O::non_freeze, {}, "this group stays in the warm-up"},
        {"shared_scale", &O::shared_scale, {}, "one scale for all messages instead of one each"},
        {"reset_errors", &O::reset_errors, {}, "drops errors of another number of ranks"},
        {"deepspeed", &O::deepspeed, {}, "as DeepSpeed's optimizer"},
        {"amsgrad", &O::amsgrad, {}, "must be false"}}});
}
template <typename Options>
void CheckOneBitOptions(const Options& o, OptionProblems& problems) {
  if (o.freeze_step < 1) {
    problems.Add(internal::Concat("freeze_step is ", o.freeze_step,
                                  ", must be at least 1: without a warm-up there is no second "
                                  "moment to divide by"));
  }
  if (o.amsgrad) {
    problems.Add(
        "amsgrad is true, must be false: the second moment does not move after freeze_step, so "
        "there is no maximum to take");
  }
}

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_ONEBIT_ONEBIT_UPDATES_H_
