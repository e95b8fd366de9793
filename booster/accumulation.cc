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
    if (loss.defined()) sum += loss.Item();  // a pipeline without a criterion has none
  }
  return sum;
}

}  // namespace apogee
