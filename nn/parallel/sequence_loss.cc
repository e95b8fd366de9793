// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/parallel/sequence_loss.h"

#include <memory>
#include <vector>

#include "apogee/autograd/node.h"
#include "apogee/tensor/ops/elementwise.h"

namespace apogee::nn::parallel {
namespace {

class MeanOverSequenceNode : public autograd::Node {
 public:
  explicit MeanOverSequenceNode(double factor) : factor_(factor) {}
  const char* name() const override { return "mean_over_sequence"; }
  std::vector<Tensor> Backward(std::vector<Tensor> grads,
                               const autograd::BackwardContext&) override {
    return {ops::Scale(grads[0], factor_)};
  }

 private:
  double factor_;
};

}  // namespace

Tensor MeanOverSequence(const Tensor& mean, int64_t count, const comm::GroupPtr& group) {
  const auto own = static_cast<double>(count);
  const Tensor sums = Tensor::FromVector<double>({count > 0 ? mean.Detach().Item() * own : 0, own},
                                                 {2}, mean.context());
  group->AllReduce(sums);
  const std::vector<double> total = sums.ToVector<double>();
  Tensor loss = Tensor::Full(mean.shape(), mean.dtype(), total[0] / total[1], mean.context());
  if (autograd::NeedsGrad({mean})) {
    const double factor = own / total[1] * group->size();
    autograd::Attach(loss, std::make_shared<MeanOverSequenceNode>(factor), {mean});
  }
  return loss;
}

}  // namespace apogee::nn::parallel
