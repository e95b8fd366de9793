// SPDX-License-Identifier: Apache-2.0

#include "apogee/matrix/workload.h"

#include "apogee/autograd/functions/arithmetic.h"

namespace apogee::matrix {

Tensor Workload::Loss(const TrainedModel& trained, const SampleRange& range) const {
  const data::Batch batch = Batch(trained.context, range);
  const Tensor loss = trained.criterion(trained.model(batch.inputs), batch.targets);
  const apogee::Auxiliary auxiliary = Auxiliary();
  return auxiliary != nullptr ? autograd::Add(loss, auxiliary({&trained.model})) : loss;
}

}  // namespace apogee::matrix
