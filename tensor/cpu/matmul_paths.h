// SPDX-License-Identifier: Apache-2.0

// The two implementations behind cpu::matmul. Private to tensor/cpu.
#ifndef APOGEE_TENSOR_CPU_MATMUL_PATHS_H_
#define APOGEE_TENSOR_CPU_MATMUL_PATHS_H_

#include "apogee/core/device_context.h"
#include "apogee/tensor/kernels/args.h"

namespace apogee::cpu {

// Takes any dtypes and sizes, also k == 0. Accumulates in the inputs' ComputeType.
void MatMulEigen(const DeviceContext& context, const MatMulArgs& args);

#if defined(APOGEE_HAS_ONEDNN) && defined(_OPENMP)
// Only OpenMP can limit oneDNN to a rank's number of threads, so a build without OpenMP does not
// use oneDNN.
#define APOGEE_MATMUL_ONEDNN 1
// Returns false and leaves c untouched if oneDNN has no fast implementation. Needs every size > 0.
bool TryMatMulOneDnn(const DeviceContext& context, const MatMulArgs& args);
#endif

}  // namespace apogee::cpu

#endif  // APOGEE_TENSOR_CPU_MATMUL_PATHS_H_
