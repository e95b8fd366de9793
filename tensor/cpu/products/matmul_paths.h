// SPDX-License-Identifier: Apache-2.0

// The implementations behind cpu::matmul. Private to tensor/cpu.
#ifndef APOGEE_TENSOR_CPU_MATMUL_PATHS_H_
#define APOGEE_TENSOR_CPU_MATMUL_PATHS_H_

#include "apogee/core/device_context.h"
#include "apogee/tensor/cpu/onednn/onednn.h"
#include "apogee/tensor/kernels/args.h"

namespace apogee::cpu {

// Takes any dtypes and sizes, also k == 0. Accumulates in the inputs' ComputeType.
void MatMulEigen(const DeviceContext& context, const MatMulArgs& args);

// Returns false and leaves c untouched unless the product has few rows, a large b, and dtypes that
// this path knows.
bool TryMatMulRows(const DeviceContext& context, const MatMulArgs& args);

#ifdef APOGEE_USE_ONEDNN
// Returns false and leaves c untouched if oneDNN has no fast implementation. Needs every size > 0.
bool TryMatMulOneDnn(const DeviceContext& context, const MatMulArgs& args);
#endif

}  // namespace apogee::cpu

#endif  // APOGEE_TENSOR_CPU_MATMUL_PATHS_H_
