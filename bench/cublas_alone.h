// SPDX-License-Identifier: Apache-2.0

// The yardstick of `gpu_bench products`: cuBLASLt itself, its first proposal of an algorithm with
// no condition of ours, an output and a workspace that are there already.
#ifndef APOGEE_BENCH_CUBLAS_ALONE_H_
#define APOGEE_BENCH_CUBLAS_ALONE_H_

#include <functional>

#include "apogee/tensor/tensor.h"

namespace apogee {

// Queues c = a b, of bf16 matrices on a GPU, whenever it is called. Empty in a build without CUDA.
std::function<void()> CublasAlone(const Tensor& a, const Tensor& b, const Tensor& c);

}  // namespace apogee

#endif  // APOGEE_BENCH_CUBLAS_ALONE_H_
