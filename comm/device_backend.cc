// SPDX-License-Identifier: Apache-2.0

#include "apogee/comm/device_backend.h"

namespace apogee::comm {

const SignKernels& SignKernelsFor(const DeviceContext& context) {
  return APOGEE_DEVICE_FUNCTION(context.device().type, SignKernelTable)();
}

void TreeReduceOn(const DeviceContext& context, const char* op_name, DType dtype, ReduceOp op,
                  std::span<const void* const> inputs, std::span<void* const> outputs,
                  int64_t count) {
  APOGEE_DEVICE_FUNCTION(context.device().type, TreeReduceOn)
  (context, op_name, dtype, op, inputs, outputs, count);
}

}  // namespace apogee::comm
