// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/parallel/sequence_loss.h"

#include <vector>

#include "apogee/autograd/node.h"
#include "apogee/tensor/ops/elementwise.h"

namespace apogee::nn::parallel {
Tensor MeanOverSequence(const Tensor& mean, int64_t count, const comm::GroupPtr& group) {
  const auto own = static_cast<double>(count);
  const Tensor sums = Tensor::FromVector<double>({count > 0 ? mean.Detach().Item() * own : 0, own},
                                                 {2}, mean.context());
  group->AllReduce(sums);
  const std::vector<double> total = sums.ToVector<double>();
  Tensor loss = Tensor::Full(mean.shape(), mean.dtype(), total[0] / total[1], mean.context());
  const double factor = own / total[1] * group->size();
  autograd::AttachMap(loss, "mean_over_sequence", mean,
                      [factor](const Tensor& dy) { return ops::Scale(dy, factor); });
  return loss;
}

}  // namespace apogee::nn::parallel
