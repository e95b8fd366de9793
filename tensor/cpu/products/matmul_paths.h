// SPDX-License-Identifier: Apache-2.0

// The implementations behind cpu::matmul. Private to tensor/cpu.
#ifndef APOGEE_TENSOR_CPU_MATMUL_PATHS_H_
#define APOGEE_TENSOR_CPU_MATMUL_PATHS_H_

#include <vector>

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
// The same for a product that sums over rows (a_trans), with a primitive that takes any number of
// them. Its bits can differ from those of TryMatMulOneDnn.
bool TryMatMulAnyKOneDnn(const DeviceContext& context, const MatMulArgs& args);
// Runs the products side by side, each on one thread. Returns false and leaves all results
// untouched if there are too few products to keep all threads busy, or if oneDNN lacks one of them.
bool TryMatMulGroupOneDnn(const DeviceContext& context, const std::vector<MatMulArgs>& products);
#endif

}  // namespace apogee::cpu

#endif  // APOGEE_TENSOR_CPU_MATMUL_PATHS_H_
