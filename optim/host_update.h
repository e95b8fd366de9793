// SPDX-License-Identifier: Apache-2.0

// UpdateEachElement: the update of an element-wise optimizer, for your own that has no kernels.
//
//   void Update(int group, std::span<const ActiveParam> params, const StepDecision& decision,
//               std::span<const StatBuffer>) override {
//     for (const ActiveParam& param : params)
//       UpdateEachElement(param, decision,
//                         [&](double g, auto& w, auto& m) { m = 0.9 * m + g; w -= 0.1 * m; }, "m");
//   }
//
// Runs on one thread. Throws Error if the parameter is on a GPU. Each rank calls it for the
// elements that it holds; it does not communicate.
#ifndef APOGEE_OPTIM_HOST_UPDATE_H_
#define APOGEE_OPTIM_HOST_UPDATE_H_

#include <array>
#include <cstdint>
#include <utility>

#include "apogee/core/dtype.h"
#include "apogee/optim/step/step.h"

namespace apogee::optim {

// Calls fn(gradient, weight&, state&...) for each element that this rank holds, with the states of
// these names. The gradient has been clipped and divided by the loss scale. Weights and states are
// float; for f64 parameters, double. Afterwards rounds the weights of a 16-bit parameter.
template <typename Fn, typename... Names>
void UpdateEachElement(const ActiveParam& param, const StepDecision& decision, const Fn& fn,
                       Names... states) {
  ParamView& view = *param.view;
  APOGEE_CHECK(param.grad.context()->is_host(), view.name(),
               " is on a GPU, for which this optimizer has no kernel");
  const Tensor master = view.master();
  const double scale = decision.grad_scale();
  const auto run = [&]<typename W, typename G>(W* w, const G* grad) {
    const std::array<W*, sizeof...(Names)> s = {view.state(states).template data<W>()...};
    [&]<size_t... k>(std::index_sequence<k...>) {
      for (int64_t i = 0; i < view.layout().local_numel(); ++i) {
        fn(static_cast<double>(static_cast<ComputeType<G>>(grad[i])) * scale, w[i], s[k][i]...);
      }
    }
    (std::index_sequence_for<Names...>());
  };
  DispatchFloat(param.grad.dtype(), "UpdateEachElement", [&]<typename G>() {
    if (master.dtype() == DType::kF64) {
      run(master.data<double>(), param.grad.data<G>());
    } else {
      run(master.data<float>(), param.grad.data<G>());
    }
  });
  if (view.needs_master()) view.value().CopyFrom(master);
}

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_HOST_UPDATE_H_
