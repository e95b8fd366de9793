// SPDX-License-Identifier: Apache-2.0

// Activations in loops.
#include "apogee/tensor/cpu/activation_functions.h"
#include "apogee/tensor/cpu/kernels.h"
#include "apogee/tensor/cpu/loops.h"

namespace apogee::cpu {

void activation_forward(const DeviceContext& context, const ActivationForwardArgs& args) {
  DispatchFloat(args.dtype, "activation_forward", [&]<typename T>() {
    DispatchActivation(args.kind, [&]<typename F>() {
      const T* x = static_cast<const T*>(args.x);
      T* y = static_cast<T*>(args.y);
      ForElements(context, args.n, [=](int64_t begin, int64_t end) {
#pragma omp simd
        for (int64_t i = begin; i < end; ++i) y[i] = Cast<T>(F::Forward(Load(x[i])));
      });
    });
  });
}

void activation_backward(const DeviceContext& context, const ActivationBackwardArgs& args) {
  DispatchFloat(args.dtype, "activation_backward", [&]<typename T>() {
    DispatchActivation(args.kind, [&]<typename F>() {
      const T* x = static_cast<const T*>(args.x);
      const T* dy = static_cast<const T*>(args.dy);
      T* dx = static_cast<T*>(args.dx);
      ForElements(context, args.n, [=](int64_t begin, int64_t end) {
#pragma omp simd
        for (int64_t i = begin; i < end; ++i) dx[i] = Cast<T>(F::Backward(Load(x[i]), Load(dy[i])));
      });
    });
  });
}

}  // namespace apogee::cpu
