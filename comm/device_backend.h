// SPDX-License-Identifier: Apache-2.0

// The functions by which every device backend gives comm/ its kernels, in the backend's namespace:
// apogee::comm::cpu in comm/cpu, apogee::comm::cuda in comm/cuda. device_backend.cc chooses among
// them. A backend that lacks one does not link. Private to comm.
//
//   TreeReduceOn(context, "all_reduce", DType::kBF16, ReduceOp::kSum, inputs, outputs, count);
#ifndef APOGEE_COMM_DEVICE_BACKEND_H_
#define APOGEE_COMM_DEVICE_BACKEND_H_

#include <cstdint>
#include <span>

#include "apogee/comm/sign_kernels.h"
#include "apogee/comm/work.h"
#include "apogee/core/device_backends.h"

namespace apogee::comm {

// SignKernelTable  a constant. Calling an empty slot throws Error that names it
// TreeReduceOn     TreeReduce (comm/tree_reduce.h) for the device's pointers, with the same bits
#define APOGEE_DECLARE_DEVICE_BACKEND(Type, backend, ...)                                        \
  namespace backend {                                                                            \
  const SignKernels& SignKernelTable();                                                          \
  void TreeReduceOn(const DeviceContext& context, const char* op_name, DType dtype, ReduceOp op, \
                    std::span<const void* const> inputs, std::span<void* const> outputs,         \
                    int64_t count);                                                              \
  }
APOGEE_FOR_EACH_DEVICE_BACKEND(APOGEE_DECLARE_DEVICE_BACKEND)
#undef APOGEE_DECLARE_DEVICE_BACKEND

// Reduces `count` elements of every input, one input per rank in rank order, into each of
// `outputs`, which may be the inputs. The context's device must reach all this memory, which must
// be ready when its stream gets there. Queued on the context's stream; does not wait. Throws Error
// for integers, with `op_name` in front.
void TreeReduceOn(const DeviceContext& context, const char* op_name, DType dtype, ReduceOp op,
                  std::span<const void* const> inputs, std::span<void* const> outputs,
                  int64_t count);

}  // namespace apogee::comm

#endif  // APOGEE_COMM_DEVICE_BACKEND_H_
