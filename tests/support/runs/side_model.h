// SPDX-License-Identifier: Apache-2.0

// A model in which ranks can differ in the gradients they have, for tests of plugins.
//
//   SideModel model;
//   Tensor loss = model.Loss(context, /*sample=*/1, /*used=*/rank == 1);
#ifndef APOGEE_TESTS_SUPPORT_RUNS_SIDE_MODEL_H_
#define APOGEE_TESTS_SUPPORT_RUNS_SIDE_MODEL_H_

#include <memory>
#include <string>
#include <vector>

#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/functions/linear.h"
#include "apogee/nn/layers.h"

namespace apogee::testing {

// x + c W, where c needs no gradient: the gradient of x is complete before backward reads W.
class Side : public nn::Module {
 public:
  static constexpr int64_t kWidth = 8;
  Side() : weight_(RegisterParameter("weight", {kWidth, kWidth}, nn::Init::Normal(0, 1))) {}
  Tensor Forward(const Tensor& x) override {
    if (!used_) return autograd::Scale(x, 1);
    const Tensor c = Tensor::Full(x.shape(), x.dtype(), 0.5, x.context());
    return autograd::Add(x, autograd::MatMul(c, weight_->value()));
  }
  void set_used(bool used) { used_ = used; }

 private:
  autograd::ParameterPtr weight_;
  bool used_ = true;
};

// There are many layers before the side, so backward reduces many chunks after the side's.
class SideModel : public nn::Module {
 public:
  static constexpr int64_t kWidth = Side::kWidth;
  SideModel() {
    for (int i = 0; i < 6; ++i) {
      layers_.push_back(Register(std::to_string(i), std::make_shared<nn::Linear>(kWidth, kWidth)));
    }
    side_ = Register("side", std::make_shared<Side>());
    last_ = Register("last", std::make_shared<nn::Linear>(kWidth, kWidth));
  }
  Tensor Forward(const Tensor& x) override {
    Tensor y = x;
    for (size_t i = 0; i < layers_.size(); ++i) {
      if (static_cast<int>(i) != skipped_) y = (*layers_[i])(y);
    }
    return (*last_)((*side_)(y));
  }
  Tensor Loss(const ContextPtr& context, double sample, bool used) {
    side_->set_used(used);
    const Tensor y =
        (*this)(Tensor::Full({1, kWidth}, Parameters()[0]->data().dtype(), sample, context));
    return autograd::Sum(autograd::Mul(y, y));
  }
  void Skip(int layer) { skipped_ = layer; }
  nn::Linear& layer(size_t i) { return *layers_[i]; }

 private:
  std::vector<std::shared_ptr<nn::Linear>> layers_;
  std::shared_ptr<Side> side_;
  std::shared_ptr<nn::Linear> last_;
  int skipped_ = -1;
};

}  // namespace apogee::testing

#endif  // APOGEE_TESTS_SUPPORT_RUNS_SIDE_MODEL_H_
