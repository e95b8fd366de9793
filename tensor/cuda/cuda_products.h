// SPDX-License-Identifier: Apache-2.0

// Counts of the matrix products of a GPU's context, by the way that each went.
//
//   const CudaProducts products = CudaProductsOf(context);        // tensor/cuda/cuda_context.h
//   if (products.own > 0) std::cout << products.own << " slow products\n";
#ifndef APOGEE_TENSOR_CUDA_CUDA_PRODUCTS_H_
#define APOGEE_TENSOR_CUDA_CUDA_PRODUCTS_H_

#include <compare>
#include <cstdint>

namespace apogee {

// cuBLASLt lacks algorithms for some shapes, dtypes and alignments; then other ways are taken, with
// the same promises about rounding. A product may count in several fields.
struct CudaProducts {
  int64_t cublas = 0;   // computed by cuBLASLt
  int64_t unfused = 0;  // cuBLASLt could not add the bias or compute the GELU: a kernel did
  int64_t padded = 0;   // on copies whose rows begin at multiples of 64 elements
  int64_t own = 0;      // computed by Apogee's kernel, which is slow: cuBLASLt has no algorithm

  auto operator<=>(const CudaProducts&) const = default;
};

}  // namespace apogee

#endif  // APOGEE_TENSOR_CUDA_CUDA_PRODUCTS_H_
