// SPDX-License-Identifier: Apache-2.0

// The kernels of element-wise updates: loops over the elements of the optimizers.
#include "apogee/optim/cuda/kernels.h"
#include "apogee/optim/element_update.cuh"

namespace apogee::optim::cuda {

#define APOGEE_DEFINE_KERNEL(name, Args) \
  void name(const DeviceContext& context, const Args& args) { RunElements(context, args); }
APOGEE_FOR_EACH_ELEMENT_KERNEL(APOGEE_DEFINE_KERNEL)
#undef APOGEE_DEFINE_KERNEL

}  // namespace apogee::optim::cuda
