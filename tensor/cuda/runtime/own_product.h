// SPDX-License-Identifier: Apache-2.0

// Products that cuBLASLt has no algorithm for, whatever their sizes and alignments. One thread
// computes an element, so this is slow. Private to tensor/cuda.
//
//   if (!gpu.cublas().TryMatMul(gpu, args)) MatMulOwn(gpu, args);
#ifndef APOGEE_TENSOR_CUDA_RUNTIME_OWN_PRODUCT_H_
#define APOGEE_TENSOR_CUDA_RUNTIME_OWN_PRODUCT_H_

#include "apogee/core/device_context.h"
#include "apogee/tensor/kernels/args.h"

namespace apogee::cuda {

// Adds up in f32 (f64 for f64), in the order of k, and rounds once. args.bias must be null, and
// c_dtype be dtype or f32.
void MatMulOwn(const DeviceContext& context, const MatMulArgs& args);

}  // namespace apogee::cuda

#endif  // APOGEE_TENSOR_CUDA_RUNTIME_OWN_PRODUCT_H_
