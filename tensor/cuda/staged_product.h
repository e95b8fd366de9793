// SPDX-License-Identifier: Apache-2.0

// Products in the host's memory (PinnedContext): on copies of the operands in the GPU's, so that
// each goes over the bus once and not once for every tile that reads it. Private to tensor/cuda.
//
//   if (gpu.is_pinned()) return MatMulOfCopies(gpu, args);
#ifndef APOGEE_TENSOR_CUDA_STAGED_PRODUCT_H_
#define APOGEE_TENSOR_CUDA_STAGED_PRODUCT_H_

#include "apogee/tensor/cuda/stream_context.cuh"
#include "apogee/tensor/kernels/args.h"

namespace apogee::cuda {

// Needs every size but k > 0. What lies between c's rows and matrices stays.
void MatMulOfCopies(const StreamContext& pinned, const MatMulArgs& args);

}  // namespace apogee::cuda

#endif  // APOGEE_TENSOR_CUDA_STAGED_PRODUCT_H_
