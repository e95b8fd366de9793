// SPDX-License-Identifier: Apache-2.0

// Kernels that use tensor/cuda/attention/mma.cuh, for tests/tensor/mma_test.cc.
#ifndef APOGEE_TESTS_TENSOR_MMA_KERNELS_H_
#define APOGEE_TESTS_TENSOR_MMA_KERNELS_H_

#include "apogee/core/device_context.h"
#include "apogee/core/dtype.h"

namespace apogee {

// Of 16×16 matrices in rows, on one warp: products[0] = a b with b read from its transpose,
// products[1] = a b with b read from its rows, products[2] = (a b rounded to the dtype) b. f32.
void MmaProducts(const DeviceContext& context, DType dtype, const void* a, const void* b,
                 const void* b_transposed, float* products);

}  // namespace apogee

#endif  // APOGEE_TESTS_TENSOR_MMA_KERNELS_H_
