// SPDX-License-Identifier: Apache-2.0

// The reference for `gpu_bench products`: cuBLASLt itself, with the first algorithm it proposes
// without conditions, and with output and workspace allocated before.
#ifndef APOGEE_BENCH_CUBLAS_ALONE_H_
#define APOGEE_BENCH_CUBLAS_ALONE_H_

#include <functional>

#include "apogee/tensor/tensor.h"

namespace apogee {

// Returns a function; each call of it queues c = a b for bf16 matrices on a GPU. Empty in a build
// without CUDA.
std::function<void()> CublasAlone(const Tensor& a, const Tensor& b, const Tensor& c);

}  // namespace apogee

#endif  // APOGEE_BENCH_CUBLAS_ALONE_H_
