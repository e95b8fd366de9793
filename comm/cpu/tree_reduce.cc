// SPDX-License-Identifier: Apache-2.0

#include "apogee/comm/tree_reduce.h"

#include "apogee/comm/device_backend.h"

namespace apogee::comm::cpu {

void TreeReduceOn(const DeviceContext& /*context*/, const char* op_name, DType dtype, ReduceOp op,
                  std::span<const void* const> inputs, std::span<void* const> outputs,
                  int64_t count) {
  TreeReduce(op_name, dtype, op, inputs, outputs, count);
}

}  // namespace apogee::comm::cpu
