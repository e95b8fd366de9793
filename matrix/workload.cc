// SPDX-License-Identifier: Apache-2.0

#include "apogee/matrix/workload.h"

namespace apogee::matrix {

Tensor Workload::Loss(const TrainedModel& trained, const SampleRange& range) const {
  const data::Batch batch = Batch(trained.context, range);
  return trained.criterion(trained.model(batch.inputs), batch.targets);
}

}  // namespace apogee::matrix
