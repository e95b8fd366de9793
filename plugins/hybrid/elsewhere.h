// SPDX-License-Identifier: Apache-2.0

// Parameters that other ranks hold: those of another pipeline stage, or experts of another rank.
//
//   DropValue(*parameter, DType::kF32, "it lies on pipeline stage 1, this is stage 0");
#ifndef APOGEE_PLUGINS_HYBRID_ELSEWHERE_H_
#define APOGEE_PLUGINS_HYBRID_ELSEWHERE_H_

#include <string>

#include "apogee/autograd/parameter.h"

namespace apogee {

// Frees the parameter's value and gradient: it has no element here (Parameter::is_here). Reading it
// throws Error with `where`, which says who has the value, and the remedy.
void DropValue(autograd::Parameter& parameter, DType dtype, const std::string& where);

}  // namespace apogee

#endif  // APOGEE_PLUGINS_HYBRID_ELSEWHERE_H_
