// SPDX-License-Identifier: Apache-2.0

#include "apogee/driver/records/peak_share.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tensor/ops/matmul.h"

namespace apogee::driver {
namespace {

double MeasurePeakFlops(int num_threads, DType dtype) {
  constexpr int64_t kDim = 512;
  constexpr int kNumProducts = 5;
  // A context of its own: the run's ledger has the run's memory only.
  const ContextPtr context = CpuContext({.num_threads = num_threads});
  const Tensor a = Tensor::Zeros({kDim, kDim}, dtype, context);
  double fastest = 0;
  for (int i = 0; i < kNumProducts; ++i) {
    const auto start = std::chrono::steady_clock::now();
    ops::MatMul(a, a);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    fastest = std::max(fastest, 2.0 * kDim * kDim * kDim / seconds.count());
  }
  return fastest;
}

}  // namespace

PeakShare::PeakShare(ContextPtr context, DType dtype)
    : context_(std::move(context)), peak_flops_(MeasurePeakFlops(context_->num_threads(), dtype)) {
  context_->set_kernel_listener(this);
}

PeakShare::~PeakShare() { context_->set_kernel_listener(nullptr); }

}  // namespace apogee::driver
