// SPDX-License-Identifier: Apache-2.0

// Matrix products of one context by cuBLASLt: its handle, and what was chosen for each shape of
// product. Private to tensor/cuda.
//
//   if (CublasHandle::Takes(args)) gpu.cublas().MatMul(gpu, args);
//
// The same problem gets the same algorithm, and with it the same bits. Sums that are split over k
// are added in f32 (f64) in an order of their own kind, never by atomics.
#ifndef APOGEE_TENSOR_CUDA_CUBLAS_H_
#define APOGEE_TENSOR_CUDA_CUBLAS_H_

#include <memory>

#include "apogee/tensor/cuda/stream_context.cuh"
#include "apogee/tensor/kernels/args.h"

namespace apogee::cuda {

class CublasHandle {
 public:
  // The context's GPU must be the calling thread's. Throws Error where there is no cuBLASLt.
  CublasHandle();
  ~CublasHandle();

  // cuBLASLt has products of operands of `dtype` into `c_dtype`.
  static bool Takes(DType dtype, DType c_dtype);
  // It adds this bias as it stores.
  static bool TakesBias(const MatMulArgs& args);

  // Queues the product. Needs Takes, TakesBias where there is a bias, and every size > 0. Throws
  // Error with cuBLASLt's reason where it has no algorithm.
  void MatMul(const StreamContext& gpu, const MatMulArgs& args);
  // Queues the product and its tanh GELU as one, of bf16; false where cuBLASLt has no such. Needs
  // what MatMul needs.
  bool TryGelu(const StreamContext& gpu, const MatMulActivationArgs& args);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace apogee::cuda

#endif  // APOGEE_TENSOR_CUDA_CUBLAS_H_
