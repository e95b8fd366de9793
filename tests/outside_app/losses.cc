// SPDX-License-Identifier: Apache-2.0

#include "losses.h"

#include <cstdint>
#include <vector>

namespace outside {

namespace autograd = apogee::autograd;
using apogee::DType;
using apogee::Tensor;

Tensor LabelSmoothing::operator()(const Tensor& raw, const Tensor& targets) const {
  // CrossEntropy of 16-bit logits is f32, Mean is not.
  const Tensor logits = raw.dtype() == DType::kF64 ? raw : autograd::Cast(raw, DType::kF32);
  const Tensor cross_entropy = autograd::CrossEntropy(logits, targets);
  // The mean logsumexp: cross entropy with target 0, plus the mean logit 0.
  const Tensor zeros = Tensor::Zeros(targets.shape(), DType::kI64, targets.context());
  const Tensor log_sum = autograd::Add(autograd::CrossEntropy(logits, zeros),
                                       autograd::Mean(autograd::Slice(logits, -1, 0, 1)));
  return autograd::Add(autograd::Scale(cross_entropy, 1 - epsilon),
                       autograd::Scale(autograd::Sub(log_sum, autograd::Mean(logits)), epsilon));
}

Tensor BrierLoss::operator()(const Tensor& logits, const Tensor& targets) const {
  const int64_t vocab = logits.size(-1);
  const std::vector<int64_t> ids = targets.ToVector<int64_t>();
  std::vector<double> one_hot(ids.size() * static_cast<size_t>(vocab), 0.0);
  for (size_t i = 0; i < ids.size(); ++i) {
    one_hot[i * static_cast<size_t>(vocab) + static_cast<size_t>(ids[i])] = 1;
  }
  const Tensor wanted =
      Tensor::FromVector<double>(one_hot, logits.shape(), logits.context(), logits.dtype());
  const Tensor distance = autograd::Sub(autograd::Softmax(logits), wanted);
  return autograd::Scale(autograd::Mean(autograd::Mul(distance, distance)),
                         static_cast<double>(vocab));
}

}  // namespace outside
