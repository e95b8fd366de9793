// SPDX-License-Identifier: Apache-2.0

// The two implementations behind cpu::matmul. Private to tensor/cpu.
#ifndef APOGEE_TENSOR_CPU_MATMUL_PATHS_H_
#define APOGEE_TENSOR_CPU_MATMUL_PATHS_H_

#include "apogee/core/device_context.h"
#include "apogee/tensor/kernels/args.h"

namespace apogee::cpu {

// Any dtypes and sizes, k == 0 included. Accumulates in ComputeType of the inputs.
void MatMulEigen(const DeviceContext& context, const MatMulArgs& args);

#if defined(APOGEE_HAS_ONEDNN) && defined(_OPENMP)
// oneDNN can be held to a rank's number of threads through OpenMP only, so a build without it does
// not use it.
#define APOGEE_MATMUL_ONEDNN 1
// False, with c untouched, where oneDNN has no fast implementation. Needs every size > 0.
bool TryMatMulOneDnn(const DeviceContext& context, const MatMulArgs& args);
#endif

}  // namespace apogee::cpu

#endif  // APOGEE_TENSOR_CPU_MATMUL_PATHS_H_
