// SPDX-License-Identifier: Apache-2.0

// Products of operands in pinned host memory (PinnedContext). They are copied to the GPU's memory
// first, so that each operand goes over the bus once, not once for every tile that reads it.
// Private to tensor/cuda.
//
//   if (gpu.is_pinned()) return MatMulOfCopies(gpu, args);
#ifndef APOGEE_TENSOR_CUDA_RUNTIME_STAGED_PRODUCT_H_
#define APOGEE_TENSOR_CUDA_RUNTIME_STAGED_PRODUCT_H_

#include "apogee/tensor/cuda/runtime/stream_context.cuh"
#include "apogee/tensor/kernels/args.h"

namespace apogee::cuda {

// Every size except k must be > 0. Elements between c's rows and between its matrices stay as they
// are.
void MatMulOfCopies(const StreamContext& pinned, const MatMulArgs& args);

}  // namespace apogee::cuda

#endif  // APOGEE_TENSOR_CUDA_RUNTIME_STAGED_PRODUCT_H_
