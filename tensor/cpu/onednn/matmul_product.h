// SPDX-License-Identifier: Apache-2.0

// Products as compiled primitives of oneDNN, by the calling thread. Private to tensor/cpu/onednn.
//
//   Product& product = Compiled(num_threads, args);    // args.k > 0, and Supports(args)
//   if (!product.primitive) return false;              // oneDNN has nothing fast
//   RunOneDnn(kProduct, [&] { Execute(product, args, scratchpad, ThreadStream()); });
#ifndef APOGEE_TENSOR_CPU_ONEDNN_MATMUL_PRODUCT_H_
#define APOGEE_TENSOR_CPU_ONEDNN_MATMUL_PRODUCT_H_

#include "apogee/tensor/cpu/onednn/primitives.h"
#include "apogee/tensor/kernels/args.h"

namespace apogee::cpu::product {

constexpr const char* kProduct = "a matrix product";

// A primitive with its memory objects. Each call sets their pointers.
struct Product {
  dnnl::matmul primitive;  // empty: oneDNN has nothing fast for this key
  dnnl::memory a, b, c, bias, scratchpad;
  int64_t scratchpad_bytes = 0;
};

// Whether oneDNN takes these dtypes and factors.
bool Supports(const MatMulArgs& args);
// The calling thread's primitive for so many threads, its engine and its stream.
Product& Compiled(int num_threads, const MatMulArgs& args);
const dnnl::engine& ThreadEngine();
dnnl::stream& ThreadStream();

// Whether CompiledForAnyK takes the product: one that sums over the rows of a group. Their number
// is another one each time, and a primitive for each would cost as much as a small product.
bool TakesAnyK(const MatMulArgs& args);
// A primitive for every k, without memory objects.
Product& CompiledForAnyK(int num_threads, const MatMulArgs& args);

// The same primitive with memory objects of its own: for the k of `args` if it takes any.
Product CopyFor(const MatMulArgs& args, const Product& product);

// Sets the pointers of `product`, which no other thread may use meanwhile.
void Execute(Product& product, const MatMulArgs& args, void* scratchpad, dnnl::stream& stream);

}  // namespace apogee::cpu::product

#endif  // APOGEE_TENSOR_CPU_ONEDNN_MATMUL_PRODUCT_H_
