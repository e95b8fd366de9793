// SPDX-License-Identifier: Apache-2.0

#include "apogee/booster/accumulation.h"

#include "apogee/core/error.h"

namespace apogee {

double Accumulation::loss() const {
  APOGEE_CHECK(is_complete(), "Accumulation::loss: ", window_->losses.size(), " of the window's ",
               window_->num_micro_batches,
               " micro-batches have run; ask after the last one, when is_complete()");
  double sum = 0;
  for (const Tensor& loss : window_->losses) {
    // A pipeline without a criterion has none, and a dry run has not computed it.
    if (loss.defined() && !loss.context()->is_dry()) sum += loss.Item();
  }
  return sum;
}

}  // namespace apogee
