// SPDX-License-Identifier: Apache-2.0

// Matrix products of one context by cuBLASLt: its handle, and the algorithm that was chosen for
// each shape of product. Private to tensor/cuda.
//
//   CublasHandle& cublas = gpu.cublas();
//   const bool takes = CublasHandle::Takes(args.dtype, args.c_dtype);
//   if (takes && cublas.TryMatMul(gpu, args)) return;    // queued
//
// The same problem gets the same algorithm, and so the same bits. Sums that are split over k are
// added in f32 (f64 for f64) in a fixed order, never by atomics.
#ifndef APOGEE_TENSOR_CUDA_RUNTIME_CUBLAS_H_
#define APOGEE_TENSOR_CUDA_RUNTIME_CUBLAS_H_

#include <cstdint>
#include <memory>

#include "apogee/tensor/cuda/cuda_products.h"
#include "apogee/tensor/cuda/runtime/stream_context.cuh"
#include "apogee/tensor/kernels/args.h"

namespace apogee::cuda {

// The least distance of two rows of `cols` elements that are as aligned as any cuBLASLt asks for.
constexpr int64_t AlignedStride(int64_t cols) { return (cols + 63) / 64 * 64; }

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
  // Returns false, and has queued nothing, if cuBLASLt has no algorithm; that is remembered for the
  // product's description (sizes, dtypes, leading dims, alignments, epilogue).
  bool TryMatMul(const StreamContext& gpu, const MatMulArgs& args);
  // The same for the product and its tanh GELU in one kernel, for bf16. The GELU may not be rounded
  // to the nearest (CudaOptions::allow_fast_gelu).
  bool TryGelu(const StreamContext& gpu, const MatMulActivationArgs& args);

  // The counts of CudaProductsOf. Callers of TryMatMul count what they do without cuBLASLt.
  CudaProducts products() const;
  void Count(int64_t CudaProducts::*way);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace apogee::cuda

#endif  // APOGEE_TENSOR_CUDA_RUNTIME_CUBLAS_H_
