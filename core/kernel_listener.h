// SPDX-License-Identifier: Apache-2.0

// KernelListener: hears of every kernel call of a context, with its amount of work.
//
//   context->set_kernel_listener(&listener);   // must live until it is replaced, or the context
//   y = Relu(x);                               // listener.OnKernel({"activation_forward", ...})
//
// On the CPU a call has ended when the listener hears of it, so the time since the last one is its
// cost. In a dry context nothing has run: the listener prices the call. On a GPU the call has only
// been queued. Loops of comm's threads are no kernels.
#ifndef APOGEE_CORE_KERNEL_LISTENER_H_
#define APOGEE_CORE_KERNEL_LISTENER_H_

#include "apogee/core/dtype.h"

namespace apogee {

struct KernelCall {
  const char* name;  // of the slot; products have a suffix for which operands are transposed
  DType dtype;
  double flops;  // multiplications and additions of products, convolutions and attention; else 0
  double bytes;  // read and written, as if there were no caches
};

class KernelListener {
 public:
  virtual ~KernelListener() = default;
  // On the thread that calls the kernel.
  virtual void OnKernel(const KernelCall& call) = 0;
};

}  // namespace apogee

#endif  // APOGEE_CORE_KERNEL_LISTENER_H_
