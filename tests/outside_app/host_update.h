// SPDX-License-Identifier: Apache-2.0

// ForHost: the loop of an optimizer that runs on the processor, typed by weights and gradients.
#ifndef OUTSIDE_APP_HOST_UPDATE_H_
#define OUTSIDE_APP_HOST_UPDATE_H_

#include "apogee/apogee.h"

namespace outside {

// Calls fn(weights, gradient) with host pointers: weights in the compute dtype (float or double).
// Rounds the working weights of a 16-bit parameter afterwards.
template <typename Fn>
void ForHost(const apogee::optim::ActiveParam& param, const Fn& fn) {
  APOGEE_CHECK(param.grad.context()->is_host(), param.view->name(),
               " is on a GPU, for which this optimizer has no kernel");
  const apogee::Tensor master = param.view->master();
  apogee::DispatchFloat(param.grad.dtype(), "host_update", [&]<typename G>() {
    if (master.dtype() == apogee::DType::kF64) {
      fn(master.data<double>(), param.grad.data<G>());
    } else {
      fn(master.data<float>(), param.grad.data<G>());
    }
  });
  if (param.view->needs_master()) param.view->value().CopyFrom(master);
}

// The gradient's element times the step's factor (clipping, loss scale).
template <typename G>
double Scaled(G value, double scale) {
  return static_cast<double>(static_cast<apogee::ComputeType<G>>(value)) * scale;
}

}  // namespace outside

#endif  // OUTSIDE_APP_HOST_UPDATE_H_
