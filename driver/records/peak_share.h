// SPDX-License-Identifier: Apache-2.0

// PeakShare: which share of its peak a rank reaches in training. Private to driver.
//
//   PeakShare share(context, DTypeOf(precision));     // hears of the context's kernels from now on
//   ... a step ...
//   event.flops = share.TakeFlops();
//   event.peak_flops = share.peak_flops();
//
// Flops are those of products, convolutions and attention, the repeated ones of recompute among
// them. The peak is measured: the fastest of some products of 512 x 512 matrices in this dtype.
#ifndef APOGEE_DRIVER_RECORDS_PEAK_SHARE_H_
#define APOGEE_DRIVER_RECORDS_PEAK_SHARE_H_

#include <atomic>

#include "apogee/core/device_context.h"
#include "apogee/core/kernel_listener.h"

namespace apogee::driver {

class PeakShare : public KernelListener {
 public:
  // Measures for some milliseconds. `context`: of the CPU, for real runs.
  PeakShare(ContextPtr context, DType dtype);
  ~PeakShare() override;

  void OnKernel(const KernelCall& call) override { flops_ += call.flops; }
  // Since the last call.
  double TakeFlops() { return flops_.exchange(0); }
  double peak_flops() const { return peak_flops_; }  // per second

 private:
  const ContextPtr context_;
  const double peak_flops_;
  std::atomic<double> flops_ = 0;
};

}  // namespace apogee::driver

#endif  // APOGEE_DRIVER_RECORDS_PEAK_SHARE_H_
