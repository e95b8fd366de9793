// SPDX-License-Identifier: Apache-2.0

// An op of the program's own.
//
//   Tensor gate = outside::Sigmoid(x);
#ifndef OUTSIDE_APP_OPS_H_
#define OUTSIDE_APP_OPS_H_

#include "apogee/apogee.h"

namespace outside {

// 1 / (1 + exp(-x)), whose derivative is y (1 - y).
struct SigmoidFunction {
  static constexpr const char* kName = "outside_sigmoid";
  apogee::autograd::Tensors Forward(const apogee::autograd::Tensors& in,
                                    apogee::autograd::Tensors& saved) const {
    namespace ops = apogee::ops;
    const apogee::Tensor one = apogee::Tensor::Full({}, in[0].dtype(), 1, in[0].context());
    const apogee::Tensor exp = ops::UnaryForward(apogee::UnaryOp::kExp, ops::Scale(in[0], -1));
    saved = {ops::Div(one, ops::Add(one, exp))};
    return saved;
  }
  apogee::autograd::Tensors Backward(const apogee::autograd::Tensors& grads,
                                     const apogee::autograd::Tensors& saved) const {
    namespace ops = apogee::ops;
    const apogee::Tensor& y = saved[0];
    return {ops::Mul(grads[0], ops::Sub(y, ops::Mul(y, y)))};
  }
};

inline apogee::Tensor Sigmoid(const apogee::Tensor& x) {
  return apogee::autograd::Apply(SigmoidFunction(), {x})[0];
}

}  // namespace outside

#endif  // OUTSIDE_APP_OPS_H_
