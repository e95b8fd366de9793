// SPDX-License-Identifier: Apache-2.0

// The functions by which every device backend gives optim/ its kernels, in the backend's namespace:
// apogee::optim::cpu in optim/cpu, apogee::optim::cuda in optim/cuda. device_backend.cc chooses
// among them. A backend that lacks one does not link. Private to optim.
//
//   const OptimKernels& cuda::OptimKernelTable() { return kTable; }
//   DecisionMaker cuda::DeviceDecisionMaker() { return &MakeGpuDecision; }
#ifndef APOGEE_OPTIM_CORE_DEVICE_BACKEND_H_
#define APOGEE_OPTIM_CORE_DEVICE_BACKEND_H_

#include <memory>

#include "apogee/core/device_backends.h"
#include "apogee/optim/core/kernels.h"
#include "apogee/optim/step/device_decision.h"

namespace apogee::optim {

using DecisionMaker = std::unique_ptr<DeviceDecision> (*)(const ContextPtr& context);

// OptimKernelTable     a constant. Calling an empty slot throws Error that names it
// DeviceDecisionMaker  makes the object that decides steps on the device. Null: the host decides,
//                      and waits for the norms that it needs
#define APOGEE_DECLARE_DEVICE_BACKEND(Type, backend, ...) \
  namespace backend {                                     \
  const OptimKernels& OptimKernelTable();                 \
  DecisionMaker DeviceDecisionMaker();                    \
  }
APOGEE_FOR_EACH_DEVICE_BACKEND(APOGEE_DECLARE_DEVICE_BACKEND)
#undef APOGEE_DECLARE_DEVICE_BACKEND

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_CORE_DEVICE_BACKEND_H_
