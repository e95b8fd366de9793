// SPDX-License-Identifier: Apache-2.0

// Matrix products of one context by cuBLASLt: its handle, and the algorithm that was chosen for
// each shape of product. Private to tensor/cuda.
//
//   if (CublasHandle::Takes(args.dtype, args.c_dtype)) gpu.cublas().MatMul(gpu, args);
//
// The same problem gets the same algorithm, and so the same bits. Sums that are split over k are
// added in f32 (f64 for f64) in a fixed order, never by atomics.
#ifndef APOGEE_TENSOR_CUDA_RUNTIME_CUBLAS_H_
#define APOGEE_TENSOR_CUDA_RUNTIME_CUBLAS_H_

#include <memory>

#include "apogee/tensor/cuda/runtime/stream_context.cuh"
#include "apogee/tensor/kernels/args.h"

namespace apogee::cuda {

class CublasHandle {
 public:
  // The context's GPU must be the calling thread's current one. Throws Error if there is no
  // cuBLASLt.
  CublasHandle();
  ~CublasHandle();

  // Whether cuBLASLt has products of operands of `dtype` into `c_dtype`.
  static bool Takes(DType dtype, DType c_dtype);
  // Whether cuBLASLt can add this bias when it stores the product.
  static bool TakesBias(const MatMulArgs& args);

  // Queues the product. Takes must be true, TakesBias too if there is a bias, and every size > 0.
  // Throws Error with cuBLASLt's reason if it has no algorithm.
  void MatMul(const StreamContext& gpu, const MatMulArgs& args);
  // Queues the product and its tanh GELU in one kernel, for bf16. Returns false if cuBLASLt has no
  // such kernel. The requirements of MatMul hold.
  bool TryGelu(const StreamContext& gpu, const MatMulActivationArgs& args);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace apogee::cuda

#endif  // APOGEE_TENSOR_CUDA_RUNTIME_CUBLAS_H_
