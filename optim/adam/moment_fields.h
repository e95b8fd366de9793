// SPDX-License-Identifier: Apache-2.0

// The option fields of optimizers with two moments as Adam's. Private to optim.
//
//   return JoinFields<O>({MomentFields<O>("decoupled"), {{"amsgrad", &O::amsgrad}}});
#ifndef APOGEE_OPTIM_ADAM_MOMENT_FIELDS_H_
#define APOGEE_OPTIM_ADAM_MOMENT_FIELDS_H_

#include <vector>

#include "apogee/optim/options.h"

namespace apogee::optim {

// `decay`: the help text of weight_decay.
template <typename O>
std::vector<OptionField<O>> MomentFields(const char* decay) {
  using enum OptionCheck;
  return {{"lr", &O::lr, kAtLeastZero, "learning rate"},
          {"betas", &O::betas, kDecay, "decay rates of the moments"},
          {"eps", &O::eps, kAtLeastZero, "added to the root of the second moment"},
          {"weight_decay", &O::weight_decay, kAtLeastZero, decay}};
}

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_ADAM_MOMENT_FIELDS_H_
