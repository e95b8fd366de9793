// SPDX-License-Identifier: Apache-2.0

// The reference for the products of `gpu_bench kernels`: cuBLASLt itself, with the first algorithm
// it proposes without conditions, and with output and workspace allocated before.
#ifndef APOGEE_BENCH_GPU_CUBLAS_ALONE_H_
#define APOGEE_BENCH_GPU_CUBLAS_ALONE_H_

#include <functional>

#include "apogee/tensor/tensor.h"

namespace apogee {

// a_trans: a is stored as k x m; b_trans: b is stored as n x k.
struct CublasTransposes {
  bool a_trans = false, b_trans = false;
};
// Returns a function; each call of it queues c = op(a) op(b) for bf16 matrices on a GPU. Only in
// builds with CUDA.
std::function<void()> CublasAlone(const Tensor& a, const Tensor& b, const Tensor& c,
                                  const CublasTransposes& transposes);

}  // namespace apogee

#endif  // APOGEE_BENCH_GPU_CUBLAS_ALONE_H_
