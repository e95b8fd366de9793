// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/core/device_backend.h"

namespace apogee::optim {
namespace {

DecisionMaker DecisionMakerOf(const DeviceContext& context) {
  return APOGEE_DEVICE_FUNCTION(context.device().type, DeviceDecisionMaker)();
}

}  // namespace

const OptimKernels& OptimKernelsFor(const DeviceContext& context) {
  return APOGEE_DEVICE_FUNCTION(context.device().type, OptimKernelTable)();
}

bool HasDeviceDecision(const DeviceContext& context) { return DecisionMakerOf(context) != nullptr; }

std::unique_ptr<DeviceDecision> MakeDeviceDecision(const ContextPtr& context) {
  APOGEE_CHECK(HasDeviceDecision(*context), "MakeDeviceDecision: steps on ",
               context->device().ToString(), " are decided by the host");
  return DecisionMakerOf(*context)(context);
}

}  // namespace apogee::optim
