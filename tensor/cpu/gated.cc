// SPDX-License-Identifier: Apache-2.0

// Gated units: an activation of one operand times the other.
#include <algorithm>

#include "apogee/tensor/cpu/activation_functions.h"
#include "apogee/tensor/cpu/kernels.h"
#include "apogee/tensor/cpu/loops.h"

namespace apogee::cpu {
namespace {

// Calls fn(row, first column, number of columns) for runs of elements of rows × cols, on the
// context's threads.
template <typename Fn>
void ForRowRuns(const DeviceContext& context, int64_t rows, int64_t cols, const Fn& fn) {
  ForElements(context, rows * cols, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end;) {
      const int64_t row = i / cols, col = i % cols, count = std::min(cols - col, end - i);
      fn(row, col, count);
      i += count;
    }
  });
}

}  // namespace

void gated_forward(const DeviceContext& context, const GatedForwardArgs& args) {
  DispatchFloat(args.dtype, "gated_forward", [&]<typename T>() {
    DispatchActivation(args.kind, [&]<typename F>() {
      ForRowRuns(context, args.rows, args.cols, [&args](int64_t row, int64_t col, int64_t count) {
        const T* gate = static_cast<const T*>(args.gate) + row * args.gate_stride + col;
        const T* up = static_cast<const T*>(args.up) + row * args.up_stride + col;
        T* y = static_cast<T*>(args.y) + row * args.cols + col;
#pragma omp simd
        for (int64_t i = 0; i < count; ++i) {
          y[i] = Cast<T>(F::Forward(Load(gate[i])) * Load(up[i]));
        }
      });
    });
  });
}

void gated_backward(const DeviceContext& context, const GatedBackwardArgs& args) {
  DispatchFloat(args.dtype, "gated_backward", [&]<typename T>() {
    DispatchActivation(args.kind, [&]<typename F>() {
      ForRowRuns(context, args.rows, args.cols, [&args](int64_t row, int64_t col, int64_t count) {
        using C = ComputeType<T>;
        const int64_t at = row * args.cols + col;
        const T* gate = static_cast<const T*>(args.gate) + row * args.gate_stride + col;
        const T* up = static_cast<const T*>(args.up) + row * args.up_stride + col;
        const T* dy = static_cast<const T*>(args.dy) + at;
        T* dgate = static_cast<T*>(args.dgate) + at;
        T* dup = static_cast<T*>(args.dup) + at;
#pragma omp simd
        for (int64_t i = 0; i < count; ++i) {
          const C g = Load(gate[i]), d = Load(dy[i]);
          dup[i] = Cast<T>(F::Times(g, d));
          dgate[i] = Cast<T>(F::Backward(g, d * Load(up[i])));
        }
      });
    });
  });
}

}  // namespace apogee::cpu
